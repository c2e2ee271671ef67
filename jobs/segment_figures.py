"""What of each segment of a row's prompt was reused, and what that would have cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.forward_work import ForwardWork
from engine.request import Completion

SEGMENT_COUNTS = ("prompt_tokens", "minimum_tokens", "cached_tokens")
"""What of a row's segments adds up to the row's own columns of these names."""


def segment_figures(
    passes: Iterable[tuple[Mapping[str, int], Completion]], work: ForwardWork
) -> dict[str, dict[str, int]]:
    """By segment, SEGMENT_COUNTS and `saved_flops`, the arithmetic of what was reused; over all passes of a row.

    Each pass is a prompt, as the tokens of its segments in their order, and how it ended. What it reused is the
    beginning of its prompt, and what it was the first to compute is the end.
    """
    figures: dict[str, dict[str, int]] = {}
    for segments, ended in passes:
        start = 0
        for name, tokens in segments.items():
            found = figures.setdefault(name, dict.fromkeys((*SEGMENT_COUNTS, "saved_flops"), 0))
            cached = _within(ended.cached_tokens, start, tokens)
            found["prompt_tokens"] += tokens
            found["minimum_tokens"] += tokens - _within(ended.prompt_tokens - ended.minimum_tokens, start, tokens)
            found["cached_tokens"] += cached
            found["saved_flops"] += work.flops(start, cached)
            start += tokens
    return figures


def _within(end: int, start: int, tokens: int) -> int:
    """How many of the `tokens` positions from `start` on come before `end`."""
    return min(max(end - start, 0), tokens)
