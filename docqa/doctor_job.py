"""Checks of a job: its file, input, schemas, output and lock. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from docqa.doctor_check import FAIL, OK, WARN, Check
from jobs.answer_schemas import AnswerSchemas
from jobs.errors import InputError, JobError, JobFileError
from jobs.job_file import load_job, resolve_path
from jobs.job_settings import Job
from jobs.journal import journal_path, unpublished_rows
from jobs.model import JobModel
from jobs.output_lock import lock_holder
from jobs.source_files import BadFile, find_files, open_file
from jobs.store import AnswerStore, OutputBusy
from jobs.store_schema import STORE_VERSION

PATIENCE_SECONDS = 2.0


def check_job_file(path: Path, overrides: Sequence[str]) -> tuple[Check, Job | None]:
    """Whether the job file can be used; `overrides` are those of --set."""
    try:
        return Check("job file", OK, f"{path}"), load_job(path, overrides)
    except JobFileError as error:
        return Check("job file", FAIL, str(error), "correct the file; docqa init writes one that works"), None


def check_input(job: Job) -> Check:
    """Whether every input file is there and its footer can be read; rows are not."""
    files = rows = 0
    bad: list[str] = []
    try:
        for setting, patterns in (("documents", job.input.documents), ("questions", job.input.questions)):
            for file in find_files(patterns, job.folder, f"input.{setting}")[0] if patterns else []:
                try:
                    rows += open_file(file).metadata.num_rows
                    files += 1
                except BadFile as error:
                    bad.append(f"{file.name}: {error}")
    except InputError as error:
        return Check("input", FAIL, str(error), "correct the paths in [input]")
    text = f"{files:,} file{'s' if files != 1 else ''}, {rows:,} rows of Parquet"
    if not bad:
        return Check("input", OK, text)
    listed = f"{len(bad):,} can't be read as Parquet ({'; '.join(bad[:5])})"
    skipped = job.input.on_bad_file == "skip" and files > 0
    return Check("input", WARN if skipped else FAIL, f"{text}; {listed}", "write these files again")


def check_schemas(job: Job, model: JobModel) -> Check:
    """Whether the job's schemas can be enforced with this model's tokens."""
    try:
        schemas = AnswerSchemas(job, model.grammars)
    except JobFileError as error:
        return Check("schemas", FAIL, str(error), "correct the schema")
    finally:
        model.grammars.close()
    names = [str(one["schema"]) for one in schemas.compiled()]
    if not names:
        return Check("schemas", OK, "none in the job file; every row must name its own")
    return Check("schemas", OK, f"{', '.join(names)}: enforced while decoding")


def check_output(job: Job) -> list[Check]:
    """Whether the database is one of ours, of a version we know, and free; and whether answers wait to get in."""
    database = resolve_path(job, job.output.database)
    holder = lock_holder(database)
    if holder is None:
        lock = Check("lock", OK, "no run holds the output")
    else:
        lock = Check("lock", WARN, f"a run holds the output: {holder}", "wait for it, or start yours with --wait 1h")
    checks = [_database(database), lock]
    try:
        waiting = unpublished_rows(database) if journal_path(database).exists() and holder is None else 0
    except JobError as error:
        return [*checks, Check("journal", FAIL, str(error), "do as it says, then run again")]
    if waiting:
        advice = f"docqa status {database} --publish, or run the job"
        checks.append(Check("journal", WARN, f"{waiting:,} answers wait to get into the database", advice))
    return checks


def _database(database: Path) -> Check:
    if not database.exists():
        return Check("database", OK, f"{database} will be made by the first run")
    try:
        store = AnswerStore(database, read_only=True, lock_timeout_seconds=PATIENCE_SECONDS)
        runs = len(store.runs())
    except OutputBusy as error:
        advice = "close that program; meanwhile answers would wait in the journal"
        return Check("database", WARN, str(error), advice)
    except JobError as error:
        return Check("database", FAIL, str(error), "name another file as output.database, or bring it in order")
    text = f"{database}, {runs:,} run{'s' if runs != 1 else ''}"
    if store.version < STORE_VERSION:
        text += f"; of store version {store.version}, the next run brings it to {STORE_VERSION}"
        return Check("database", WARN, text, "nothing, unless an older docqa must read it too: then make a copy first")
    return Check("database", OK, text)
