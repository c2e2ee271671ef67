"""The depth-first order of segmented prompts, and what each is the first to need, without putting prompts together.

The results are those of engine/prefix_order.py on whole prompts. Prefixes are sorted first, and the rows of each by
what follows. That is the order of the whole, unless one prefix is the beginning of another: then the rows of the
shorter one are put among the rows of the longer ones, where their whole prompts belong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from engine.prefix_order import common_prefix_length, sort_key
from jobs.prompt_segments import SegmentedPrompt, SharedPrefix


def plan_order(prompts: Sequence[SegmentedPrompt]) -> list[int]:
    """Indices of `prompts` in depth-first order of their prefix tree; equal ones keep their order.

    Takes memory for one copy of the distinct prefixes while it sorts, 4 bytes a token.
    """
    rows_of: dict[SharedPrefix, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        rows_of[prompt.prefix].append(index)
    prefixes = sorted(((sort_key(prefix.ids()), prefix) for prefix in rows_of), key=lambda pair: pair[0])
    # From the last prefix to the first: a prefix that others begin with meets their rows, in order, on top.
    blocks: list[tuple[bytes, list[int]]] = []
    while prefixes:
        key, prefix = prefixes.pop()
        rows = sorted(rows_of.pop(prefix), key=lambda index: sort_key(prompts[index].rest))
        longer: list[int] = []
        while blocks and blocks[-1][0].startswith(key):
            longer += blocks.pop()[1]
        blocks.append((key, _merged(rows, longer, prompts) if longer else rows))
    return [index for _, rows in reversed(blocks) for index in rows]


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
