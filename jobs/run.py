"""A run, from job to answers: read, plan, load, execute, validate, write, and say how it ended.

What is wrong with the job or its model raises JobError or ModelError: nothing was run. What goes wrong later ends the
run as `failed`; finished rows are kept, and the others stay pending.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ModelError
from engine.request import Completion, Request
from jobs.errors import OutputError
from jobs.job_file import resolve_path
from jobs.job_settings import Job
from jobs.journal_records import RunEnding
from jobs.model import check_kv_device, choose_device, make_engine
from jobs.observe import SILENT, Observer, Progress, Stopped, StopRequest
from jobs.output_lock import OutputLock
from jobs.plan import RejectedRow
from jobs.prepare import PreparedJob, prepare
from jobs.publish import publish_pending
from jobs.resume import Selection, open_existing
from jobs.run_feed import RowFeed
from jobs.run_output import START_WAIT_SECONDS, RunOutput
from jobs.run_progress import RunProgress
from jobs.run_record import RunWriter
from jobs.run_requests import RowRequests
from jobs.run_rows import RunRows
from jobs.run_statistics import RunStatistics
from jobs.store import RunRecord
from jobs.store_records import utc_now

if TYPE_CHECKING:
    from engine.engine import Engine

__all__ = [
    "Observer", "PreparedJob", "Progress", "RunOutcome", "Selection", "StopRequest", "prepare", "run_job",
]  # fmt: skip

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: its record, and the exit status of the contract.

    The database has the same record, unless `rows_waiting` answers are still in the journal (see `docqa status`), or
    the run was stopped before it began: then there is no such run.
    """

    run: RunRecord
    database: Path
    exit_status: int
    unreached_documents: list[str] = field(default_factory=list)  # doc_ids with pending rows
    rows_waiting: int = 0


def run_job(
    job: Job,
    *,
    command: str,
    stop: StopRequest,
    observer: Observer = SILENT,
    select: Selection = Selection.UNANSWERED,
    wait_seconds: float = 0.0,
) -> RunOutcome:
    """Answer the rows that `select` takes on.

    While another run holds the output, or another process writes to the database, it waits up to `wait_seconds`. A
    process that only reads is no hindrance: answers wait in the journal then. Raises JobError or ModelError if nothing
    was run, OutputLocked or OutputBusy if the output was held for too long.
    """
    database = resolve_path(job, job.output.database)
    lock = OutputLock(
        database,
        command,
        wait_seconds=wait_seconds,
        on_wait=lambda holder: observer.on_note(f"waiting for another run on {database}: {holder}"),
        on_poll=stop.check,
    )
    try:
        with lock:
            started, started_at = time.monotonic(), utc_now()
            report = publish_pending(database, wait_seconds=START_WAIT_SECONDS, locked=True)
            if report.rows_published:
                observer.on_note(f"{report.rows_published} answers of an earlier run were published")
            if report.note is not None:
                observer.on_note(report.note)
            with stop.interrupting():
                open_existing(database, wait_seconds)
                prepared = prepare(job, observer, select)
                if prepared.plan.rows:
                    # A GPU that is not here, or is too old, is found before anything is written.
                    check_kv_device(job.engine.kv_dtype, job.model.dtype, choose_device(job.model.device))
            for note in prepared.plan.notes:
                observer.on_note(note)
            return _Run(prepared, stop, observer, started, started_at).execute()
    except Stopped as stopped:
        record = RunRecord(run_id=_new_run_id(), job_name=job.name, status="interrupted", error=_stop_text(stopped))
        return RunOutcome(record, database, 128 + stopped.signal_number)


