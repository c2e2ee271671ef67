"""A run, from job to answers: read, plan, load, execute, validate, write, and say how it ended.

What is wrong with the job or its model raises JobError or ModelError: nothing was run. What goes wrong later ends the
run as `failed`; finished rows are written first, and the others stay pending.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.request import Completion, FinishReason, Request, SamplingParameters
from jobs.answer_schemas import AnswerSchemas, start_compiling
from jobs.errors import OutputError
from jobs.job_file import resolve_path
from jobs.job_settings import Job
from jobs.model import JobModel, make_engine
from jobs.output_lock import OutputLock
from jobs.plan import Plan, PlannedRow, Planner, RejectedRow, row_seed
from jobs.prompt import PromptBuilder
from jobs.run_record import RunWriter
from jobs.source import InputData, read_input
from jobs.store import AnswerStore, RunRecord

if TYPE_CHECKING:
    from engine.engine import Engine


logger = logging.getLogger(__name__)

RETRY_TEMPERATURE = 0.7
"""The least temperature of a second draw: at 0 it would be the first one again."""


class RunFailedError(Exception):
    """A run that had begun could not even write how it ended."""


@dataclass
class StopRequest:
    """Set from a signal handler to end a run after the step that is on: `signal_number` says by which signal."""

    signal_number: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Tokens are the honest measure: rows of a new document cost far more than its later ones."""

    rows_total: int
    rows_done: int
    rows_failed: int
    prompt_tokens: int  # of rows that have ended
    cached_tokens: int
    tokens_done: int  # prompt tokens computed and output tokens drawn
    tokens_total: int  # an estimate: the answers' lengths are not known
    seconds: float


@dataclass(frozen=True)
class Observer:
    """What a run tells while it goes on. Every function may be left out."""

    on_stage: Callable[[str], None] = lambda stage: None
    on_progress: Callable[[Progress], None] = lambda progress: None
    on_note: Callable[[str], None] = lambda note: None


SILENT = Observer()


