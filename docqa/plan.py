"""`docqa plan`: what a run would do."""

from __future__ import annotations

import json
import time

import click

from docqa.job_options import JobOptions, job_options
from docqa.options import json_option, quiet_option
from docqa.plain_console import plain_console
from docqa.plan_summary import plan_summary
from docqa.plan_view import print_plan
from docqa.run_log import TextLog, observer_of
from docqa.what_if_view import print_what_if, what_if_summary
from jobs.prepare import prepare


@click.command("plan")
@job_options
@quiet_option
@json_option
@click.option(
    "--what-if",
    "with_what_if",
    is_flag=True,
    envvar="DOCQA_WHAT_IF",
    help="Also simulate what other orders and caches would compute, in pools of several sizes.",
)
def command(job_options: JobOptions, quiet: bool, as_json: bool, with_what_if: bool) -> None:
    """Say what a run would do, without loading weights."""
    started = time.monotonic()
    with TextLog(quiet=quiet) as log:
        prepared = prepare(job_options.load(default_output="answers.duckdb"), observer_of(log))
        summary = plan_summary(prepared, prepare_seconds=time.monotonic() - started)
        if with_what_if:
            log.stage("simulating")
            summary["what_if"] = what_if_summary(prepared)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
        return
    console = plain_console()
    print_plan(summary, console)
    if with_what_if:
        print_what_if(summary["what_if"], console)
