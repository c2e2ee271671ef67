"""Measures a run while it goes on: how fast it is, and so how long the rest takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.forward_work import ForwardWork
from engine.request import Completion, FinishReason
from jobs.run_speed import RunSpeed, SpeedSetting
from jobs.time_estimate import PlannedWork

if TYPE_CHECKING:
    from engine.step_record import StepRecord


LONGER = 1.5
"""An answer that is as long as was to be expected, and goes on, is taken to have become so many times as long at its
end, but no longer than it may be: how long such answers get is not known, and 0 seconds left would be wrong."""


class SpeedMeter:
    """Adds up the steps and completions of one run. `expected_output_tokens` of an answer, where earlier runs say."""

    def __init__(self, planned: PlannedWork, work: ForwardWork, expected_output_tokens: float | None) -> None:
        self._planned = planned
        self._work = work
        self._expected_output_tokens = expected_output_tokens
        self._prompt_flops = 0
        self._prompt_seconds = 0.0
        self._output_flops = 0
        self._output_seconds = 0.0
        self._finished = 0
        self._finished_output_tokens = 0
        self._running = 0
        self.prompt_tokens = 0  # computed
        self.output_tokens = 0  # drawn, also of rows that have not ended

    def add_step(self, step: StepRecord | None) -> None:
        """The engine's newest step, if there was one."""
        if step is None:
            return
        self._running = step.running_rows
        self.prompt_tokens += step.prompt_tokens
        self.output_tokens += step.output_tokens
        self._prompt_flops += step.prompt_flops
        self._prompt_seconds += step.prompt_seconds
        self._output_seconds += step.output_seconds + step.mask_seconds

    def add_completion(self, completion: Completion) -> None:
        """A request that has ended; one that never ran doesn't count."""
        if completion.finish_reason is FinishReason.TOO_LONG:
            return
        tokens = len(completion.output_tokens)
        self._finished += 1
        self._finished_output_tokens += tokens
        self._output_flops += self._work.flops(completion.prompt_tokens, tokens)

    @property
    def output_tokens_total(self) -> float | None:
        """Output tokens of the whole run, as far as can be said: by earlier runs, and more and more by its own answers.

        The answers that end first are short ones. Those that are longer already than was to be expected are not at
        their end either: how much longer, see LONGER.
        """
        mean = self._mean_output_tokens()
        if mean is None:
            return None
        going_on = max(self._planned.requests - self._finished, 0)
        running = min(self._running, going_on)
        left = mean * (going_on - running)
        if running:
            written = (self.output_tokens - self._finished_output_tokens) / running
            longer = min(LONGER * written, max(self._planned.most_output_tokens, written))
            left += running * (mean if written < mean else longer)
        return max(self._finished_output_tokens + left, float(self.output_tokens))

    def _mean_output_tokens(self) -> float | None:
        """Of an answer; None while nothing says how long they are."""
        if not self._finished:
            return self._expected_output_tokens
        mean = self._finished_output_tokens / self._finished
        if self._expected_output_tokens is None:
            return mean
        share = min(self._finished / self._planned.requests, 1.0)
        return share * mean + (1 - share) * self._expected_output_tokens

    def seconds_left(self, seconds: float) -> float | None:
        """What is left takes at the speeds so far, `seconds` after the first step began; None while one is unknown."""
        total = self.output_tokens_total
        busy = self._prompt_seconds + self._output_seconds
        if total is None or not self.output_tokens or not busy:
            return None
        prompt_left = max(self._planned.prompt_flops - self._prompt_flops, 0)
        left = (total - self.output_tokens) * self._output_seconds / self.output_tokens
        if prompt_left:
            if not self._prompt_flops:
                return None
            left += prompt_left * self._prompt_seconds / self._prompt_flops
        return left * max(seconds / busy, 1.0)

    def run_speed(self, setting: SpeedSetting, *, model_seconds: float, seconds: float) -> RunSpeed:
        """The run's record, when it has taken `seconds` from its first step to its end."""
        return RunSpeed(
            setting=setting,
            answers=self._planned.answers,
            rows=self._planned.rows,
            requests=self._planned.requests,
            prompt_flops=self._prompt_flops,
            prompt_seconds=self._prompt_seconds,
            output_tokens=self.output_tokens,
            output_flops=self._output_flops,
            output_seconds=self._output_seconds,
            other_seconds=max(seconds - self._prompt_seconds - self._output_seconds, 0.0),
            model_seconds=model_seconds,
        )
