"""The model of a job, in two halves: what a plan needs, which imports no torch, and the engine, which loads weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from engine.errors import ModelError
from engine.kv_memory import kv_pages_in, kv_value_bytes
from engine.model_config import ModelConfig
from engine.model_source import ModelFolder, cache_folder, model_fingerprint, resolve_model
from engine.tokenizer import load_tokenizer, stop_token_ids
from grammars import GrammarCache, TokenVocabulary
from jobs.job_file import resolve_path
from jobs.job_settings import Job
from jobs.plan import Plan

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

    from engine.decoder import Decoder
    from engine.engine import Engine
from engine.engine_settings import EngineSettings

SHARE_OF_FREE_MEMORY = 0.5
"""The KV cache takes at most this share of the memory that is free, unless engine.kv_memory says otherwise."""


@dataclass(frozen=True)
class JobModel:
    """A model's folder with what is read from it on demand. Nothing here loads weights."""

    source: ModelFolder
    config: ModelConfig

    @classmethod
    def of(cls, job: Job) -> JobModel:
        """Find the model of a job. Raises ModelError."""
        local = resolve_path(job, job.model.path)
        source = resolve_model(str(local) if local.exists() else job.model.path)
        return cls(source, ModelConfig.from_folder(source.folder))

    @property
    def folder(self) -> Path:
        """The Hugging Face folder."""
        return self.source.folder

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The model's tokenizer."""
        return load_tokenizer(self.folder)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the content of config, tokenizer, chat template and weights."""
        return model_fingerprint(self.folder)

    @cached_property
    def grammars(self) -> GrammarCache:
        """Compiles schemas for this model's vocabulary."""
        vocabulary = TokenVocabulary.from_tokenizer(self.tokenizer, self.config.vocabulary_size)
        return GrammarCache(vocabulary, cache_folder() / "grammars")


def make_engine(job: Job, model: JobModel, plan: Plan) -> Engine:
    """Load the weights and make an engine with room for the plan. Raises ModelError."""
    device = choose_device(job.model.device)
    check_kv_device(job.engine.kv_dtype, job.model.dtype, device)
    dtype = choose_dtype(job.model.dtype, device)
    if device == "cpu":
        settings = engine_settings(job, model, plan, dtype, device)
        decoder = load_decoder(model, dtype, device)
        try_kv_dtype(decoder, model, job.engine.kv_dtype, dtype, device)
        return make_engine_of(decoder, model, settings, dtype, device)
    return _make_engine_on_gpu(job, model, plan, dtype, device)


def _make_engine_on_gpu(job: Job, model: JobModel, plan: Plan, dtype: torch.dtype, device: str) -> Engine:
    """The KV cache gets what weights and the largest step leave."""
    from engine.gpu_memory import explained_out_of_memory, kv_memory_bytes

    with explained_out_of_memory("the model's weights", "choose a smaller model, or set model.device to cpu"):
        decoder = load_decoder(model, dtype, device)
        try_kv_dtype(decoder, model, job.engine.kv_dtype, dtype, device)
    settings = engine_settings(job, model, plan, dtype, device)
    if job.engine.kv_memory is None:
        limit = kv_memory_bytes(decoder, step_tokens=settings.step_tokens, sampled_rows=settings.max_rows)
        settings = engine_settings(job, model, plan, dtype, device, limit)
    with explained_out_of_memory("the KV cache", "lower engine.kv_memory"):
        return make_engine_of(decoder, model, settings, dtype, device)


def load_decoder(model: JobModel, dtype: torch.dtype, device: str) -> Decoder:
    """The model's weights, ready to run. Raises ModelError."""
    from engine.decoder import Decoder
    from engine.weights import load_weights

    return Decoder(model.config, load_weights(model.folder, model.config, dtype, device))


def try_kv_dtype(decoder: Decoder, model: JobModel, kv_dtype: str, dtype: torch.dtype, device: str) -> None:
    """Find out whether keys and values of 8 bits do for this model. Raises ModelError if they don't."""
    if kv_dtype == "auto":
        return
    import numpy as np

    from engine.kv_check import PROBE_TEXT, check_kv_dtype

    ids = model.tokenizer.encode(PROBE_TEXT, add_special_tokens=False)[: model.config.context_length]
    check_kv_dtype(decoder, np.array(ids), kv_dtype, dtype, device)


