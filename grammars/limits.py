"""How far the compiler goes, and what it does when that is too far."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a grammar stops short of its schema. None: it doesn't.

    `recursion`: how often a schema may contain itself. `free_depth`: nesting of values that may be anything.
    `length`, `items`: the most characters of a string and items of a list that has a maximum; without one they are
    loops, which cost nothing.
    """

    recursion: int
    free_depth: int
    length: int | None
    items: int | None


LADDER = (
    Limits(recursion=8, free_depth=3, length=None, items=None),
    Limits(recursion=6, free_depth=2, length=512, items=200),
    Limits(recursion=6, free_depth=2, length=256, items=64),
    Limits(recursion=4, free_depth=1, length=128, items=32),
    Limits(recursion=3, free_depth=1, length=64, items=16),
    Limits(recursion=2, free_depth=1, length=32, items=8),
)
"""Tried in order until a grammar fits its budget: first exact, then tighter, always sound."""

MAX_SCHEMAS_VISITED = 20_000
BUDGET_TRANSITIONS = 10_000_000
"""Wide states times tokens that an index may have where llguidance could take its place: about 70 MB."""

BUDGET_SECONDS = 1.5


def building_seconds(states: int, positions: int, tokens: int) -> float:
    """About how long an index takes to build; fitted to 300 real schemas with a vocabulary of 49,152 tokens.

    With 151,643 tokens, six to nine times as long was measured.
    """
    return (states / 4_500 + positions / 150_000) * (tokens / 49_152) ** 1.8


MAX_TRANSITIONS = 80_000_000
"""Wide states times tokens: about what fits into 800 MB of index, and six seconds of building it."""
