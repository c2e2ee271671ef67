"""Rows for which the model is asked several times: what was answered each time, and which answer counts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from engine.request import Completion

if TYPE_CHECKING:
    from jobs.plan_rows import PlannedRow

SAMPLE = "sample"
MAJORITY, FIRST = "majority", "first"
RULES = (MAJORITY, FIRST)
"""How one of several answers is chosen: the one that most are equal to, or the first that is valid."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer is worth: columns of `answers`, and the JSON value of a valid one."""

    status: str
    text: str | None
    answer: str | None = None
    value: Any = None
    error: str | None = None
    quotes: str | None = None
    confidence: str | None = None


@dataclass(frozen=True, slots=True)
class EndedPart:
    """A part of a row in pieces that has ended; `repeated` are its repeated tokens by cause."""

    planned: PlannedRow
    call: Call
    outcome: Outcome
    repeated: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Call:
    """One time that a row was asked: with which seed, and how it ended."""

    seed: int
    completion: Completion


@dataclass
class RowCalls:
    """The calls of one row as they end, in any order."""

    seeds: Sequence[int]
    completions: dict[int, Completion] = field(default_factory=dict)

    def add(self, number: int, completion: Completion) -> bool:
        """A call has ended; True if it was the last."""
        self.completions[number] = completion
        return len(self.completions) == len(self.seeds)

    def in_order(self) -> list[Call]:
        """All calls, in their order."""
        return [Call(seed, self.completions[number]) for number, seed in enumerate(self.seeds)]


def chosen_call(values: Sequence[Any], valid: Sequence[bool], rule: str) -> int | None:
    """The number of the call whose answer counts, by the calls' values and whether they are valid; None if none is.

    By majority, values that are the same JSON are one. Of those that are equally many, as all are where each answer has
    a text of its own, the one counts whose properties agree with those of most answers, then the earliest.
    """
    votes: dict[str, list[int]] = defaultdict(list)
    for number, (value, is_valid) in enumerate(zip(values, valid, strict=True)):
        if is_valid:
            votes["" if rule == FIRST else canonical_json(value)].append(number)
    if not votes:
        return None
    most = max(map(len, votes.values()))
    first_of_most = [numbers[0] for numbers in votes.values() if len(numbers) == most]
    if len(first_of_most) == 1:
        return first_of_most[0]
    properties = {number: _property_texts(values[number]) for numbers in votes.values() for number in numbers}
    times = Counter(pair for pairs in properties.values() for pair in pairs)
    return max(first_of_most, key=lambda number: (sum(times[pair] for pair in properties[number]), -number))


def _property_texts(value: Any) -> list[tuple[str, str]]:
    """Each property of an answer with its value, equal for equal ones; nothing of an answer that is no object."""
    return [(name, canonical_json(part)) for name, part in value.items()] if isinstance(value, dict) else []


def canonical_json(value: Any) -> str:
    """A text that two values share if they are the same JSON: keys in any order, 1 and 1.0 the same number."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def summed(calls: Sequence[Call]) -> Completion:
    """All calls as one: tokens added up, and seconds from the first beginning on."""
    ends = [call.completion for call in calls]
    repeated: Counter[Any] = Counter()
    for end in ends:
        repeated.update(end.repeated_tokens)
    return replace(
        ends[0],
        output_tokens=[token for end in ends for token in end.output_tokens],
        prompt_tokens=sum(end.prompt_tokens for end in ends),
        cached_tokens=sum(end.cached_tokens for end in ends),
        computed_tokens=sum(end.computed_tokens for end in ends),
        copied_tokens=sum(end.copied_tokens for end in ends),
        repeated_tokens=dict(repeated),
        repeated_output_tokens=sum(end.repeated_output_tokens for end in ends),
        forced_tokens=sum(end.forced_tokens for end in ends),
        ttft_seconds=min((end.ttft_seconds for end in ends if end.ttft_seconds is not None), default=None),
        latency_seconds=max((end.latency_seconds for end in ends if end.latency_seconds is not None), default=None),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