@dataclass(frozen=True)
class PreparedJob:
    """A job that has been read and planned, and its model found; no weights are loaded yet."""

    job: Job
    data: InputData
    model: JobModel
    schemas: AnswerSchemas
    plan: Plan
    database: Path


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: its record, as the database has it, and the exit status of the contract."""

    run: RunRecord
    database: Path
    exit_status: int
    unreached_documents: list[str] = field(default_factory=list)  # doc_ids with pending rows


def prepare(job: Job, observer: Observer = SILENT) -> PreparedJob:
    """Read and plan a job. Raises JobError or ModelError for whatever is wrong with it; imports no torch itself."""
    observer.on_stage("finding the model")
    model = JobModel.of(job)
    for note in model.source.notes:
        observer.on_note(note)
    start_compiling(job, model.grammars)
    try:
        return _planned(job, model, observer)
    finally:
        model.grammars.close()


def _planned(job: Job, model: JobModel, observer: Observer) -> PreparedJob:
    observer.on_stage("reading the input")
    data = read_input(job.input, job.folder)
    for path, reason in data.skipped_files:
        observer.on_note(f"{path} was skipped: {reason}")
    if data.merged_rows:
        observer.on_note(f"{data.merged_rows} input rows repeat an earlier row and are answered with it")
    database = resolve_path(job, job.output.database)
    answered = AnswerStore(database, read_only=True).answered_digests() if database.exists() else set()
    observer.on_stage("compiling the schemas")
    schemas = AnswerSchemas(job, model.grammars)
    planner = Planner(
        prompts=PromptBuilder(job.prompt, model.tokenizer),
        schemas=schemas,
        model_fingerprint=model.fingerprint,
        context_length=model.config.context_length,
        sampling=job.sampling,
    )
    observer.on_stage("planning")
    plan = planner.plan(data, answered, lambda rows: observer.on_stage(f"planning, row {rows} of {len(data.rows)}"))
    return PreparedJob(job, data, model, schemas, plan, database)


def run_job(job: Job, *, command: str, stop: StopRequest, observer: Observer = SILENT) -> RunOutcome:
    """Answer everything that has no valid answer yet.

    Raises JobError or ModelError if nothing was run, OutputLocked if another run holds the output.
    """
    started = time.monotonic()
    with OutputLock(resolve_path(job, job.output.database), command):
        prepared = prepare(job, observer)
        return _Run(prepared, stop, observer, started).execute()


class _Run:
    def __init__(self, prepared: PreparedJob, stop: StopRequest, observer: Observer, started: float) -> None:
        self.prepared = prepared
        self.job, self.plan, self.model = prepared.job, prepared.plan, prepared.model
        self.stop = stop
        self.observer = observer
        self.started = self.ready_at = started
        self.planned: dict[int, PlannedRow] = dict(enumerate(self.plan.rows))
        self.pending = set(self.planned)
        self.drawn_again: set[int] = set()
        self.engine = self._load_engine()
        self.store = AnswerStore(prepared.database)
        self.run_id = uuid.uuid4().hex[:12]
        self.writer = RunWriter(self.store, self.run_id, prepared)
        self.exit_status: int | None = None

    def execute(self) -> RunOutcome:
        self.ready_at = time.monotonic()
        self.store.begin_run(self._new_record())
        try:
            self.store.define_schema_views(self.prepared.schemas.used())
            for rejected in self.plan.rejected:
                self.writer.add_rejected(rejected)
            status, error = self._answer_rows()
        except Exception as failure:
            # Whatever it was, finished rows are kept and the run says what happened.
            status, error = "failed", _one_line(failure)
            logger.debug("the run failed", exc_info=failure)
        try:
            self.writer.flush()
            self.store.finish_run(
                self.run_id,
                status,
                error=error,
                seconds=time.monotonic() - self.ready_at,
                forced_tokens=self.writer.forced_tokens,
                load_seconds=self.ready_at - self.started,
            )
            record = self.store.run(self.run_id)
        except OutputError as failure:
            raise RunFailedError(
                f"{error or failure}: what was written before is kept, the rest is pending"
            ) from failure
        assert record is not None
        return RunOutcome(record, self.prepared.database, self._exit_status(record), self._unreached_documents())

    def _load_engine(self) -> Engine | None:
        if not self.plan.rows:
            return None
        self.observer.on_stage("loading the model")
        return make_engine(self.job, self.model, self.plan)

    def _answer_rows(self) -> tuple[str, str | None]:
        """Run the plan. Returns the run's status and, if it did not finish, why."""
        engine = self.engine
        if engine is None:
            return "finished", None
        for completion in engine.submit([self._request(index, row) for index, row in self.planned.items()]):
            self._finish_row(completion)
        budget = self.job.run.time_budget
        while engine.has_work:
            if self.stop.signal_number is not None:
                self.exit_status = 128 + self.stop.signal_number
                return "interrupted", f"stopped by signal {self.stop.signal_number}"
            if budget is not None and time.monotonic() - self.started > budget:
                self.exit_status = 5
                return "out_of_time", f"run.time_budget of {budget:.0f} seconds was used up"
            for completion in engine.step():
                self._finish_row(completion)
            self.writer.flush_if_due()
            self.observer.on_progress(self._progress(engine))
        engine.check()
        return "finished", None

    def _request(self, index: int, planned: PlannedRow) -> Request:
        """The row as a request; its second draw has the next seed and at least RETRY_TEMPERATURE."""
        sampling = self.job.sampling
        row = planned.row
        again = index in self.drawn_again
        return Request(
            request_id=index,
            prompt=planned.prompt,
            sampling=SamplingParameters(
                temperature=max(sampling.temperature, RETRY_TEMPERATURE) if again else sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_tokens,
                seed=row_seed(sampling.seed + again, row.doc_id, row.question_id),
            ),
            grammar=planned.schema.grammar,
            shortest_answer_tokens=planned.schema.grammar.shortest_tokens,
        )

    def _finish_row(self, completion: Completion) -> None:
        planned = self.planned[completion.request_id]
        if self._draws_again(planned, completion):
            return
        self.pending.discard(completion.request_id)
        if completion.finish_reason is FinishReason.TOO_LONG:
            error = f"{planned.row.place}: {completion.error}"
            rejected = RejectedRow(planned.row, "too_long", error, planned.schema.name, len(planned.prompt))
            self.writer.add_rejected(rejected)
            return
        self.writer.add_completed(planned, completion)

    def _draws_again(self, planned: PlannedRow, completion: Completion) -> bool:
        """Submit a row whose finished answer breaks its schema once more; False if it doesn't, or was so before."""
        index = completion.request_id
        if completion.finish_reason is not FinishReason.STOP or index in self.drawn_again or self.engine is None:
            return False
        if planned.schema.validator.check(self.writer.text_of(completion)).error is None:
            return False
        self.drawn_again.add(index)
        self.engine.submit([self._request(index, planned)])
        return True

    def _progress(self, engine: Engine) -> Progress:
        writer = self.writer
        seconds = time.monotonic() - self.ready_at
        answered = max(writer.rows_done - len(self.plan.rejected), 1)
        expected_output = writer.output_tokens / answered if writer.output_tokens else 0.0
        return Progress(
            rows_total=len(self.planned) + len(self.plan.rejected),
            rows_done=writer.rows_done,
            rows_failed=writer.rows_failed,
            prompt_tokens=writer.prompt_tokens,
            cached_tokens=writer.cached_tokens,
            tokens_done=engine.statistics.step_rows,
            tokens_total=self.plan.minimum_tokens + round(expected_output * len(self.planned)),
            seconds=seconds,
        )

    def _exit_status(self, record: RunRecord) -> int:
        if self.exit_status is not None:
            return self.exit_status
        if record.status != "finished":
            return 3
        if record.rows_failed == 0:
            return 0
        return 3 if self.job.run.max_failures.exceeded(record.rows_failed, record.rows_total) else 1

    def _unreached_documents(self) -> list[str]:
        return sorted({self.planned[index].row.doc_id for index in self.pending})

    def _new_record(self) -> RunRecord:
        return RunRecord(
            run_id=self.run_id,
            job_name=self.job.name,
            model=self.model.source.name,
            model_fingerprint=self.model.fingerprint,
            config=json.dumps(self.job.as_dict(), ensure_ascii=False),
            rows_total=self.plan.total_rows,
            rows_reused=self.plan.answered_rows,
        )


def _one_line(failure: Exception) -> str:
    return f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:500].removesuffix(": ")
