"""One token a row from its logits, on the device: grammar mask, temperature, top-k, top-p and a seeded draw. And how
likely a token was.

The rule is that of `engine.sampler`: tokens stand in the order of their logits, the lower id first among equals; top-k
keeps the first k of them, top-p as many as it takes to reach p, and a number in [0, 1) says where in the cumulative
distribution of the rest the token lies. Instead of sorting a vocabulary, each of the three cuts is found by narrowing
down the logit at which the sum over all larger ones passes a target, four bits of the logit at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def sample_kernel(
    logits,  # fp32 [rows, vocabulary]
    row_stride,
    masks,  # int32 [rows, words]: a bit a token, least significant first; not read without HAS_MASKS
    words,
    settings,  # fp32 [rows, 4]: temperature (0: the most likely token), top-k (0: all), top-p, uniform number
    tokens,  # int32 [rows], written; -1 where an allowed logit is not a number
    VOCABULARY: tl.constexpr,
    HAS_MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * row_stride
    row_mask = masks + row * words
    largest, token, is_nan = _most_likely(row_logits, row_mask, VOCABULARY, HAS_MASKS, 4 * BLOCK)
    temperature = tl.load(settings + row * 4)
    if (temperature > 0.0) & (is_nan == 0) & (largest > float("-inf")):
        top_k = tl.load(settings + row * 4 + 1)
        top_p = tl.load(settings + row * 4 + 2)
        uniform = tl.load(settings + row * 4 + 3)
        inverse = LOG2_E / temperature
        cut_key = largest.to(tl.uint32) * 0  # everything is kept
        cut_id = VOCABULARY
        if (top_k > 0.0) & (top_k < VOCABULARY):
            cut_key, cut_id = _cut(
                row_logits, row_mask, largest, inverse, cut_key, cut_id, top_k, False, True,
                VOCABULARY, HAS_MASKS, BLOCK,
            )  # fmt: skip
        if top_p < 1.0:
            kept = _kept_weight(row_logits, row_mask, largest, inverse, cut_key, cut_id, VOCABULARY, HAS_MASKS, BLOCK)
            cut_key, cut_id = _cut(
                row_logits, row_mask, largest, inverse, cut_key, cut_id, top_p * kept, False, False,
                VOCABULARY, HAS_MASKS, BLOCK,
            )  # fmt: skip
        kept = _kept_weight(row_logits, row_mask, largest, inverse, cut_key, cut_id, VOCABULARY, HAS_MASKS, BLOCK)
        cut_key, token = _cut(
            row_logits, row_mask, largest, inverse, cut_key, cut_id, uniform * kept, True, False,
            VOCABULARY, HAS_MASKS, BLOCK,
        )  # fmt: skip
    tl.store(tokens + row, tl.where(is_nan != 0, -1, token))


@triton.jit
def log_probability_kernel(
    logits,  # fp32 [rows, vocabulary]
    row_stride,
    masks,  # as for sample_kernel
    words,
    tokens,  # int32 [rows]
    output,  # fp32 [rows], written: of each token, among those that are allowed, at temperature 1
    VOCABULARY: tl.constexpr,
    HAS_MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * row_stride
    row_mask = masks + row * words
    largest, _, _ = _most_likely(row_logits, row_mask, VOCABULARY, HAS_MASKS, 4 * BLOCK)
    keep_all = _key(largest) * 0
    weight = _kept_weight(row_logits, row_mask, largest, LOG2_E, keep_all, VOCABULARY, VOCABULARY, HAS_MASKS, BLOCK)
    tl.store(output + row, tl.load(row_logits + tl.load(tokens + row)) - largest - tl.log(weight))


@triton.jit
def _load(row_logits, row_mask, start, VOCABULARY: tl.constexpr, HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr):
    """A block's token ids and logits; -inf for those that are not allowed."""
    token = start + tl.arange(0, BLOCK)
    allowed = token < VOCABULARY
    if HAS_MASKS:
        word = tl.load(row_mask + token // 32, mask=allowed, other=0)
        allowed = allowed & (((word >> (token % 32)) & 1) != 0)
    return token, tl.load(row_logits + token, mask=allowed, other=float("-inf"))


@triton.jit
def _most_likely(row_logits, row_mask, VOCABULARY: tl.constexpr, HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit, the first token that has it, and whether a logit is not a number."""
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_token = tl.zeros((BLOCK,), tl.int32)
    nans = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, VOCABULARY, BLOCK):
        token, logit = _load(row_logits, row_mask, start, VOCABULARY, HAS_MASKS, BLOCK)
        nans = nans | (logit != logit).to(tl.int32)
        is_better = logit > best
        best = tl.where(is_better, logit, best)
        best_token = tl.where(is_better, token, best_token)
    largest = tl.max(best, 0)
    token = tl.min(tl.where(best == largest, best_token, VOCABULARY), 0)
    return largest, token, tl.max(nans, 0)


@triton.jit
def _key(logit):
    """An unsigned integer that orders as the floating-point number does."""
    bits = (logit + 0.0).to(tl.uint32, bitcast=True)  # adding zero makes -0 and 0 one
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _weights(token, logit, largest, inverse, cut_key, cut_id, BY_COUNT: tl.constexpr):
    """Each token's order key and its weight (probability without its norm, or one): zero beyond the cut."""
    key = _key(logit)
    kept = (logit > float("-inf")) & ((key > cut_key) | ((key == cut_key) & (token <= cut_id)))
    weight = tl.where(kept, 1.0, 0.0) if BY_COUNT else tl.where(kept, tl.exp2((logit - largest) * inverse), 0.0)
    return key, weight


@triton.jit
def _kept_weight(
    row_logits, row_mask, largest, inverse, cut_key, cut_id,
    VOCABULARY: tl.constexpr, HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of the weights of all tokens up to the cut."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        token, logit = _load(row_logits, row_mask, start, VOCABULARY, HAS_MASKS, BLOCK)
        _, weight = _weights(token, logit, largest, inverse, cut_key, cut_id, False)
        total += weight
    return tl.sum(total, 0)


@triton.jit
def _cut(
    row_logits, row_mask, largest, inverse, cut_key, cut_id, target,
    STRICTLY: tl.constexpr, BY_COUNT: tl.constexpr,
    VOCABULARY: tl.constexpr, HAS_MASKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Order key and id of the first token at which the cumulative weight reaches (or STRICTLY passes) `target`."""
    edge = tl.arange(0, 16)
    key_found = cut_key * 0
    for digit in range(8):
        shift = 28 - 4 * digit
        edges = key_found + (edge.to(tl.uint32) << shift)
        sums = tl.zeros((16,), tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            token, logit = _load(row_logits, row_mask, start, VOCABULARY, HAS_MASKS, BLOCK)
            key, weight = _weights(token, logit, largest, inverse, cut_key, cut_id, BY_COUNT)
            sums += tl.sum(tl.where(key[:, None] >= edges[None, :], weight[:, None], 0.0), 0)
        passed = sums > target if STRICTLY else sums >= target
        # The first edge is passed by what was found before, so one is taken off.
        count = tl.sum(passed.to(tl.int32), 0)
        key_found += tl.maximum(count - 1, 0).to(tl.uint32) << shift

    # Among the tokens of that very logit the lower id comes first.
    id_found = cut_id * 0
    for digit in range(5):
        shift = 16 - 4 * digit
        ends = id_found + (edge << shift)  # tokens below an end are not enough
        sums = tl.zeros((16,), tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            token, logit = _load(row_logits, row_mask, start, VOCABULARY, HAS_MASKS, BLOCK)
            key, weight = _weights(token, logit, largest, inverse, cut_key, cut_id, BY_COUNT)
            before = (key[:, None] > key_found) | ((key[:, None] == key_found) & (token[:, None] < ends[None, :]))
            sums += tl.sum(tl.where(before, weight[:, None], 0.0), 0)
        short = sums <= target if STRICTLY else sums < target
        count = tl.sum(short.to(tl.int32), 0)
        id_found += tl.maximum(count - 1, 0) << shift
    return key_found, id_found
