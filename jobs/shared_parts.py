"""The parts of a plan's prompts that several rows share: the inner edges of their prefix tree.

In depth-first order, what a row shares with any earlier one it shares with the row before it. So the tree can be read
off these lengths alone (the intervals of an array of common prefixes: Abouelhoda, Kurtz and Ohlebusch, 2004).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jobs.plan import PlannedRow

KEPT_CHILDREN = 64
"""Of the parts that continue one part, only the largest are kept: a million rows may have a million of them."""

NAMED_SHARE = 0.1
"""A segment of the prompt is named if it makes up this share of a part."""


@dataclass(slots=True)
class SharedPart:
    """Tokens at positions `start` up to `end` that the prompts of `rows` rows share, from place `first` in the plan."""

    first: int
    rows: int
    start: int
    end: int
    children: list[SharedPart] = field(default_factory=list)  # those that save most, the most first
    children_left_out: int = 0
    saved_below: int = 0  # tokens saved by all parts that continue this one, kept or not

    @property
    def tokens(self) -> int:
        """Tokens of this part, computed once."""
        return self.end - self.start

    @property
    def saved_tokens(self) -> int:
        """Tokens that need not be computed again because the part is shared."""
        return self.tokens * (self.rows - 1)

    @property
    def saved_in_all(self) -> int:
        """The same with all that continues it."""
        return self.saved_tokens + self.saved_below


def shared_parts(rows: Sequence[PlannedRow]) -> SharedPart:
    """The tree of what rows of the plan share; its root has no tokens, and stands for the beginning of all prompts."""
    open_parts = [SharedPart(0, 0, 0, 0)]  # a path of the tree; `start` is set when a part's parent is known
    for place, common in _common_lengths(rows):
        first, finished = place - 1, None
        while open_parts[-1].end > common:
            part = open_parts.pop()
            part.rows, first = place - part.first, part.first
            if finished is not None:
                _add(part, finished)
            _keep_largest(part)
            finished = part
        if open_parts[-1].end < common:
            open_parts.append(SharedPart(first, 0, 0, common))
        if finished is not None:
            _add(open_parts[-1], finished)
    root = open_parts[0]
    root.rows = len(rows)
    _keep_largest(root)
    return root


def segment_names(row: PlannedRow, start: int, end: int) -> list[str]:
    """Which of system, document and question make up the positions `start` up to `end` of a row's prompt."""
    opening, prefix = len(row.segments.prefix.opening), len(row.segments.prefix)
    borders = {"system": (0, opening), "document": (opening, prefix), "question": (prefix, row.prompt_tokens)}
    lengths = {name: min(end, last) - max(start, first) for name, (first, last) in borders.items()}
    return [name for name, length in lengths.items() if length >= NAMED_SHARE * (end - start)]


def _common_lengths(rows: Sequence[PlannedRow]) -> Iterator[tuple[int, int]]:
    """For each place from 1, how much the row shares with the one before; at the end 0, which closes everything."""
    for place in range(1, len(rows)):
        yield place, rows[place].prompt_tokens - rows[place].minimum_tokens
    yield len(rows), 0


def _add(parent: SharedPart, part: SharedPart) -> None:
    """Put a finished part under another."""
    part.start = parent.end
    parent.saved_below += part.saved_in_all
    parent.children.append(part)
    if len(parent.children) >= 2 * KEPT_CHILDREN:
        _keep_largest(parent)


def _keep_largest(part: SharedPart) -> None:
    kept = heapq.nlargest(KEPT_CHILDREN, part.children, key=lambda child: child.saved_in_all)
    part.children_left_out += len(part.children) - len(kept)
    part.children = kept