class _Run:
    def __init__(
        self, prepared: PreparedJob, stop: StopRequest, observer: Observer, started: float, started_at: datetime
    ) -> None:
        self.prepared = prepared
        self.job, self.plan, self.model = prepared.job, prepared.plan, prepared.model
        self.stop = stop
        self.observer = observer
        self.started = self.ready_at = started
        self.feed = RowFeed(
            self.plan,
            prepared.planner,
            prepared.data.documents,
            on_rejected=self._reject,
            on_reused=lambda row: self.writer.count_reused(),
        )
        self.requests = RowRequests(self.job.sampling, log_probabilities=self.job.answer.confidence)
        self.statistics = RunStatistics()
        self.progress = RunProgress(prepared, observer, prepare_seconds=time.monotonic() - started)
        self.engine: Engine | None = None
        self.run = self._new_record(started_at)
        self.output = RunOutput(prepared.database, observer.on_note)
        self.writer = RunWriter(self.output, self.run, prepared)
        self.rows = RunRows(
            self.plan,
            prepared.planner,
            self.feed,
            self.requests,
            self.writer,
            choose=self.job.sampling.choose,
            submit_again=self._submit_again,
        )
        self.exit_status: int | None = None

    def execute(self) -> RunOutcome:
        record = None
        try:
            # Written down before the weights are read: an output that can't be written is found in time.
            self.output.begin(self.run, self.prepared.schemas.used())
            try:
                status, error = self._load_and_answer()
            except ModelError as failure:
                self._end("failed", _one_line(failure))
                raise
            except Stopped as stopped:
                status, error = self._stopped(stopped.signal_number)
            except Exception as failure:
                # Whatever it was, finished rows are kept and the run says what happened.
                status, error = "failed", _one_line(failure)
                logger.debug("the run failed", exc_info=failure)
            record = self._end(status, error)
        finally:
            self.output.close()
            self.progress.ended(record)
        return RunOutcome(
            record,
            self.prepared.database,
            self._exit_status(record),
            self.rows.unreached_documents(),
            self.output.rows_waiting,
        )

    def _load_and_answer(self) -> tuple[str, str | None]:
        with self.stop.interrupting():
            if self.plan.rows:
                self.progress.stage("loading the model")
                self.engine = make_engine(self.job, self.model, self.plan)
        self.ready_at = time.monotonic()
        for rejected in self.plan.rejected:
            self.writer.add_rejected(rejected)
        return self._answer_rows()

    def _answer_rows(self) -> tuple[str, str | None]:
        """Run the plan. Returns the run's status and, if it did not finish, why."""
        engine = self.engine
        if engine is None:
            return "finished", None
        engine.feed(self.feed.requests(engine, self.requests.of_row))
        budget = self.job.run.time_budget
        while engine.has_work:
            if self.stop.signal_number is not None:
                self._take_completions(engine, engine.drain())
                return self._stopped(self.stop.signal_number)
            if budget is not None and time.monotonic() - self.started > budget:
                self._take_completions(engine, engine.drain())
                self.exit_status = 5
                unreached = len(self.rows.unreached_documents())
                return "out_of_time", (
                    f"run.time_budget of {budget:g} seconds was used up; {self.rows.pending} rows of "
                    f"{unreached} documents are pending, and the next run answers them"
                )
            self._take_completions(engine, engine.step())
            self.output.keep_up()
            self.progress.tell(self.writer, time.monotonic() - self.ready_at)
        engine.check()
        assert not self.rows.pending, "rows are left that nothing runs for"
        return "finished", None

    def _take_completions(self, engine: Engine, completions: list[Completion]) -> None:
        """Write down the step that the engine finished, if any, and what it ended; go on with what waited for that."""
        self.statistics.add_step(engine, time.monotonic() - self.ready_at)
        self.progress.add_step(engine.last_step, completions)
        while completions:
            for completion in completions:
                self.statistics.add_completion(completion)
                self.rows.request_ended(completion)
            completions = self._go_on(engine)

    def _go_on(self, engine: Engine) -> list[Completion]:
        """Hand over the rows that waited for what has ended; returns those of them that can never run."""
        completions = self.feed.go_on(engine, self.requests.of_row)
        self.feed.end_holds(engine)
        self.rows.take_in_new()
        return completions

    def _reject(self, rejected: RejectedRow) -> None:
        self.writer.add_rejected(rejected)

    def _submit_again(self, request: Request) -> None:
        assert self.engine is not None
        self.engine.submit([request], first=True)

    def _stopped(self, signal_number: int) -> tuple[str, str]:
        self.exit_status = 128 + signal_number
        return "interrupted", _stop_text(Stopped(signal_number))

    def _end(self, status: str, error: str | None) -> RunRecord:
        """Publish, and write down how the run ended; what goes wrong with that is how it ended."""
        try:
            self.output.publish()
        except OutputError as failure:
            status, error = "failed", error or str(failure)
        ending = self._ending(status, error)
        try:
            self.output.end(ending)
        except OutputError as failure:
            ending = self._ending("failed", error or str(failure))
        return self.writer.record(ending)

    def _ending(self, status: str, error: str | None) -> RunEnding:
        now = time.monotonic()
        ready = self.ready_at > self.started
        return RunEnding(
            run_id=self.run.run_id,
            status=status,
            error=error,
            forced_tokens=self.writer.forced_tokens,
            load_seconds=(self.ready_at if ready else now) - self.started,
            seconds=now - self.ready_at if ready else 0.0,
            statistics=self._statistics_text(),
            steps=[bucket.as_dict() for bucket in self.statistics.steps.buckets],
            rows_reused=self.run.rows_reused + self.writer.rows_reused,
        )

    def _statistics_text(self) -> str | None:
        if self.engine is None:
            return None
        page_size = self.engine.settings.page_size
        return self.statistics.as_json(self.engine, smallest_pages=self.plan.pages_for_longest_row(page_size))

    def _exit_status(self, record: RunRecord) -> int:
        if record.status == "failed":
            return 3
        if self.exit_status is not None:
            return self.exit_status
        if record.rows_failed == 0:
            return 0 if record.bad_files is None else 1
        return 3 if self.job.run.max_failures.exceeded(record.rows_failed, record.rows_total) else 1

    def _new_record(self, started_at: datetime) -> RunRecord:
        return RunRecord(
            run_id=_new_run_id(),
            job_name=self.job.name,
            started_at=started_at,  # before it was planned, as load_seconds are counted
            model=self.model.source.name,
            model_fingerprint=self.model.fingerprint,
            config=json.dumps(self.job.as_dict(), ensure_ascii=False),
            rows_total=self.plan.total_rows,
            rows_reused=self.plan.answered_rows,
            bad_files=_bad_files_text(self.prepared.data.bad_files),
        )


def _bad_files_text(bad_files: list[tuple[str, str]]) -> str | None:
    if not bad_files:
        return None
    return json.dumps([{"file": name, "reason": reason} for name, reason in bad_files], ensure_ascii=False)


def _new_run_id() -> str:
    return uuid.uuid4().hex[:12]


def _stop_text(stopped: Stopped) -> str:
    return f"stopped by signal {stopped.signal_number}; finished answers are kept, and the next run does the rest"


def _one_line(failure: Exception) -> str:
    text = " ".join(str(failure).split())
    if isinstance(failure, OutputError | ModelError):  # a sentence for the user
        return text
    return f"{type(failure).__name__}: {text}"[:500].removesuffix(": ")
