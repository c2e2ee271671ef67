"""How far a run is: told to its observer and to `docqa status` while it goes on, and kept as its speed at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.forward_work import ForwardWork
from engine.request import Completion
from jobs.observe import Observer, Progress
from jobs.prepare import PreparedJob
from jobs.progress_file import ProgressFile
from jobs.run_record import RunWriter
from jobs.run_speed import record_run_speed
from jobs.speed_meter import SpeedMeter
from jobs.store import RunRecord
from jobs.time_estimate import PlannedWork, speed_setting, time_estimate

if TYPE_CHECKING:
    from engine.step_record import StepRecord


class RunProgress:
    """Of one run, which took `prepare_seconds` to plan. Whoever makes one holds the output's lock."""

    def __init__(self, prepared: PreparedJob, observer: Observer, *, prepare_seconds: float) -> None:
        self._observer = observer
        self._file = ProgressFile(prepared.database)
        self._prepare_seconds = prepare_seconds
        plan = prepared.plan
        self._rows_total = plan.rows_to_run + len(plan.rejected)
        self._minimum_tokens = plan.minimum_tokens  # counted once: it looks at every row
        self._max_tokens = prepared.job.sampling.max_tokens
        self._setting = speed_setting(prepared.job, prepared.model)
        work = ForwardWork.of(prepared.model.config)
        self._planned = PlannedWork.of(plan, work, self._max_tokens)
        estimate = time_estimate(self._planned, work, self._setting)
        self._meter = SpeedMeter(self._planned, work, None if estimate is None else estimate.output_tokens)

    def stage(self, name: str) -> None:
        """The run has come to a stage before its first token."""
        self._file.stage(name)
        self._observer.on_stage(name)

    def add_step(self, step: StepRecord | None, completions: list[Completion]) -> None:
        """The engine's newest step and the requests that ended with it."""
        self._meter.add_step(step)
        for completion in completions:
            self._meter.add_completion(completion)

    def tell(self, writer: RunWriter, seconds: float) -> None:
        """Say how far the run is, `seconds` after it was ready; `writer` knows the rows that have ended."""
        meter = self._meter
        output_tokens = meter.output_tokens_total
        if output_tokens is None:  # no answer yet, and no earlier run: half of what they may have
            output_tokens = self._max_tokens / 2 * self._planned.requests
        progress = Progress(
            rows_total=self._rows_total,
            rows_done=writer.rows_done,
            rows_failed=writer.rows_failed,
            prompt_tokens=writer.prompt_tokens,
            cached_tokens=writer.cached_tokens,
            tokens_done=meter.prompt_tokens + meter.output_tokens,
            tokens_total=self._minimum_tokens + round(output_tokens),
            seconds=seconds,
            seconds_left=meter.seconds_left(seconds),
        )
        self._file.progress(progress)
        self._observer.on_progress(progress)

    def ended(self, record: RunRecord | None) -> None:
        """The run has ended; there is no record if that could not be written.

        The speed is kept of a run that did all it had to, unless it had nothing to compute.
        """
        self._file.remove()
        if record is None or record.status != "finished" or not self._meter.prompt_tokens:
            return
        assert record.seconds is not None
        assert record.load_seconds is not None
        model_seconds = max(record.load_seconds - self._prepare_seconds, 0.0)
        record_run_speed(self._meter.run_speed(self._setting, model_seconds=model_seconds, seconds=record.seconds))
