"""What a decoder layer does between its matrix products, one kernel each: norm, rotation with the KV write, gating.

Everything is computed in fp32 and rounded once, except that the residual sum is rounded before it is normed, as it is
when the two are apart.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_rms_norm_kernel(
    hidden,  # [rows, size], dense, changed in place
    addend,  # as hidden; not read without HAS_ADDEND
    weight,  # [size]
    output,  # as hidden
    epsilon,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_ADDEND: tl.constexpr,
):
    """hidden += addend; output = hidden / rms(hidden) * weight (Zhang and Sennrich, 2019). One row a program."""
    column = tl.arange(0, BLOCK)
    real = column < SIZE
    start = tl.program_id(0).to(tl.int64) * SIZE
    row = tl.load(hidden + start + column, mask=real, other=0.0).to(tl.float32)
    if HAS_ADDEND:
        row += tl.load(addend + start + column, mask=real, other=0.0).to(tl.float32)
        rounded = row.to(hidden.dtype.element_ty)
        tl.store(hidden + start + column, rounded, mask=real)
        row = rounded.to(tl.float32)
    normed = row * tl.rsqrt(tl.sum(row * row, 0) / SIZE + epsilon)
    result = normed * tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    tl.store(output + start + column, result.to(output.dtype.element_ty), mask=real)


@triton.jit
def gate_kernel(
    gate_up,  # [rows, 2 size], gate first
    output,  # [rows, size]
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """activation(gate) * up. Grid (rows, blocks of the size)."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < SIZE
    row = tl.program_id(0).to(tl.int64)
    gate = tl.load(gate_up + row * 2 * SIZE + column, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + column, mask=real, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        activated = gate * tl.sigmoid(gate)
    elif ACTIVATION == "gelu_pytorch_tanh":
        # 0.5 x (1 + tanh(u)) = x sigmoid(2u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
        activated = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        tl.static_assert(ACTIVATION == "gelu")
        activated = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    tl.store(output + row * SIZE + column, (activated * up).to(output.dtype.element_ty), mask=real)


@triton.jit
def rotate_and_write_kernel(
    heads,  # [rows, query heads + 2 KV heads, head_size]: queries, keys, values
    query,  # [rows, query heads, head_size], written
    keys,  # [kv_heads, slots, head_size] of one layer, written where `write_slots` says
    values,
    key_scales,  # fp32 [kv_heads, slots], written too; not touched without LARGEST
    value_scales,
    cosine,  # fp32 [rows, head_size]
    sine,  # fp32 [rows, head_size / 2]
    query_norm,  # [head_size]; not read without HAS_NORMS
    key_norm,
    write_rows,  # int64 [writes]: every row at least once
    write_slots,  # int64 [writes]
    kv_head_stride,
    slot_stride,
    scale_head_stride,
    epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    LARGEST: tl.constexpr,  # of the 8-bit format that keys and values are stored in (engine.kv_quantization), or 0
    WHOLE: tl.constexpr,  # whether that has whole numbers only
):
    """Norm (if any) and rotate queries and keys; keys and values go into the cache. Grid (writes, blocks of heads).

    Pair i of a head is (first half[i], second half[i]), the layout of Hugging Face weights.
    """
    HALF: tl.constexpr = HEAD_SIZE // 2
    write = tl.program_id(0)
    row = tl.load(write_rows + write)
    slot = tl.load(write_slots + write)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    pair = tl.arange(0, HALF_BLOCK)
    real_pair = pair < HALF
    real = (head < HEADS + 2 * KV_HEADS)[:, None] & real_pair[None, :]
    place = row * ((HEADS + 2 * KV_HEADS) * HEAD_SIZE) + head[:, None] * HEAD_SIZE + pair[None, :]
    first = tl.load(heads + place, mask=real, other=0.0)
    second = tl.load(heads + place + HALF, mask=real, other=0.0)
    is_query = head < HEADS
    is_value = head >= HEADS + KV_HEADS
    turned_first = first.to(tl.float32)
    turned_second = second.to(tl.float32)
    if HAS_NORMS:
        squares = tl.sum(turned_first * turned_first + turned_second * turned_second, 1)
        scale = tl.rsqrt(squares / HEAD_SIZE + epsilon)[:, None]
        query_first = tl.load(query_norm + pair, mask=real_pair, other=0.0).to(tl.float32)
        query_second = tl.load(query_norm + HALF + pair, mask=real_pair, other=0.0).to(tl.float32)
        key_first = tl.load(key_norm + pair, mask=real_pair, other=0.0).to(tl.float32)
        key_second = tl.load(key_norm + HALF + pair, mask=real_pair, other=0.0).to(tl.float32)
        turned_first *= scale * tl.where(is_query[:, None], query_first[None, :], key_first[None, :])
        turned_second *= scale * tl.where(is_query[:, None], query_second[None, :], key_second[None, :])
    cos = tl.load(cosine + row * HEAD_SIZE + pair, mask=real_pair, other=0.0)[None, :]
    sin = tl.load(sine + row * HALF + pair, mask=real_pair, other=0.0)[None, :]
    element = query.dtype.element_ty
    out_first = (turned_first * cos - turned_second * sin).to(element)
    out_second = (turned_second * cos + turned_first * sin).to(element)

    query_place = row * (HEADS * HEAD_SIZE) + head[:, None] * HEAD_SIZE + pair[None, :]
    tl.store(query + query_place, out_first, mask=real & is_query[:, None])
    tl.store(query + query_place + HALF, out_second, mask=real & is_query[:, None])
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    kv_head = tl.where(is_value, head - (HEADS + KV_HEADS), head - HEADS).to(tl.int64)
    kv_place = (kv_head * kv_head_stride + slot * slot_stride)[:, None] + pair[None, :]
    if LARGEST > 0:
        stored_first = tl.where(is_value[:, None], first, out_first).to(tl.float32)
        stored_second = tl.where(is_value[:, None], second, out_second).to(tl.float32)
        largest = tl.max(tl.maximum(tl.abs(stored_first), tl.abs(stored_second)), 1)
        factor = tl.where(largest > 1e-30, LARGEST / tl.maximum(largest, 1e-30), 0.0)[:, None]
        stored_first = _to_stored(stored_first * factor, keys.dtype.element_ty, LARGEST, WHOLE)
        stored_second = _to_stored(stored_second * factor, keys.dtype.element_ty, LARGEST, WHOLE)
        # A maximum may pass over NaN; zero times a sum does not.
        scale = largest / LARGEST + 0.0 * tl.sum(turned_first + turned_second, 1)
        scale_place = kv_head * scale_head_stride + slot
        tl.store(key_scales + scale_place, scale, mask=is_key)
        tl.store(value_scales + scale_place, scale, mask=is_value & (head < HEADS + 2 * KV_HEADS))
    else:
        stored_first = tl.where(is_value[:, None], first, out_first)
        stored_second = tl.where(is_value[:, None], second, out_second)
    tl.store(keys + kv_place, stored_first, mask=real & is_key[:, None])
    tl.store(keys + kv_place + HALF, stored_second, mask=real & is_key[:, None])
    tl.store(values + kv_place, stored_first, mask=real & is_value[:, None])
    tl.store(values + kv_place + HALF, stored_second, mask=real & is_value[:, None])


@triton.jit
def _to_stored(scaled, dtype: tl.constexpr, LARGEST: tl.constexpr, WHOLE: tl.constexpr):
    """`scaled` in the 8-bit `dtype`, rounded to nearest even."""
    if WHOLE:
        # Adding 1.5 * 2^23 leaves no bits for a fraction in fp32.
        scaled = (scaled + 12582912.0) - 12582912.0
        scaled = tl.minimum(tl.maximum(scaled, -LARGEST), LARGEST)
    return scaled.to(dtype)
