"""The command line: `docqa run`, `plan`, `report`, `schema`. Data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from docqa import __version__
from docqa.plan_view import plan_summary, print_plan
from docqa.progress import ProgressDisplay
from docqa.report import print_report, report_of
from docqa.schema_view import print_schema, schema_summary
from engine.errors import ModelError
from grammars import BACKENDS
from jobs.errors import JobError
from jobs.job_file import job_from_settings, load_job
from jobs.job_settings import DEFAULT_MODEL, Job
from jobs.output_lock import OutputLocked
from jobs.run import Observer, RunFailedError, RunOutcome, StopRequest, prepare, run_job
from jobs.store import AnswerStore, OutputBusy

EXIT_STATUS_HELP = """
\b
Exit status:
  0  every row is ok
  1  finished, some rows failed (within run.max_failures)
  2  bad command line, job file, schema or input: nothing was run
  3  ended abnormally: engine or disk failure, or more failures than allowed
  4  another run holds the output
  5  stopped at the time budget; the rest is pending
  130, 143  interrupted by SIGINT, SIGTERM
"""


@click.group(epilog=EXIT_STATUS_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Answers many questions about many documents, and writes valid JSON answers to DuckDB."""


def _job_options(command: Callable[..., None]) -> Callable[..., None]:
    """The ways to say what to run: a job file, or the same settings as flags."""
    options = [
        click.argument("job_file", required=False, type=click.Path(path_type=Path), metavar="[JOB]"),
        click.option("--documents", multiple=True, envvar="DOCQA_DOCUMENTS", metavar="PATH",
                     help="Parquet files, folders or globs with documents; may be given several times."),
        click.option("--questions", multiple=True, envvar="DOCQA_QUESTIONS", metavar="PATH",
                     help="Parquet files with questions, for the layout of two tables."),
        click.option("--schema", envvar="DOCQA_SCHEMA", metavar="FILE",
                     help="JSON Schema file, or a stock schema's name."),
        click.option("--output", envvar="DOCQA_OUTPUT", metavar="DB", help="DuckDB file for the answers."),
        click.option("--model", envvar="DOCQA_MODEL", metavar="M",
                     help="Model: the embedded default, a local folder, a GGUF file, or a Hugging Face id."),
        click.option("--column", "columns", multiple=True, envvar="DOCQA_COLUMN", metavar="NAME=COLUMN",
                     help="Read NAME (document, question, ...) from another column, as in document=body."),
        click.option("--set", "overrides", multiple=True, envvar="DOCQA_SET", metavar="KEY=VALUE",
                     help="Set any key of the job file, as in engine.kv_memory=4GiB."),
        click.option("--lenient", is_flag=True, envvar="DOCQA_LENIENT",
                     help="Run also with a schema that can't be enforced whole; the rest is checked after."),
        click.option("--quiet", is_flag=True, envvar="DOCQA_QUIET", help="Nothing on stderr but errors."),
        click.option("--json", "as_json", is_flag=True, envvar="DOCQA_JSON", help="Print the result as JSON."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _load(job_file: Path | None, flags: dict[str, Any], overrides: tuple[str, ...]) -> Job:
    """The job of a file or of flags; flags win over the file, and --set over both."""
    flag_overrides = [f"input.columns.{column}" for column in flags["columns"]]
    if flags["lenient"]:
        flag_overrides.append("answer.lenient=true")
    if job_file is None:
        if not flags["documents"]:
            raise click.UsageError("Give a job file, or --documents with --schema and --output.")
        for name in ("schema", "output"):
            if flags[name] is None:
                raise click.UsageError(f"--{name} is needed where there is no job file.")
        settings = {
            "job": {"name": Path(flags["output"]).stem},
            "input": {"documents": list(flags["documents"]), "questions": list(flags["questions"]) or None},
            "answer": {"schema": flags["schema"]},
            "model": {"path": flags["model"]},
            "output": {"database": flags["output"]},
        }
        return job_from_settings(settings, Path.cwd(), [*flag_overrides, *overrides], source="the command line")
    # A path on the command line is relative to where the user stands, one in the job file to the file.
    for key, value in (("answer.schema", flags["schema"]), ("output.database", flags["output"])):
        if value is not None:
            is_path = key == "output.database" or Path(value).exists()
            flag_overrides.append(f"{key}={os.path.abspath(value) if is_path else value}")
    if flags["model"] is not None:
        model = os.path.abspath(flags["model"]) if Path(flags["model"]).exists() else flags["model"]
        flag_overrides.append(f"model.path={model}")
    for key in ("documents", "questions"):
        if flags[key]:
            flag_overrides.append(f"input.{key}={json.dumps([os.path.abspath(path) for path in flags[key]])}")
    return load_job(job_file, [*flag_overrides, *overrides])


@cli.command(epilog=EXIT_STATUS_HELP)
@_job_options
def run(job_file: Path | None, quiet: bool, as_json: bool, overrides: tuple[str, ...], **flags: Any) -> None:
    """Answer everything that has no answer yet.

    JOB is a job file (TOML). Without one, --documents, --schema and --output say what to do.
    """
    stop = StopRequest()
    with _signals(stop), ProgressDisplay(quiet=quiet) as display:
        observer = Observer(on_stage=display.stage, on_progress=display.progress, on_note=display.note)
        job = _load(job_file, flags, overrides)
        outcome = run_job(job, command=shlex.join(sys.argv), stop=stop, observer=observer)
    _print_outcome(outcome, as_json=as_json, quiet=quiet)
    sys.exit(outcome.exit_status)


@cli.command()
@_job_options
def plan(job_file: Path | None, quiet: bool, as_json: bool, overrides: tuple[str, ...], **flags: Any) -> None:
    """Say what a run would do, without loading weights."""
    if job_file is None and flags["output"] is None:
        flags["output"] = "answers.duckdb"
    with ProgressDisplay(quiet=quiet) as display:
        observer = Observer(on_stage=display.stage, on_note=display.note)
        prepared = prepare(_load(job_file, flags, overrides), observer)
    summary = plan_summary(prepared)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
    else:
        print_plan(summary, Console())


@cli.command()
@click.argument("database", type=click.Path(path_type=Path), metavar="DB")
@click.option("--run", "run_id", envvar="DOCQA_RUN", metavar="ID", help="The run to report; the latest if not given.")
@click.option("--json", "as_json", is_flag=True, envvar="DOCQA_JSON", help="Print the report as JSON.")
def report(database: Path, run_id: str | None, as_json: bool) -> None:
    """Show reuse, speed and failures of a run."""
    found = report_of(AnswerStore(database, read_only=True), run_id)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        print_report(found, Console())


@cli.command()
@click.argument("schema", metavar="FILE")
@click.option("--model", default=DEFAULT_MODEL, envvar="DOCQA_MODEL", metavar="M", help="Whose tokens to use.")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    envvar="DOCQA_BACKEND",
    help="What enforces the schema; auto chooses.",
)
@click.option(
    "--lenient",
    is_flag=True,
    envvar="DOCQA_LENIENT",
    help="Accept a schema that can't be enforced whole; the rest is checked after.",
)
@click.option("--json", "as_json", is_flag=True, envvar="DOCQA_JSON", help="Print the report as JSON.")
def schema(schema: str, model: str, backend: str, lenient: bool, as_json: bool) -> None:
    """Say what of a JSON Schema is enforced while decoding, what is checked after, and what is refused.

    FILE is a JSON Schema, or the name of one that comes with docqa. Exit status 2: it is refused.
    """  # fmt: skip
    summary = schema_summary(schema, model, backend=backend, lenient=lenient)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
    else:
        print_schema(summary, Console())
    sys.exit(0 if summary["accepted"] else 2)


def _print_outcome(outcome: RunOutcome, *, as_json: bool, quiet: bool) -> None:
    run_record = outcome.run
    if as_json:
        summary = asdict(run_record) | {
            "started_at": run_record.started_at.isoformat(),
            "finished_at": run_record.finished_at.isoformat() if run_record.finished_at else None,
            "config": json.loads(run_record.config),
            "rows_pending": run_record.rows_pending,
            "database": str(outcome.database),
            "exit_status": outcome.exit_status,
        }
        click.echo(json.dumps(summary, ensure_ascii=False))
    if run_record.error is not None:
        click.echo(f"docqa: {run_record.error}", err=True)
    if quiet:
        return
    parts = [f"{run_record.rows_ok} ok", f"{run_record.rows_failed} failed"]
    if run_record.rows_reused:
        parts.append(f"{run_record.rows_reused} answered before")
    if run_record.rows_pending:
        parts.append(f"{run_record.rows_pending} pending")
    click.echo(
        f"Run {run_record.run_id} {run_record.status}: {', '.join(parts)}. Answers: {outcome.database}", err=True
    )
    if outcome.unreached_documents:
        shown = ", ".join(outcome.unreached_documents[:10])
        more = len(outcome.unreached_documents) - 10
        click.echo(f"Documents with pending rows: {shown}{f' and {more} more' if more > 0 else ''}", err=True)


@contextmanager
def _signals(stop: StopRequest) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the run to stop, a second one ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.signal_number is not None:
            os._exit(128 + number)
        stop.signal_number = number

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main() -> None:
    """Entry point. A user's mistake is one sentence on stderr, never a traceback."""
    # The output may go to a log in an ASCII locale: it escapes then, and does not fail.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except OutputLocked as error:
        _fail(error, 4)
    except OutputBusy as error:
        _fail(error, 4)
    except RunFailedError as error:
        _fail(error, 3)
    except (JobError, ModelError) as error:
        _fail(error, 2)


def _fail(error: Exception, status: int) -> None:
    click.echo(f"docqa: {error}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
