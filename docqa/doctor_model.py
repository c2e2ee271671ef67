"""Checks of the model: its files, its tokenizer, that it needs no network, and that it fits into memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docqa.doctor_check import FAIL, OK, WARN, Check
from docqa.doctor_network import refusing_connections
from docqa.wording import bytes_text
from engine.embedded_model import EMBEDDED_NAME, PROBE_IDS, PROBE_TEXT, check_embedded_tokenizer
from engine.errors import ModelError
from engine.kv_memory import kv_page_bytes, kv_value_bytes
from engine.model_config import ModelConfig, read_json_object, safetensors_files
from engine.model_source import resolve_model
from engine.tokenizer import stop_token_ids
from jobs.job_file import resolve_path
from jobs.job_settings import Job
from jobs.model import SHARE_OF_FREE_MEMORY, JobModel, free_memory_bytes

if TYPE_CHECKING:
    import torch

_STORED_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def check_model(job: Job) -> tuple[list[Check], JobModel | None]:
    """Files, tokenizer and network. The model is None if a run could not use it."""
    with refusing_connections() as tried:
        files, model = _check_files(job)
        checks = [files]
        if model is not None:
            tokenizer = _check_tokenizer(model)
            checks.append(tokenizer)
            if tokenizer.status == FAIL:
                model = None
    if tried:
        hosts = ", ".join(dict.fromkeys(tried))
        advice = "run docqa plan once with a connection, which keeps the model on disk, or name a local folder"
        checks.append(Check("network", FAIL, f"starting asks for {hosts}", advice))
    elif model is not None:
        checks.append(Check("network", OK, "model and tokenizer start without a connection"))
    return checks, model


def check_memory(job: Job, model: JobModel, device: str, dtype: torch.dtype) -> Check:
    """Whether the weights and the keys and values of a full-length row fit into what is free."""
    weights = _weight_bytes(model.folder, dtype.itemsize)
    page_size = job.engine.page_size
    value_bytes = kv_value_bytes(job.engine.kv_dtype, dtype.itemsize)
    token_bytes = kv_page_bytes(model.config, page_size, value_bytes) // page_size
    free = free_memory_bytes(device)
    left = free - weights
    if job.engine.kv_memory is not None:
        room, wanted = min(job.engine.kv_memory, left), job.engine.kv_memory
    else:
        room, wanted = int(left * SHARE_OF_FREE_MEMORY), model.config.context_length * token_bytes
    text = (
        f"{bytes_text(free)} free; {bytes_text(weights)} for weights, {bytes_text(token_bytes)} for each cached token"
    )
    if left <= 0:
        return Check("memory", FAIL, text, "end other programs, or name a smaller model")
    text += f"; room for {room // token_bytes:,} tokens"
    if room < wanted:
        what = "engine.kv_memory" if job.engine.kv_memory is not None else "a prompt of full length"
        return Check("memory", WARN, f"{text}, less than {what}", "end other programs, or set engine.kv_memory lower")
    return Check("memory", OK, text)


def _check_files(job: Job) -> tuple[Check, JobModel | None]:
    local = resolve_path(job, job.model.path)
    try:
        source = resolve_model(str(local) if local.exists() else job.model.path, verify=True)
        config = ModelConfig.from_folder(source.folder)
        stored = sum(_tensor_bytes(file) for file in safetensors_files(source.folder))
    except ModelError as error:
        return Check("model", FAIL, str(error), "correct model.path, or mend the files it names"), None
    text = f"{source.name}, {bytes_text(stored)} of weights in {source.folder}"
    if source.notes:
        return Check("model", WARN, f"{text}. {' '.join(source.notes)}", "check the disk"), JobModel(source, config)
    return Check("model", OK, text), JobModel(source, config)


def _check_tokenizer(model: JobModel) -> Check:
    """The ids of a known text: those stored, for the embedded model; for others, that the text survives."""
    try:
        tokenizer = model.tokenizer
        stop_token_ids(model.folder, tokenizer)
        if model.source.source == EMBEDDED_NAME:
            check_embedded_tokenizer(tokenizer)
            return Check("tokenizer", OK, f"the {len(PROBE_IDS)} stored ids of a known text are met")
    except ModelError as error:
        return Check("tokenizer", FAIL, str(error), "use the tokenizer that belongs to the model")
    ids = tokenizer.encode(PROBE_TEXT, add_special_tokens=False)
    if max(ids, default=0) >= model.config.vocabulary_size:
        text = f"it makes the id {max(ids)}, and the model knows {model.config.vocabulary_size}"
        return Check("tokenizer", FAIL, text, "use the tokenizer that belongs to the model")
    if tokenizer.decode(ids) != PROBE_TEXT:
        text = f"{PROBE_TEXT!r} comes back as {tokenizer.decode(ids)!r}"
        return Check("tokenizer", WARN, text, "compare with the tokenizer that the model was published with")
    return Check("tokenizer", OK, "a known text survives it; no ids are stored for this model")


def _tensor_bytes(file: Path) -> int:
    """Size of a safetensors file that is whole. Raises ModelError for one that is not."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="np") as opened:
            opened.keys()
        return file.stat().st_size
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is damaged ({error}); copy or download it again.") from None


def _weight_bytes(folder: Path, value_bytes: int) -> int:
    """Memory that the weights take once loaded in values of so many bytes."""
    config = read_json_object(folder / "config.json")
    stored = _STORED_BYTES.get(str(config.get("dtype", config.get("torch_dtype"))), 2)
    return sum(file.stat().st_size for file in safetensors_files(folder)) * value_bytes // stored
