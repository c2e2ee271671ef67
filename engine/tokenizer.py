"""The model's tokenizer and its stop tokens. Nothing here imports torch: planning counts tokens without it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.model_config import read_json_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def load_tokenizer(folder: Path | str) -> "PreTrainedTokenizerFast":
    """The tokenizer of a Hugging Face folder, without network and without code from the folder.

    `tokenizer.json` is the tokenizer as its authors saved it and is taken as it is. AutoTokenizer would import torch
    and, for some families, rebuild the text splitting from a class of its own; it serves folders that only hold an
    older format. Raises ModelError.
    """
    folder = Path(folder)
    try:
        if (folder / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    # transformers and tokenizers raise plain Exception, KeyError, ValueError and OSError for damaged files.
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{folder}: the tokenizer can't be loaded ({type(error).__name__}: {reason}); the folder needs a "
            "tokenizer.json that belongs to the model."
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"{folder}: the tokenizer has no fast version; save it with a tokenizer.json.")
    return tokenizer


def stop_token_ids(folder: Path | str, tokenizer: Any = None) -> frozenset[int]:
    """Ids that end an answer: `eos_token_id` of generation_config.json, else of config.json, and the tokenizer's.

    `eos_token_id` may be a number or a list. Raises ModelError if there is none at all.
    """
    folder = Path(folder)
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            ids |= _as_ids(read_json_object(folder / name).get("eos_token_id"), folder / name)
        if ids:
            break
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.add(int(tokenizer.eos_token_id))
    if not ids:
        raise ModelError(
            f"{folder}: no eos_token_id in generation_config.json, config.json or the tokenizer, so answers would "
            "never end; add it to generation_config.json."
        )
    return frozenset(ids)


def _as_ids(value: Any, where: Path) -> set[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
        raise ModelError(f"{where}: eos_token_id must be a token id or a list of them, not {value!r}.")
    return set(values)
