"""Attention as one work list: these query rows against these pages, this many keys, causal or not.

Prefill, extension, decode and shared-prefix attention are the same item with other numbers. The items of a row cover
disjoint keys; each yields a partial output and its log-sum-exp, and the partials of a row are merged. Sequences of a
step that have leading pages in common (questions of one document) read those pages once, as one item for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from engine.prefix_order import common_prefix_length
from engine.step import SequenceRows


class WorkItem(NamedTuple):
    """Query rows `row_start` .. attend to `key_count` keys that start at position `first_key` on `pages`.

    `first_position` is the position of the first row when the item is causal (rows follow one another, row i sees keys
    up to its own position); None when every key precedes every row.
    """

    row_start: int
    row_count: int
    pages: np.ndarray  # int32, of page indices first_key // page_size and on
    first_key: int
    key_count: int
    first_position: int | None


LEAST_SHARED_KEYS = 128
"""A shared item must save at least this many key reads: below it, the extra merge costs more than it saves."""


def build_work_list(rows: Sequence[SequenceRows], page_size: int, share_prefixes: bool) -> list[WorkItem]:
    """The items of a step. `rows` in plan order, so that sequences with common pages stand side by side."""
    items: list[WorkItem] = []
    common = _common_full_pages(rows, page_size) if share_prefixes else [0] * (len(rows) - 1)
    pending = [(0, len(rows), 0)] if rows else []
    while pending:
        first, end, depth = pending.pop()
        if end - first == 1:
            items.append(_own_item(rows[first], depth, page_size))
            continue
        shared = min(common[first : end - 1])
        if (shared - depth) * page_size * (end - first - 1) >= LEAST_SHARED_KEYS:
            items.append(
                WorkItem(
                    row_start=rows[first].row_start,
                    row_count=rows[end - 1].row_start + rows[end - 1].row_count - rows[first].row_start,
                    pages=rows[first].page_table[depth:shared],
                    first_key=depth * page_size,
                    key_count=(shared - depth) * page_size,
                    first_position=None,
                )
            )
            depth = shared
        cuts = [first, *(i + 1 for i in range(first, end - 1) if common[i] == shared), end]
        pending += [(start, stop, depth) for start, stop in pairwise(cuts)]
    return items


def _common_full_pages(rows: Sequence[SequenceRows], page_size: int) -> list[int]:
    """For each sequence and its next: leading pages that both have and that lie wholly before the rows of both."""
    common = []
    guess, bytes_of_own = 0, b""
    for own, following in pairwise(rows):
        count = min(own.first_position, following.first_position) // page_size
        if count == 0 or own.page_table[0] != following.page_table[0]:
            common.append(0)  # rows of documents that have nothing in common must not cost much
            guess, bytes_of_own = 0, b""
            continue
        # Questions of one document share as much as the pair before, and that is checked in a fraction of the time.
        bytes_of_own = bytes_of_own or own.page_table.tobytes()
        bytes_of_following = following.page_table.tobytes()
        size = guess * own.page_table.itemsize
        if (
            guess > count
            or bytes_of_own[:size] != bytes_of_following[:size]
            or (guess < count and own.page_table[guess] == following.page_table[guess])
        ):
            guess = common_prefix_length(own.page_table[:count], following.page_table[:count])
        common.append(guess)
        bytes_of_own = bytes_of_following
    return common


def _own_item(entry: SequenceRows, depth: int, page_size: int) -> WorkItem:
    first_key, end = depth * page_size, entry.key_count
    return WorkItem(
        row_start=entry.row_start,
        row_count=entry.row_count,
        pages=entry.page_table[depth : -(-end // page_size)],
        first_key=first_key,
        key_count=end - first_key,
        first_position=entry.first_position,
    )
