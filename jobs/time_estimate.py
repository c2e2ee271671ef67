"""How long a run will take, from the speed of earlier runs on this machine, and how far such estimates were off.

A run is counted in what costs time: the arithmetic of its prompts and of its answers (attention over long contexts
included), its rows, and loading the model. Each has a speed, that of earlier runs with the same model and settings.
Runs with the same schemas and max_tokens count first, since their answers are as long, and runs of about the same size.
The error is what the same rule would have said of each of these runs, had it known the others alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from statistics import median
from typing import TYPE_CHECKING

from engine.forward_work import ForwardWork
from jobs.job_settings import Job
from jobs.machine import machine_name
from jobs.plan import Plan, PlannedRow
from jobs.run_speed import RunSpeed, SpeedSetting, run_speeds

if TYPE_CHECKING:
    from jobs.model import JobModel

RUNS_USED = 5
"""Of earlier runs, so many count: the newest."""

NEAR_FACTOR = 10
"""Runs whose prompts differ by no more than this are of about the same size."""


@dataclass(frozen=True)
class PlannedWork:
    """What a run will compute. `answers` is as in RunSpeed; `mean_prompt_tokens` says where its outputs begin."""

    answers: str
    rows: int
    requests: int
    prompt_flops: int
    mean_prompt_tokens: float
    most_output_tokens: int

    @classmethod
    def of(cls, plan: Plan, work: ForwardWork, max_tokens: int) -> PlannedWork:
        """The work of a plan.

        Of rows that wait for answers of others, and of what combines the answers of pieces, no more is known than how
        long they may be: that counts, so the estimate of such a plan is on the long side. Answers are combined at once;
        what more than fit in a prompt takes beyond that is little beside the pieces.
        """
        asked = [row for row in plan.rows if row.same_as is None]
        flops = sum(work.flops(row.prompt_tokens - row.minimum_tokens, row.minimum_tokens) for row in asked)
        flops += sum(
            work.flops(len(dependent.prefix), max(dependent.reserve_tokens - max_tokens, len(dependent.known_rest)))
            for dependent in plan.dependents
        )
        flops += sum(
            work.flops(0, min(_combining_tokens(row, max_tokens), max(plan.combining_tokens - max_tokens, 0)))
            for row in asked
            if row.part is not None and row.is_whole
        )
        prompt_tokens = sum(row.prompt_tokens for row in asked) + plan.dependent_known_tokens
        mean = prompt_tokens / max(len(asked) + len(plan.dependents), 1)
        schemas = sorted({row.schema.text for row in plan.rows} | {row.schema.text for row in plan.dependents})
        answers = sha256("\n".join([str(max_tokens), *schemas]).encode()).hexdigest()[:16]
        requests = sum(row.samples for row in asked) + len(plan.dependents) + plan.rows_split
        return cls(answers, plan.rows_to_run, requests, flops, mean, max_tokens)


def _combining_tokens(first_piece: PlannedRow, max_tokens: int) -> int:
    """Tokens of the prompt that combines the answers of a row's pieces, if all of them are as long as they may be."""
    assert first_piece.part is not None
    around = first_piece.prompt_tokens - first_piece.segments.used_document_tokens
    return around + first_piece.part.count * max_tokens


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of a run by what takes them; planning, which is done when a plan is shown, is not in them.

    `error` is the largest share by which the rule was off for the runs that it uses; None for a single one, of which
    nothing can be said. `same_answers` is false if none of them had the schemas and max_tokens of this one.
    """

    model_seconds: float
    prompt_seconds: float
    output_seconds: float
    other_seconds: float
    output_tokens: float  # of a row
    runs: int
    same_answers: bool
    error: float | None

    @property
    def seconds(self) -> float:
        """From loading the model to the last answer."""
        return self.model_seconds + self.prompt_seconds + self.output_seconds + self.other_seconds


def speed_setting(job: Job, model: JobModel) -> SpeedSetting:
    """What a job's speed depends on, beside its work."""
    return SpeedSetting(
        machine=machine_name(),
        model_fingerprint=model.fingerprint,
        device=job.model.device,
        dtype=job.model.dtype,
        deterministic=job.engine.deterministic,
        kv_dtype=job.engine.kv_dtype,
    )


def time_estimate(planned: PlannedWork, work: ForwardWork, setting: SpeedSetting) -> TimeEstimate | None:
    """The estimate for a plan; None if no run of this model and these settings has finished on this machine."""
    speeds = run_speeds(setting)
    speeds = [speed for speed in speeds if speed.answers == planned.answers] or speeds
    near = [speed for speed in speeds if _is_near(speed.prompt_flops, planned.prompt_flops)]
    return estimate_from(planned, work, (near or speeds)[-RUNS_USED:])


def _is_near(first: float, second: float) -> bool:
    return max(first, second) <= NEAR_FACTOR * min(first, second)


def estimate_from(planned: PlannedWork, work: ForwardWork, speeds: Sequence[RunSpeed]) -> TimeEstimate | None:
    """The estimate from these runs; None if there are none."""
    if not speeds:
        return None
    output_tokens = _output_tokens(speeds, planned.most_output_tokens)
    whole = max(round(output_tokens), 1)
    flops_a_token = work.flops(round(planned.mean_prompt_tokens), whole) / whole
    flops = planned.requests * output_tokens * flops_a_token
    model, prompt, output, other = _seconds(speeds, planned.prompt_flops, flops, planned.rows)
    return TimeEstimate(
        model_seconds=model,
        prompt_seconds=prompt,
        output_seconds=output,
        other_seconds=other,
        output_tokens=output_tokens,
        runs=len(speeds),
        same_answers=any(speed.answers == planned.answers for speed in speeds),
        error=_largest_error(speeds, planned.most_output_tokens),
    )


def _output_tokens(speeds: Sequence[RunSpeed], most: int) -> float:
    """Tokens of an answer."""
    requests = sum(speed.requests for speed in speeds)
    return min(sum(speed.output_tokens for speed in speeds) / requests, most) if requests else 0.0


def _seconds(
    speeds: Sequence[RunSpeed], prompt_flops: float, output_flops: float, rows: int
) -> tuple[float, float, float, float]:
    """Seconds to load, for prompts, for output and for the rest at the speed of these runs."""

    def at_speed(amount: float, seconds: float, done: float) -> float:
        return amount * seconds / done if done else 0.0

    return (
        median(speed.model_seconds for speed in speeds),
        at_speed(prompt_flops, sum(s.prompt_seconds for s in speeds), sum(s.prompt_flops for s in speeds)),
        at_speed(output_flops, sum(s.output_seconds for s in speeds), sum(s.output_flops for s in speeds)),
        at_speed(rows, sum(s.other_seconds for s in speeds), sum(s.rows for s in speeds)),
    )


def _largest_error(speeds: Sequence[RunSpeed], most_output_tokens: int) -> float | None:
    """How far off the rule would have been for each run, from the others alone."""
    errors = []
    for place, real in enumerate(speeds):
        others = [*speeds[:place], *speeds[place + 1 :]]
        if not others or real.seconds <= 0:
            continue
        tokens_a_row = real.output_tokens / real.requests if real.requests else 0.0
        as_long = _output_tokens(others, most_output_tokens) / tokens_a_row if tokens_a_row else 1.0
        said = sum(_seconds(others, real.prompt_flops, real.output_flops * as_long, real.rows))
        errors.append(abs(said - real.seconds) / real.seconds)
    return max(errors, default=None)
