"""Which attention backend runs: by name, or the fastest that this machine and model allow."""

from __future__ import annotations

import logging

import torch

from engine import attention_native
from engine import triton as triton_kernels
from engine.attention import AttentionBackend
from engine.attention_cpu import CpuAttention
from engine.attention_native import NativeAttention
from engine.attention_reference import ReferenceAttention
from engine.errors import ModelError
from engine.model_config import ModelConfig

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "native", "torch", "triton", "reference")


def make_attention(
    name: str,
    config: ModelConfig,
    page_size: int,
    dtype: torch.dtype,
    device: str,
    *,
    deterministic: bool,
    kv_dtype: str = "auto",
) -> AttentionBackend:
    """The backend of that name. Raises ModelError for an unknown one, and for what can't be had here.

    `kv_dtype` is that of `EngineSettings`. A `deterministic` backend gives a row the same bits whatever other rows are
    in the step.
    """
    if name not in BACKENDS:
        raise ModelError(f"The attention backend is {name!r}; it must be one of {', '.join(BACKENDS)}.")
    reason = "it runs on the CPU only"
    if device == "cpu":
        reason = attention_native.unavailable_reason(dtype, config.heads, config.kv_heads, config.head_size) or ""
        if kv_dtype == "fp8":
            reason = reason or "it reads no fp8"
    if config.attention_soft_cap is not None:
        reason = reason or "it has no soft caps on attention scores"
        if name == "torch":
            raise ModelError("The torch attention backend has no soft caps, which this model needs; use auto.")
    if name == "native" and reason:
        raise ModelError(f"The native attention backend can't run here: {reason}; use auto.")
    if deterministic:
        if reason or name not in ("auto", "native"):
            raise ModelError(
                f"engine.deterministic needs the native attention backend ({reason or name}); turn it off."
            )
        return NativeAttention(
            scale=config.attention_scale, windows=config.windows, page_size=page_size, split_keys=False
        )
    if name == "reference" or (config.attention_soft_cap is not None and name == "auto" and device == "cpu"):
        return ReferenceAttention(
            scale=config.attention_scale,
            windows=config.windows,
            page_size=page_size,
            soft_cap=config.attention_soft_cap,
        )
    if name == "triton" or (name == "auto" and device != "cpu"):
        return _make_triton(config, page_size, dtype, device)
    chosen: type[NativeAttention] | type[CpuAttention] = NativeAttention
    if name == "torch" or reason:
        logger.debug("attention runs without native kernels: %s", reason or "asked for")
        chosen = CpuAttention
    return chosen(scale=config.attention_scale, windows=config.windows, page_size=page_size)


def _make_triton(config: ModelConfig, page_size: int, dtype: torch.dtype, device: str) -> AttentionBackend:
    reason = triton_kernels.unavailable_reason(device)
    if reason is None:
        from engine import attention_triton  # not at the top: Triton is there on Linux only

        is_fp32 = dtype == torch.float32
        reason = attention_triton.unavailable_reason(config.heads, config.kv_heads, config.head_size, is_fp32=is_fp32)
    if reason is not None:
        raise ModelError(f"The Triton attention backend can't run here: {reason}; or set model.device to cpu.")
    return attention_triton.TritonAttention(
        scale=config.attention_scale,
        windows=config.windows,
        page_size=page_size,
        soft_cap=config.attention_soft_cap,
    )
