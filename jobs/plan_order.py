"""The depth-first order of segmented prompts, and what each is the first to need, without putting prompts together.

The results are those of engine/prefix_order.py on whole prompts. Prefixes are sorted first, and the rows of each by
what follows. That is the order of the whole, unless one prefix is the beginning of another: then the rows of the
shorter one are put among the rows of the longer ones, where their whole prompts belong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from engine.prefix_order import common_prefix_length, sort_key
from jobs.prompt_segments import SegmentedPrompt, SharedPrefix

SORT_TOKENS = 256
"""How many tokens of each prefix are held at once while they are sorted."""

KEY_BYTES = 4
"""Bytes of a token in a sort key."""


def plan_order(prompts: Sequence[SegmentedPrompt], step: int = SORT_TOKENS) -> list[int]:
    """Indices of `prompts` in depth-first order of their prefix tree; equal ones keep their order.

    While it sorts, it holds `step` tokens of each prefix.
    """
    rows_of: dict[SharedPrefix, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        rows_of[prompt.prefix].append(index)
    # From the last prefix to the first: a prefix that others begin with meets their rows, in order, on top.
    blocks: list[tuple[SharedPrefix, list[int]]] = []
    for prefix in reversed(_sorted_prefixes(list(rows_of), step)):
        rows = sorted(rows_of.pop(prefix), key=lambda index: sort_key(prompts[index].rest))
        longer: list[int] = []
        while blocks and _is_beginning(prefix, blocks[-1][0], step):
            longer += blocks.pop()[1]
        blocks.append((prefix, _merged(rows, longer, prompts) if longer else rows))
    return [index for _, rows in reversed(blocks) for index in rows]


def _sorted_prefixes(prefixes: list[SharedPrefix], step: int) -> list[SharedPrefix]:
    """Sorted by their tokens, of which `step` at a time are looked at: those that are equal so far, by the next."""
    ordered: list[SharedPrefix] = []
    pending: list[tuple[list[SharedPrefix], int | None]] = [(prefixes, 0)]  # and how many tokens are equal; None: all
    while pending:
        group, depth = pending.pop()
        if len(group) == 1 or depth is None:
            ordered += group
            continue
        keys = [sort_key(prefix.ids(depth, depth + step)) for prefix in group]
        places = sorted(range(len(group)), key=keys.__getitem__)
        equals = [(key, [group[place] for place in same]) for key, same in groupby(places, key=keys.__getitem__)]
        pending += [(same, depth + step if len(key) == KEY_BYTES * step else None) for key, same in reversed(equals)]
    return ordered


def _is_beginning(first: SharedPrefix, second: SharedPrefix, step: int) -> bool:
    """Whether the second begins with the whole first; told by the first `step` tokens, mostly."""
    length = len(first)
    if length > len(second) or not np.array_equal(first.ids(0, step), second.ids(0, min(step, length))):
        return False
    return length <= step or np.array_equal(first.ids(step), second.ids(step, length))


def first_positions_in_order(ordered: Sequence[SegmentedPrompt]) -> list[int]:
    """For each prompt of a depth-first sequence, how many of its positions no earlier prompt has."""
    counts = []
    previous: SegmentedPrompt | None = None
    for prompt in ordered:
        common = 0 if previous is None else _common_length(previous, prompt)
        counts.append(len(prompt) - common)
        previous = prompt
    return counts


def _common_length(first: SegmentedPrompt, second: SegmentedPrompt) -> int:
    if first.prefix is second.prefix:
        return len(first.prefix) + common_prefix_length(first.rest, second.rest)
    common = common_prefix_length(first.prefix.ids(), second.prefix.ids())
    if common < min(len(first.prefix), len(second.prefix)):
        return common
    return common_prefix_length(first.ids(), second.ids())


def _merged(rows: Sequence[int], longer: Sequence[int], prompts: Sequence[SegmentedPrompt]) -> list[int]:
    """Two sorted lists of indices as one. Whole prompts are put together for a few comparisons a row of the first."""

    def key(index: int) -> tuple[bytes, int]:
        return sort_key(prompts[index].ids()), index

    merged: list[int] = []
    taken = 0
    for index in rows:
        place = bisect_left(longer, key(index), lo=taken, key=key)
        merged += longer[taken:place]
        merged.append(index)
        taken = place
    return merged + list(longer[taken:])