def make_engine_of(
    decoder: Decoder, model: JobModel, settings: EngineSettings, dtype: torch.dtype, device: str
) -> Engine:
    """An engine with a cache of its own over a loaded decoder."""
    from engine.engine import Engine

    stops = stop_token_ids(model.folder, model.tokenizer)
    return Engine(decoder, model.config, settings, stops, dtype=dtype, device=device)


def engine_settings(
    job: Job, model: JobModel, plan: Plan, dtype: torch.dtype, device: str, memory_bytes: int | None = None
) -> EngineSettings:
    """The engine's settings for a job, everything that is `auto` resolved. Raises ModelError.

    `memory_bytes` is what the KV cache may take where engine.kv_memory is auto; by default a share of what is free.
    """
    from engine.engine_settings import EngineSettings

    page_size = job.engine.page_size
    limit = job.engine.kv_memory
    if limit is None:
        limit = int(free_memory_bytes(device) * SHARE_OF_FREE_MEMORY) if memory_bytes is None else memory_bytes
    pages = kv_pages_in(limit, model.config, page_size, kv_value_bytes(job.engine.kv_dtype, dtype.itemsize))
    if pages < 1:
        raise ModelError(f"engine.kv_memory is {limit} bytes, which holds no KV page of this model; raise it.")
    if job.engine.kv_memory is None:
        pages = max(1, min(pages, plan.pages_wanted(page_size)))
    step_tokens = job.engine.step_tokens or (1024 if device == "cpu" else 8192)
    return EngineSettings(
        kv_pages=pages,
        page_size=page_size,
        kv_dtype=job.engine.kv_dtype,
        step_tokens=step_tokens,
        deterministic=job.engine.deterministic,
        keep_unneeded=False,  # the plan is whole: what it does not need, nobody will ask for
    )


def choose_device(name: str) -> str:
    """The device of `auto`, `cpu`, `cuda` or `cuda:N`. Raises ModelError for a GPU that is not there."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda"):
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if gpus == 0:
            raise ModelError(f"model.device is {name!r}, but torch finds no GPU here; use auto or cpu.")
        if int(name.partition(":")[2] or 0) >= gpus:
            there = ", ".join(f"cuda:{index}" for index in range(gpus))
            raise ModelError(f"model.device is {name!r}, but torch finds {there} only; use one that is there.")
    return name


def check_kv_device(kv_dtype: str, dtype: str, device: str) -> None:
    """Raises ModelError if keys and values can't be in this format on this device, with a model in `dtype`."""
    if kv_dtype == "auto":
        return
    if device == "cpu":
        if kv_dtype == "fp8":
            raise ModelError("engine.kv_dtype is fp8, which needs a GPU; use int8 or auto on the CPU.")
        return
    if dtype == "float32":
        raise ModelError(
            f"engine.kv_dtype is {kv_dtype}, which a GPU has with model.dtype bfloat16 or float16 only, and that is "
            "float32; set one of them to auto."
        )
    if kv_dtype == "int8":
        return
    import torch

    from engine.kv_quantization import LEAST_FP8_CAPABILITY

    major, minor = torch.cuda.get_device_capability(device)
    if 10 * major + minor < LEAST_FP8_CAPABILITY:
        raise ModelError(
            f"engine.kv_dtype is fp8, which needs a GPU of compute capability {LEAST_FP8_CAPABILITY / 10} or more, and "
            f"this one has {major}.{minor}; use int8 or auto."
        )


def choose_dtype(name: str, device: str) -> torch.dtype:
    """The torch dtype of a name; `auto` is bfloat16 where the machine computes in it."""
    import torch

    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device != "cpu":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def free_memory_bytes(device: str) -> int:
    """Memory that is free for use now, of the GPU or of this machine."""
    if device == "cpu":
        return int(psutil.virtual_memory().available)
    import torch

    return int(torch.cuda.mem_get_info(device)[0])
