"""`docqa run`, and what `docqa retry` shares with it."""

from __future__ import annotations

import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from docqa.exit_status import ENDED_ABNORMALLY, HELP, exit_status_of
from docqa.job_options import JobOptions, job_options
from docqa.log_lines import JsonLog
from docqa.on_finish import run_on_finish
from docqa.options import json_option, quiet_option, wait_option
from docqa.run_log import RunLog, TextLog, observer_of
from docqa.run_summary import run_summary, unrecorded_summary
from docqa.stop_signals import stop_signals
from jobs.job_file import resolve_path
from jobs.observe import StopRequest
from jobs.resume import Selection
from jobs.run import run_job


@dataclass(frozen=True)
class RunOptions:
    """What the command line says of a run, apart from its job."""

    wait: float | None
    log_format: str
    on_finish: str | None
    quiet: bool
    as_json: bool

    def log(self) -> RunLog:
        """The log of the chosen format."""
        return JsonLog(quiet=self.quiet) if self.log_format == "json" else TextLog(quiet=self.quiet)


_OPTIONS = [
    wait_option,
    click.option("--log-format", type=click.Choice(["text", "json"]), default="text", envvar="DOCQA_LOG_FORMAT",
                 help="How to write on stderr; json is one object a line, with UTC time."),
    click.option("--on-finish", envvar="DOCQA_ON_FINISH", metavar="COMMAND",
                 help="Shell command to run at the end, however the run ended; it gets the JSON summary on stdin."),
    quiet_option,
    json_option,
]  # fmt: skip


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorates a click command with the options; they reach it together, as the keyword `run_options`."""
    names = tuple(RunOptions.__dataclass_fields__)

    @wraps(command)
    def with_options(*arguments: Any, **options: Any) -> None:
        run_options = RunOptions(**{name: options.pop(name) for name in names})
        command(*arguments, run_options=run_options, **options)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options


@click.command("run", epilog=HELP)
@job_options
@run_options
@click.option(
    "--rerun", is_flag=True, envvar="DOCQA_RERUN", help="Answer every row again; older answers stay as history."
)
def command(job_options: JobOptions, run_options: RunOptions, rerun: bool) -> None:
    """Answer everything that has no answer yet.

    JOB is a job file (TOML). Without one, --documents, --schema and --output say what to do.
    """
    sys.exit(execute(job_options, run_options, Selection.ALL if rerun else Selection.UNANSWERED))


def execute(job_options: JobOptions, options: RunOptions, select: Selection) -> int:
    """Run a job, tell how it ended on stderr, stdout and to the --on-finish command; returns the exit status."""
    log = options.log()
    stop = StopRequest()
    with stop_signals(stop, lambda: log.note("the terminal hung up; the run goes on")):
        with log:
            summary = _run(job_options, options, select, stop, log)
        log.finished(summary)
        if options.as_json:
            _print_data(json.dumps(summary, ensure_ascii=False), log)
        if options.on_finish:
            fault = run_on_finish(options.on_finish, summary)
            if fault is not None:
                log.error(fault)
    return summary["exit_status"]


def _run(
    job_options: JobOptions, options: RunOptions, select: Selection, stop: StopRequest, log: RunLog
) -> dict[str, Any]:
    job_name = database = None
    try:
        job = job_options.load()
        job_name, database = job.name, str(resolve_path(job, job.output.database))
        outcome = run_job(
            job,
            command=shlex.join(sys.argv),
            stop=stop,
            observer=observer_of(log),
            select=select,
            wait_seconds=options.wait or 0.0,
        )
    except click.ClickException:
        raise
    except Exception as error:
        return _failure(error, log, job_name, database)
    return run_summary(outcome)


def _failure(error: Exception, log: RunLog, job_name: str | None, database: str | None) -> dict[str, Any]:
    status = exit_status_of(error)
    if status is None:
        for line in traceback.format_exc().splitlines():
            log.error(line)
        error = RuntimeError(f"{type(error).__name__}: {error}; this is a fault of docqa, please report it")
        status = ENDED_ABNORMALLY
    return unrecorded_summary(error, status, job_name=job_name, database=database)


def _print_data(text: str, log: RunLog) -> None:
    """Print to stdout; a reader that is gone, or a full disk, changes nothing about how the run ended."""
    try:
        click.echo(text)
    except OSError as error:
        log.error(f"the summary could not be printed: {error.strerror}")
        with suppress(OSError):  # or Python would try to write the rest when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
