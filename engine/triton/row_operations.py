"""Launches the kernels of `engine.triton.rows`, what `engine.native.row_operations` is on the CPU."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from engine.kv_quantization import LARGEST
from engine.triton.rows import add_rms_norm_kernel, gate_kernel, rotate_and_write_kernel

GATE_BLOCK = 1024
ROTATED_HEADS = 8
"""Heads of a row that one program of `rotate_and_write` handles."""

_ACTIVATION_NAMES = {"swish": "silu"}


def add_rms_norm(hidden: Tensor, addend: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Add `addend` to `hidden` [rows, size] in place, and return the RMSNorm of the sum times `weight` [size]."""
    assert hidden.is_contiguous()
    size = hidden.shape[-1]
    addend = hidden if addend is None else addend.contiguous()
    output = torch.empty_like(hidden)
    rows = hidden.numel() // size
    if rows:
        add_rms_norm_kernel[(rows,)](
            hidden,
            addend,
            weight,
            output,
            epsilon,
            **norm_constants(size),
            HAS_ADDEND=addend is not hidden,
            num_warps=norm_warps(size),
        )
    return output


def norm_constants(size: int) -> dict[str, int]:
    """What `add_rms_norm_kernel` is compiled for, beside its flag."""
    return {"SIZE": size, "BLOCK": triton.next_power_of_2(size)}


def norm_warps(size: int) -> int:
    """Warps of `add_rms_norm_kernel`: a row stays in registers."""
    return 4 if size <= 1024 else 8


def gate(gate_up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up for `gate_up` [rows, 2 size], gate first: [rows, size]. Names as in config.json."""
    assert gate_up.is_contiguous()
    rows, size = gate_up.shape[0], gate_up.shape[-1] // 2
    output = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        gate_kernel[(rows, triton.cdiv(size, GATE_BLOCK))](
            gate_up, output, **gate_constants(size, activation), num_warps=4
        )
    return output


def gate_constants(size: int, activation: str) -> dict[str, int | str]:
    """What `gate_kernel` is compiled for."""
    return {"SIZE": size, "BLOCK": GATE_BLOCK, "ACTIVATION": _ACTIVATION_NAMES.get(activation, activation)}


class TritonRowOperations:
    """The `engine.row_operations.RowOperations` of a GPU."""

    def add_rms_norm(self, hidden: Tensor, addend: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
        """See `add_rms_norm` of this module."""
        return add_rms_norm(hidden, addend, weight, epsilon)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `gate` of this module."""
        return gate(gate_up, activation)


def rotate_and_write(
    heads: Tensor,
    cosine: Tensor,
    sine: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    keys: Tensor,
    values: Tensor,
    write_rows: Tensor,
    write_slots: Tensor,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Rotated queries [rows, query heads, head_size]; rotated keys, and values, go into a layer's cache.

    `heads` [rows, query heads + 2 KV heads, head_size] has queries, keys and values; `norms` are the weights of query
    and key norms, applied first. `cosine` and `sine` are those of `Rotary.angles`, `keys` and `values`
    [kv_heads, slots, head_size]. Row `write_rows[i]` goes to slot `write_slots[i]` (int64); every row is named.
    A cache of 8 bits has `scales` of its keys and of its values, fp32 [kv_heads, slots].
    """
    assert heads.is_contiguous()
    assert cosine.is_contiguous()
    assert sine.is_contiguous()
    assert keys.stride() == values.stride()
    assert keys.dtype == values.dtype
    assert keys.dtype == heads.dtype if scales is None else keys.dtype in LARGEST
    kv_heads, head_size = keys.shape[0], heads.shape[2]
    query_heads = heads.shape[1] - 2 * kv_heads
    query = torch.empty((heads.shape[0], query_heads, head_size), dtype=heads.dtype, device=heads.device)
    if not len(write_rows):
        return query
    query_norm, key_norm = norms or (heads, heads)
    rotate_and_write_kernel[(len(write_rows), triton.cdiv(heads.shape[1], ROTATED_HEADS))](
        heads,
        query,
        keys,
        values,
        *(scales or (keys, values)),
        cosine,
        sine,
        query_norm,
        key_norm,
        write_rows,
        write_slots,
        keys.stride(0),
        keys.stride(1),
        0 if scales is None else scales[0].stride(0),
        epsilon,
        **rotate_constants(query_heads, kv_heads, head_size),
        HAS_NORMS=norms is not None,
        **storage_constants(keys.dtype),
        num_warps=4,
    )
    return query


def storage_constants(dtype: torch.dtype | None) -> dict[str, float | bool]:
    """How `rotate_and_write_kernel` stores keys and values of this 8-bit dtype; for any other, as they are."""
    return {"LARGEST": LARGEST.get(dtype, 0.0) if dtype else 0.0, "WHOLE": dtype == torch.int8}


def rotate_constants(heads: int, kv_heads: int, head_size: int) -> dict[str, int]:
    """What `rotate_and_write_kernel` is compiled for, beside its flag."""
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HEAD_SIZE": head_size,
        "HALF_BLOCK": triton.next_power_of_2(head_size // 2),
        "BLOCK_HEADS": ROTATED_HEADS,
    }
