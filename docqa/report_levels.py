"""The prefix tree of a run as far as its database knows it: how much each level was asked for, computed and reused.

A prompt is an opening (instructions, and the schema's text), then the document, then the question. The database has
no tokens, but for each row the length of its prompt and how many of its first positions an earlier row of the plan
already had: `prompt_tokens - minimum_tokens`. In depth-first order these are the longest common prefixes of
neighbours, and the least of them over neighbours is the prefix that all of them share (Manber & Myers, Suffix
arrays, 1993, section 3). So the openings are exact without a guess about what the prompts say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

_COUNTS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens")


@dataclass(frozen=True, slots=True)
class RowTokens:
    """The token counts of a row that reached the model; `minimum_tokens` is None where nothing planned it."""

    schema_name: str
    document_hash: str
    prompt_tokens: int
    cached_tokens: int
    minimum_tokens: int | None


def reuse_by_level(rows: list[RowTokens]) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """The token counts of each level, of the run and by document hash; they add up to those of the rows.

    The levels, from the root: what all rows share; what the rows of a schema share beyond that (only where there are
    several schemas); what the rows of a document share beyond that; what is a row's own.
    """
    groupings: list[tuple[str, Any]] = [("all", lambda row: ())]
    if len({row.schema_name for row in rows}) > 1:
        groupings.append(("schema", lambda row: row.schema_name))
    groupings.append(("document", lambda row: (row.schema_name, row.document_hash)))
    openings = [_openings((key_of(row), row) for row in rows) for _, key_of in groupings]
    names = [name for name, _ in groupings] + ["row"]
    run_levels = [_Level(name) for name in names]
    document_levels: dict[str, list[_Level]] = defaultdict(lambda: [_Level(name) for name in names])
    for row in rows:
        start = 0
        ends = [found[key_of(row)] for (_, key_of), found in zip(groupings, openings, strict=True)]
        for depth, end in enumerate([*ends, row.prompt_tokens]):
            stop = min(max(start, end), row.prompt_tokens)
            for level in (run_levels[depth], document_levels[row.document_hash][depth]):
                level.add(row, start, stop)
            start = stop
    return (
        [level.figures() for level in run_levels],
        {document: [level.figures() for level in levels] for document, levels in document_levels.items()},
    )


class _Level:
    """Sums over the parts of prompts that lie on one level."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sums = dict.fromkeys(("rows", *_COUNTS), 0)

    def add(self, row: RowTokens, start: int, stop: int) -> None:
        """The positions from `start` to before `stop` of a row's prompt; what was reused is a prefix of it."""
        cached = min(max(row.cached_tokens - start, 0), stop - start)
        shared = row.prompt_tokens - (row.minimum_tokens or 0)
        self._sums["rows"] += 1
        self._sums["prompt_tokens"] += stop - start
        self._sums["cached_tokens"] += cached
        self._sums["computed_tokens"] += stop - start - cached
        self._sums["minimum_tokens"] += stop - start - min(max(shared - start, 0), stop - start)

    def figures(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"level": self._name} | self._sums


def _openings(rows: Iterable[tuple[Hashable, RowTokens]]) -> dict[Hashable, int]:
    """By key, how many first positions all rows of the key share; 0 for a row alone.

    The first row of a key in the plan's order shares less with the row before it, which is of another key, than the
    rows of the key share with each other: so the second least is what they all share.
    """
    lowest: dict[Hashable, tuple[int, int]] = {}
    none = 2**62
    for key, row in rows:
        least, second = lowest.get(key, (none, none))
        if row.minimum_tokens is not None:
            shared = row.prompt_tokens - row.minimum_tokens
            least, second = (shared, least) if shared < least else (least, min(second, shared))
        lowest[key] = (least, second)
    return {key: 0 if second == none else second for key, (_, second) in lowest.items()}
