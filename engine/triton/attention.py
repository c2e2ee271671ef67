"""Attention over paged KV for the units of a work list, and the merge of partial outputs.

Prefill, extension, decode and shared-prefix decode are one kernel. The query heads that share a KV head are packed as
rows, so that decoding uses matrix units as prefill does; softmax runs online over blocks of keys (Dao et al.,
FlashAttention, algorithm 1), in base 2 inside, and log-sum-exps are natural logs outside.

Keys and values of 8 bits (engine.kv_quantization) become the dtype of queries exactly, and are multiplied as they are:
scores are then times the scales of keys, and weights times those of values.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
WEIGHT_FACTOR = tl.constexpr(128.0)  # weights times scales of values are times this, so that fp16 holds them too


@triton.jit
def attention_kernel(
    query,  # [rows, heads, head_size]
    keys,  # [kv_heads, slots, head_size] of one layer
    values,
    key_scales,  # fp32 [kv_heads, slots]; not read without QUANTIZED
    value_scales,
    output,  # [rows, heads, head_size], dense, as query
    partial_output,  # fp32 [partial rows, heads, head_size]
    partial_log_sum_exp,  # fp32 [partial rows, heads]
    units,  # int32 [units, 8]: engine.attention_units.UnitPlan; row_count 0 marks padding
    targets,
    positions,  # int32 [rows]
    pages,
    query_row_stride,
    query_head_stride,
    kv_head_stride,
    slot_stride,
    scale_head_stride,
    scale,
    soft_cap,
    window,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,  # the power of two that holds HEAD_SIZE
    PAGE_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    QUANTIZED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,  # multiply in fp32 (Triton's interpreter would multiply the bits of bf16 as integers)
):
    """One unit and KV head a program: grid (units, kv_heads)."""
    unit = units + tl.program_id(0) * 8
    row_count = tl.load(unit + 1)
    if row_count == 0:
        return
    kv_head = tl.program_id(1)
    row_start = tl.load(unit)
    first_key = tl.load(unit + 2)
    key_begin = tl.load(unit + 3)
    key_end = tl.load(unit + 4)
    unit_pages = pages + tl.load(unit + 5)
    target_start = tl.load(unit + 6)
    unmasked_end = tl.load(unit + 7)

    packed = tl.arange(0, BLOCK_ROWS)
    row = packed // GROUP
    head = kv_head * GROUP + packed % GROUP
    real_row = row < row_count
    position = tl.load(positions + row_start + row, mask=real_row, other=0)
    column = tl.arange(0, HEAD_BLOCK)
    real = real_row[:, None] & (column < HEAD_SIZE)[None, :]
    query_tile = tl.load(
        query
        + row_start.to(tl.int64) * query_row_stride
        + ((row * query_row_stride + head * query_head_stride)[:, None] + column[None, :]),
        mask=real,
        other=0.0,
    )
    key_base = keys + kv_head.to(tl.int64) * kv_head_stride
    value_base = values + kv_head.to(tl.int64) * kv_head_stride
    key_scale_base = key_scales + kv_head.to(tl.int64) * scale_head_stride
    value_scale_base = value_scales + kv_head.to(tl.int64) * scale_head_stride

    maximum = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    sums = tl.zeros((BLOCK_ROWS, HEAD_BLOCK), tl.float32)
    maximum, total, sums = _attend(
        maximum, total, sums, query_tile, position, key_base, value_base, key_scale_base, value_scale_base, unit_pages,
        first_key, key_begin, unmasked_end, slot_stride, scale, soft_cap, window,
        False, HEAD_SIZE, HEAD_BLOCK, PAGE_SIZE, HAS_WINDOW, HAS_SOFT_CAP, QUANTIZED, BLOCK_KEYS, WIDEN,
    )  # fmt: skip
    maximum, total, sums = _attend(
        maximum, total, sums, query_tile, position, key_base, value_base, key_scale_base, value_scale_base, unit_pages,
        first_key, unmasked_end, key_end, slot_stride, scale, soft_cap, window,
        True, HEAD_SIZE, HEAD_BLOCK, PAGE_SIZE, HAS_WINDOW, HAS_SOFT_CAP, QUANTIZED, BLOCK_KEYS, WIDEN,
    )  # fmt: skip

    # A row that saw no key: output zero, log-sum-exp -inf, and so weight zero when merged.
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    if QUANTIZED:
        sums = sums * (1.0 / WEIGHT_FACTOR)
    result = sums / total[:, None]
    target = tl.load(targets + target_start)
    if target < 0:
        place = (row * HEADS + head)[:, None] * HEAD_SIZE + column[None, :]
        tl.store(
            output + row_start.to(tl.int64) * (HEADS * HEAD_SIZE) + place,
            result.to(output.dtype.element_ty),
            mask=real,
        )
    else:
        partial = row * HEADS + head
        first_partial = target.to(tl.int64) * HEADS
        tl.store(
            partial_output + first_partial * HEAD_SIZE + (partial[:, None] * HEAD_SIZE + column[None, :]),
            result,
            mask=real,
        )
        log_sum_exp = tl.where(is_empty, float("-inf"), (maximum + tl.log2(total)) * LN_2)
        tl.store(partial_log_sum_exp + first_partial + partial, log_sum_exp, mask=real_row)


@triton.jit
def _attend(
    maximum, total, sums, query_tile, position, key_base, value_base, key_scale_base, value_scale_base, unit_pages,
    first_key, key_begin, key_end, slot_stride, scale, soft_cap, window,
    MASKED: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, PAGE_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFT_CAP: tl.constexpr, QUANTIZED: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Take keys [key_begin, key_end) into the running maximum, total and weighted sums of all rows.

    Without MASKED the range is whole blocks of keys that every row sees.
    """
    column = tl.arange(0, HEAD_BLOCK)
    for start in range(key_begin, key_end, BLOCK_KEYS):
        key = start + tl.arange(0, BLOCK_KEYS)
        if MASKED:
            in_range = key < key_end
            page = tl.load(unit_pages + key // PAGE_SIZE, mask=in_range, other=0)
        else:
            in_range = key >= 0
            page = tl.load(unit_pages + key // PAGE_SIZE)
        slot = page.to(tl.int64) * PAGE_SIZE + key % PAGE_SIZE
        place = slot[:, None] * slot_stride + column[None, :]
        # Slots that no key of the range uses may hold anything, NaN too, so they are never read.
        if MASKED or HEAD_SIZE != HEAD_BLOCK:
            real = in_range[:, None] & (column < HEAD_SIZE)[None, :]
            key_tile = tl.load(key_base + place, mask=real, other=0.0)
            value_tile = tl.load(value_base + place, mask=real, other=0.0)
        else:
            key_tile = tl.load(key_base + place)
            value_tile = tl.load(value_base + place)
        if QUANTIZED:
            key_tile = key_tile.to(tl.float32 if WIDEN else query_tile.dtype)
            value_tile = value_tile.to(tl.float32 if WIDEN else query_tile.dtype)
            key_scale = tl.load(key_scale_base + slot, mask=in_range, other=0.0)
            value_scale = tl.load(value_scale_base + slot, mask=in_range, other=0.0) * WEIGHT_FACTOR
        if WIDEN:
            scores = tl.dot(query_tile.to(tl.float32), tl.trans(key_tile.to(tl.float32)), input_precision="ieee")
        else:
            scores = tl.dot(query_tile, tl.trans(key_tile), input_precision="ieee")
        if QUANTIZED:
            scores = scores * key_scale[None, :]
        if HAS_SOFT_CAP:
            # tanh(x) = 1 - 2 / (e^2x + 1) is right at both infinities.
            doubled = scores * (2.0 * LOG2_E * scale / soft_cap)
            scores = soft_cap * LOG2_E * (1.0 - 2.0 / (tl.exp2(doubled) + 1.0))
        else:
            scores = scores * (scale * LOG2_E)
        if MASKED:
            distance = position[:, None] - (first_key + key)[None, :]
            visible = in_range[None, :] & (distance >= 0)
            if HAS_WINDOW:
                visible = visible & (distance < window)
            scores = tl.where(visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        # -inf minus -inf would be NaN: a row that has seen nothing yet is measured from zero.
        reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - reference[:, None])
        faded = tl.exp2(maximum - reference)
        total = total * faded + tl.sum(weights, 1)
        sums = sums * faded[:, None]
        if QUANTIZED:
            weights = weights * value_scale[None, :]
        weights = weights.to(value_tile.dtype)
        if WIDEN:
            sums = tl.dot(weights.to(tl.float32), value_tile.to(tl.float32), sums, input_precision="ieee")
        else:
            sums = tl.dot(weights, value_tile, sums, input_precision="ieee")
        maximum = new_maximum
    return maximum, total, sums


@triton.jit
def merge_kernel(
    output,  # [rows, heads, head_size], dense
    partial_output,
    partial_log_sum_exp,
    merge_rows,
    merge_starts,
    merge_parts,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Some heads of one output row a program: grid (merge rows, heads / BLOCK_HEADS). A row of -1 marks padding.

    The result of partials (o, l) is sum(exp(l) o) / sum(exp(l)); without any, or with empty ones only, it is zero.
    """
    row = tl.load(merge_rows + tl.program_id(0))
    if row < 0:
        return
    begin = tl.load(merge_starts + tl.program_id(0))
    end = tl.load(merge_starts + tl.program_id(0) + 1)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    column = tl.arange(0, HEAD_BLOCK)
    real_head = head < HEADS
    real = real_head[:, None] & (column < HEAD_SIZE)[None, :]
    maximum = tl.full((BLOCK_HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_HEADS,), tl.float32)
    sums = tl.zeros((BLOCK_HEADS, HEAD_BLOCK), tl.float32)
    for index in range(begin, end):
        partial = tl.load(merge_parts + index).to(tl.int64) * HEADS + head
        log_sum_exp = tl.load(partial_log_sum_exp + partial, mask=real_head, other=float("-inf"))
        part = tl.load(partial_output + partial[:, None] * HEAD_SIZE + column[None, :], mask=real, other=0.0)
        new_maximum = tl.maximum(maximum, log_sum_exp)
        reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        faded = tl.exp2((maximum - reference) * LOG2_E)
        weight = tl.exp2((log_sum_exp - reference) * LOG2_E)
        total = total * faded + weight
        sums = sums * faded[:, None] + weight[:, None] * part
        maximum = new_maximum
    result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    place = (row.to(tl.int64) * HEADS + head)[:, None] * HEAD_SIZE + column[None, :]
    tl.store(output + place, result.to(output.dtype.element_ty), mask=real)
