"""From a job to its plan: the model is found, the input read, the schemas compiled. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobs.answer_schemas import AnswerSchemas, start_compiling
from jobs.dependencies import needed_keys
from jobs.identity import RequestIdentity
from jobs.job_file import resolve_path
from jobs.job_settings import Job
from jobs.model import JobModel
from jobs.observe import SILENT, Observer
from jobs.plan import Plan
from jobs.planner import Planner
from jobs.prompt import PromptBuilder
from jobs.prompt_cut import DocumentCut
from jobs.prompt_split import DocumentSplit
from jobs.resume import AnswerHistory, Selection
from jobs.source import InputData, read_input

SHOWN_SKIPPED_FILES = 5


@dataclass(frozen=True)
class PreparedJob:
    """A job that has been read and planned, and its model found; no weights are loaded yet."""

    job: Job
    data: InputData
    model: JobModel
    schemas: AnswerSchemas
    prompts: PromptBuilder
    planner: Planner
    plan: Plan
    database: Path


def prepare(job: Job, observer: Observer = SILENT, select: Selection = Selection.UNANSWERED) -> PreparedJob:
    """Read and plan a job: the rows that `select` takes on. Writes nothing.

    Raises JobError or ModelError for whatever is wrong with it.
    """
    observer.on_stage("finding the model")
    model = JobModel.of(job)
    for note in model.source.notes:
        observer.on_note(note)
    start_compiling(job, model.grammars)
    try:
        return _planned(job, model, observer, select)
    finally:
        model.grammars.close()


def _planned(job: Job, model: JobModel, observer: Observer, select: Selection) -> PreparedJob:
    observer.on_stage("reading the input")
    data = read_input(job.input, job.folder)
    _note_skipped(data, observer)
    if data.merged_rows:
        observer.on_note(f"{data.merged_rows} input rows repeat an earlier row and are answered with it")
    if data.unasked_documents:
        observer.on_note(f"{data.unasked_documents} documents have no question, so nothing is asked of them")
    if data.hidden_columns:
        names = ", ".join(map(repr, data.hidden_columns))
        observer.on_note(
            f"documents and questions both have columns named {names}; rows carry those of the questions, also as "
            "{{ extra }} in prompt.document: rename one side's to have both"
        )
    database = resolve_path(job, job.output.database)
    history = AnswerHistory.of(database, needed_keys(data.rows))
    observer.on_stage("compiling the schemas")
    schemas = AnswerSchemas(job, model.grammars)
    prompts = PromptBuilder(job.prompt, model.tokenizer)
    for note in prompts.notes:
        observer.on_note(note)
    context_length, max_tokens = model.config.context_length, job.sampling.max_tokens
    document_cut = None
    if job.run.on_too_long == "truncate":
        vocabulary = model.grammars.vocabulary
        document_cut = DocumentCut(prompts, vocabulary, context_length=context_length, max_tokens=max_tokens)
    document_split = None
    if job.run.on_too_long == "split":
        document_split = DocumentSplit(prompts, job.split, context_length=context_length, max_tokens=max_tokens)
    planner = Planner(
        prompts=prompts,
        schemas=schemas,
        identity=RequestIdentity(
            prompt=job.prompt,
            sampling=job.sampling,
            model_fingerprint=model.fingerprint,
            dtype=job.model.dtype,
            kv_dtype=job.engine.kv_dtype,
        ),
        context_length=context_length,
        max_tokens=max_tokens,
        document_cut=document_cut,
        samples=job.sampling.samples,
        document_split=document_split,
    )
    observer.on_stage("planning")
    plan = planner.plan(
        data, history, select, lambda rows: observer.on_stage(f"planning, row {rows} of {len(data.rows)}")
    )
    return PreparedJob(job, data, model, schemas, prompts, planner, plan, database)


def _note_skipped(data: InputData, observer: Observer) -> None:
    """Say which files were passed over; of many, the first few. Bad ones, whose rows are missing, come first."""
    bad = set(data.bad_files)
    others = [entry for entry in data.skipped_files if entry not in bad]
    for entries, kind in ((data.bad_files, "can't be read"), (others, "are no Parquet")):
        for path, reason in entries[:SHOWN_SKIPPED_FILES]:
            observer.on_note(f"{path} was skipped: {reason}")
        if len(entries) > SHOWN_SKIPPED_FILES:
            observer.on_note(f"and {len(entries) - SHOWN_SKIPPED_FILES:,} more files that {kind} were skipped")
