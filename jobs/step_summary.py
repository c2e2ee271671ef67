"""The steps of a run in few numbers: neighbours are put together as they come, so that no run holds many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.step_record import StepRecord

MOST_BUCKETS = 1_000
"""Buckets that a run has at most; half as many at least, once it has so many steps."""

_LARGEST = ("running_rows", "kv_pages")


@dataclass(slots=True)
class StepBucket:
    """Steps that followed each other: sums of what they did, the most rows and pages that one of them had.

    `seconds` are those from the end of the bucket before (of the first, from the start of the run's work) to its own
    end; what `prompt_seconds`, `output_seconds` and `mask_seconds` leave of them was spent outside the engine.
    """

    started_seconds: float  # after the run was ready
    seconds: float
    steps: int
    prompt_tokens: int  # positions of prompts that were computed
    output_tokens: int
    prompt_seconds: float
    output_seconds: float
    mask_seconds: float
    running_rows: int
    kv_pages: int

    def add(self, next_one: StepBucket) -> None:
        """Take in the bucket that follows."""
        for name in STEP_COLUMNS[1:]:
            mine, other = getattr(self, name), getattr(next_one, name)
            setattr(self, name, max(mine, other) if name in _LARGEST else mine + other)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


STEP_COLUMNS = tuple(column.name for column in fields(StepBucket))


class StepSummary:
    """Collects steps in buckets of as many steps each, twice as many whenever there are MOST_BUCKETS."""

    def __init__(self, most_buckets: int = MOST_BUCKETS) -> None:
        self._most_buckets = most_buckets
        self._steps_a_bucket = 1
        self._ended_seconds = 0.0
        self.buckets: list[StepBucket] = []

    def add(self, step: StepRecord, ended_seconds: float) -> None:
        """A step that ended so many seconds after the run was ready."""
        one = StepBucket(
            started_seconds=self._ended_seconds,
            seconds=ended_seconds - self._ended_seconds,
            steps=1,
            prompt_tokens=step.prompt_tokens,
            output_tokens=step.output_tokens,
            prompt_seconds=step.prompt_seconds,
            output_seconds=step.output_seconds,
            mask_seconds=step.mask_seconds,
            running_rows=step.running_rows,
            kv_pages=step.pages_used,
        )
        self._ended_seconds = ended_seconds
        if self.buckets and self.buckets[-1].steps < self._steps_a_bucket:
            self.buckets[-1].add(one)
            return
        if len(self.buckets) == self._most_buckets:
            self.buckets = merged_buckets(self.buckets, 2)
            self._steps_a_bucket *= 2
        self.buckets.append(one)


def merged_buckets(buckets: Sequence[StepBucket], count: int) -> list[StepBucket]:
    """Each `count` neighbours as one; the last may be of fewer."""
    merged = []
    for start in range(0, len(buckets), count):
        bucket = StepBucket(**asdict(buckets[start]))
        for other in buckets[start + 1 : start + count]:
            bucket.add(other)
        merged.append(bucket)
    return merged
