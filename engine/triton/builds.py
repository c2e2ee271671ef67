"""Every kernel as the engine launches it for a model's shape: what `ahead_of_time` compiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.attention_triton import attention_constants, merge_constants, tile_shapes
from engine.triton.ahead_of_time import Kernel
from engine.triton.attention import attention_kernel, merge_kernel
from engine.triton.row_operations import (
    gate_constants,
    norm_constants,
    norm_warps,
    rotate_constants,
    storage_constants,
)
from engine.triton.rows import add_rms_norm_kernel, gate_kernel, rotate_and_write_kernel
from engine.triton.sampler import WARPS as SAMPLING_WARPS
from engine.triton.sampler import sampling_constants
from engine.triton.sampling import log_probability_kernel, sample_kernel


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that kernels are compiled for."""

    heads: int
    kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int
    vocabulary_size: int
    qk_norm: bool = False
    activation: str = "silu"


_TRITON_NAMES = {torch.int8: "i8", torch.float8_e4m3fn: "fp8e4nv"}

MODEL_SHAPES = {
    "Llama-3-8B": ModelShape(32, 8, 128, 4096, 14336, 128256),
    "Qwen2.5-7B": ModelShape(28, 4, 128, 3584, 18944, 152064),
    "Qwen3-8B": ModelShape(32, 8, 128, 4096, 12288, 151936, qk_norm=True),
    "Gemma-3-4B": ModelShape(8, 4, 256, 2560, 10240, 262208, qk_norm=True, activation="gelu_pytorch_tanh"),
    "SmolLM2-135M": ModelShape(9, 3, 64, 576, 1536, 49152),
}


def kernels_of(
    shape: ModelShape,
    capability: int,
    element: str = "bf16",
    *,
    windowed: bool = False,
    soft_capped: bool = False,
    kv: torch.dtype | None = None,
    page_size: int = 16,
) -> Iterator[Kernel]:
    """All kernels of a model of this shape, with `element` activations, and KV too unless `kv` is an 8-bit format."""
    yield from _attention_kernels(shape, capability, element, windowed, soft_capped, kv, page_size)
    yield from _row_kernels(shape, element, kv)
    yield Kernel(
        "sample",
        sample_kernel,
        {
            "logits": "*fp32",
            "masks": "*i32",
            "settings": "*fp32",
            "tokens": "*i32",
            **dict.fromkeys(("row_stride", "words"), "i32"),
        },
        {**sampling_constants(shape.vocabulary_size), "HAS_MASKS": True},
        divisible=("row_stride",),
        warps=SAMPLING_WARPS,
    )
    yield Kernel(
        "log probability",
        log_probability_kernel,
        {
            **dict.fromkeys(("logits", "output"), "*fp32"),
            **dict.fromkeys(("masks", "tokens"), "*i32"),
            **dict.fromkeys(("row_stride", "words"), "i32"),
        },
        {**sampling_constants(shape.vocabulary_size), "HAS_MASKS": True},
        divisible=("row_stride",),
        warps=SAMPLING_WARPS,
    )


def _attention_kernels(
    shape: ModelShape,
    capability: int,
    element: str,
    windowed: bool,
    soft_capped: bool,
    kv: torch.dtype | None,
    page_size: int,
) -> Iterator[Kernel]:
    strides = ("query_row_stride", "query_head_stride", "kv_head_stride", "slot_stride", "scale_head_stride")
    tiles = tile_shapes(shape.head_size, capability, is_fp32=element == "fp32", is_8_bit=kv is not None)
    for size, tile in zip(("small", "large"), tiles, strict=True):
        yield Kernel(
            f"attention {size}",
            attention_kernel,
            {
                **dict.fromkeys(("query", "output"), f"*{element}"),
                **_stored(element, kv),
                **dict.fromkeys(("partial_output", "partial_log_sum_exp"), "*fp32"),
                **dict.fromkeys(("units", "targets", "positions", "pages"), "*i32"),
                **dict.fromkeys((*strides, "window"), "i32"),
                **dict.fromkeys(("scale", "soft_cap"), "fp32"),
            },
            {
                **attention_constants(shape.heads, shape.kv_heads, shape.head_size, page_size, tile),
                "HAS_WINDOW": windowed,
                "HAS_SOFT_CAP": soft_capped,
                "QUANTIZED": kv is not None,
                "WIDEN": False,
            },
            divisible=strides,
            warps=tile.warps,
            stages=tile.stages,
        )
    yield Kernel(
        "merge",
        merge_kernel,
        {
            "output": f"*{element}",
            **dict.fromkeys(("partial_output", "partial_log_sum_exp"), "*fp32"),
            **dict.fromkeys(("merge_rows", "merge_starts", "merge_parts"), "*i32"),
        },
        merge_constants(shape.heads, shape.head_size),
    )


def _stored(element: str, kv: torch.dtype | None) -> dict[str, str]:
    """Types of keys and values and of their scales; without any, those are dummies of the same type."""
    stored, scales = (element, element) if kv is None else (_TRITON_NAMES[kv], "fp32")
    return {"keys": f"*{stored}", "values": f"*{stored}", "key_scales": f"*{scales}", "value_scales": f"*{scales}"}


def _row_kernels(shape: ModelShape, element: str, kv: torch.dtype | None) -> Iterator[Kernel]:
    yield Kernel(
        "add and norm",
        add_rms_norm_kernel,
        {**dict.fromkeys(("hidden", "addend", "weight", "output"), f"*{element}"), "epsilon": "fp32"},
        {**norm_constants(shape.hidden_size), "HAS_ADDEND": True},
        warps=norm_warps(shape.hidden_size),
    )
    yield Kernel(
        "gate",
        gate_kernel,
        dict.fromkeys(("gate_up", "output"), f"*{element}"),
        gate_constants(shape.intermediate_size, shape.activation),
    )
    yield Kernel(
        "rotate and write",
        rotate_and_write_kernel,
        {
            **dict.fromkeys(("heads", "query", "query_norm", "key_norm"), f"*{element}"),
            **_stored(element, kv),
            **dict.fromkeys(("cosine", "sine"), "*fp32"),
            **dict.fromkeys(("write_rows", "write_slots"), "*i64"),
            **dict.fromkeys(("kv_head_stride", "slot_stride", "scale_head_stride"), "i32"),
            "epsilon": "fp32",
        },
        {
            **rotate_constants(shape.heads, shape.kv_heads, shape.head_size),
            "HAS_NORMS": shape.qk_norm,
            **storage_constants(kv),
        },
        divisible=("kv_head_stride", "slot_stride", "scale_head_stride"),
    )
