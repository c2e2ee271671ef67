"""`docqa retry`."""

from __future__ import annotations

import sys

import click

from docqa.exit_status import HELP
from docqa.job_options import JobOptions, job_options
from docqa.run import RunOptions, execute, run_options
from jobs.resume import Selection


@click.command("retry", epilog=HELP)
@job_options
@run_options
def command(job_options: JobOptions, run_options: RunOptions) -> None:
    """Answer again only the rows that have no valid answer.

    Takes the rows whose latest status is not ok. Give other limits with --set, as in --set sampling.max_tokens=512.
    Earlier attempts stay as history.
    """
    sys.exit(execute(job_options, run_options, Selection.FAILED))
