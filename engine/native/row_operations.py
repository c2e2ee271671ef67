"""What a decoder layer does between its matrix products, fused: native where it can be, plain torch elsewhere.

The two agree to rounding: the native code computes in fp32 and rounds once, torch's operators round after each step.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
import torch.nn.functional as functional
from torch import Tensor

from engine import native
from engine.kv_quantization import quantize
from engine.rotary import rotate as rotate_by_torch

_VECTOR_LANES = 16
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


def add_rms_norm(hidden: Tensor, addend: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Add `addend` to `hidden` [rows, size] in place, and return the RMSNorm of the sum times `weight` [size]."""
    size = hidden.shape[-1]
    if not _can_run(hidden, size) or not hidden.is_contiguous() or weight.dtype != hidden.dtype:
        if addend is not None:
            hidden += addend
        return functional.rms_norm(hidden, (size,), weight, epsilon)
    addend_address = None
    if addend is not None:
        addend = addend.contiguous()
        assert addend.shape == hidden.shape
        assert addend.dtype == hidden.dtype
        addend_address = addend.data_ptr()
    output = torch.empty_like(hidden)
    _functions().docqa_add_rms_norm(
        hidden.data_ptr(),
        addend_address,
        weight.data_ptr(),
        output.data_ptr(),
        hidden.numel() // size,
        size,
        epsilon,
        torch.get_num_threads(),
        native.ELEMENT_CODES[hidden.dtype],
    )
    return output


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`engine.rotary.rotate`: `heads` [T, heads, head_size], `cosine` [T, 1, head_size], `sine` [T, 1, half], fp32."""
    tokens, count, head_size = heads.shape
    if not _can_run(heads, head_size // 2) or heads.stride(2) != 1:
        return rotate_by_torch(heads, cosine, sine)
    assert cosine.is_contiguous()
    assert sine.is_contiguous()
    output = torch.empty((tokens, count, head_size), dtype=heads.dtype)
    _functions().docqa_rotate(
        heads.data_ptr(),
        heads.stride(0),
        heads.stride(1),
        cosine.data_ptr(),
        sine.data_ptr(),
        output.data_ptr(),
        tokens,
        count,
        head_size,
        torch.get_num_threads(),
        native.ELEMENT_CODES[heads.dtype],
    )
    return output


def silu_multiply(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for `gate_up` [rows, 2 size], gate first: [rows, size]."""
    size = gate_up.shape[-1] // 2
    if not _can_run(gate_up, size) or not gate_up.is_contiguous():
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)
    output = torch.empty((*gate_up.shape[:-1], size), dtype=gate_up.dtype)
    _functions().docqa_silu_multiply(
        gate_up.data_ptr(),
        output.data_ptr(),
        gate_up.numel() // (2 * size),
        size,
        torch.get_num_threads(),
        native.ELEMENT_CODES[gate_up.dtype],
    )
    return output


def write_slots(cache_layer: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Put `rows` [writes, kv_heads, head_size] into `slots` [writes] of `cache_layer` [kv_heads, slots, head_size]."""
    if not _can_run(rows, _VECTOR_LANES) or rows.stride(2) != 1 or not cache_layer[0].is_contiguous():
        cache_layer.index_copy_(1, slots, rows.transpose(0, 1))
        return
    assert rows.dtype == cache_layer.dtype
    assert slots.is_contiguous()
    size = rows.element_size()
    _functions().docqa_write_slots(
        cache_layer.data_ptr(),
        cache_layer.stride(0) * size,
        rows.data_ptr(),
        rows.stride(0) * size,
        rows.stride(1) * size,
        slots.data_ptr(),
        *rows.shape[:2],
        rows.shape[2] * size,
    )


def write_quantized(cache_layer: Tensor, scales: Tensor, slots: Tensor, rows: Tensor) -> None:
    """`write_slots` for a cache of 8 bits with `scales` [kv_heads, slots], see `engine.kv_quantization`."""
    is_native = cache_layer.dtype == torch.int8 and _can_run(rows, rows.shape[2])
    if not is_native or rows.stride(2) != 1 or not cache_layer[0].is_contiguous():
        quantized, new_scales = quantize(rows, cache_layer.dtype)
        # As bytes: torch has no index operators for 8-bit floats.
        cache_layer.view(torch.uint8).index_copy_(1, slots, quantized.view(torch.uint8).transpose(0, 1))
        scales.index_copy_(1, slots, new_scales.transpose(0, 1))
        return
    assert slots.is_contiguous()
    _functions().docqa_write_quantized(
        rows.data_ptr(),
        rows.stride(0),
        rows.stride(1),
        slots.data_ptr(),
        cache_layer.data_ptr(),
        cache_layer.stride(0),
        scales.data_ptr(),
        scales.stride(0),
        *rows.shape,
        torch.get_num_threads(),
        native.ELEMENT_CODES[rows.dtype],
    )


def _can_run(rows: Tensor, size: int) -> bool:
    return size % _VECTOR_LANES == 0 and rows.device.type == "cpu" and _supports(rows.dtype)


@cache
def _supports(dtype: torch.dtype) -> bool:
    return native.unavailable_reason(dtype) is None


@cache
def _functions() -> ctypes.CDLL:
    """The library with the signatures of the functions used here: 64-bit arguments would be cut off without."""
    library = native.load_library()
    library.docqa_add_rms_norm.argtypes = [*[_POINTER] * 4, _LONG, _LONG, ctypes.c_float, _INT, _INT]
    library.docqa_rotate.argtypes = [_POINTER, _LONG, _LONG, *[_POINTER] * 3, _LONG, _LONG, _LONG, _INT, _INT]
    library.docqa_silu_multiply.argtypes = [_POINTER, _POINTER, _LONG, _LONG, _INT, _INT]
    library.docqa_write_quantized.argtypes = [
        _POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG, _POINTER, _LONG, _LONG, _LONG, _LONG, _INT, _INT,
    ]  # fmt: skip
    library.docqa_write_slots.argtypes = [_POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER, _LONG, _LONG, _LONG]
    return library
