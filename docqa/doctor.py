"""`docqa doctor`: whether a run would work here, and what to do where it would not."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from docqa.doctor_check import FAIL, OK, WARN, Check
from docqa.doctor_job import check_input, check_job_file, check_output, check_schemas
from docqa.doctor_machine import check_device, check_disk, check_versions
from docqa.doctor_model import check_memory, check_model
from docqa.exit_status import NOTHING_RUN
from docqa.options import json_option
from docqa.plain_console import plain_console
from engine.model_source import cache_folder
from jobs.job_file import job_from_settings, resolve_path
from jobs.job_settings import Job

_STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


@click.command("doctor")
@click.argument("job_file", required=False, type=click.Path(path_type=Path), metavar="[JOB]")
@click.option("--model", envvar="DOCQA_MODEL", metavar="M", help="Check this model instead of the job's.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    envvar="DOCQA_SET",
    metavar="KEY=VALUE",
    help="Set any key of the job file, as in engine.kv_memory=4GiB.",
)
@json_option
def command(job_file: Path | None, model: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check model, tokenizer, device, memory, disk, lock, versions, and that nothing needs the network.

    Without JOB, the machine and the embedded model. Exit status 2: something would keep a run from working.
    """
    checks = checks_of(job_file, model, overrides)
    if as_json:
        passed = all(check.status != FAIL for check in checks)
        click.echo(json.dumps({"ok": passed, "checks": [asdict(check) for check in checks]}, ensure_ascii=False))
    else:
        print_checks(checks, plain_console())
    sys.exit(NOTHING_RUN if any(check.status == FAIL for check in checks) else 0)


def checks_of(job_file: Path | None, model_path: str | None, overrides: Sequence[str]) -> list[Check]:
    """Every check that can be made; those that rest on one that failed are left out."""
    checks = check_versions()
    if job_file is None:
        # A job without input: only its model and where it would write are looked at.
        job: Job | None = job_from_settings({"input": {"documents": ["*"]}}, Path.cwd(), overrides)
    else:
        check, job = check_job_file(job_file, overrides)
        checks.append(check)
    if job is None:
        return checks
    if model_path is not None:
        there = Path(model_path)
        path = str(there.absolute()) if there.exists() else model_path
        job = replace(job, model=replace(job.model, path=path))
    if job_file is not None:
        checks.append(check_input(job))
    of_model, model = check_model(job)
    checks += of_model
    device_check, device, dtype = check_device(job.model, job.engine.kv_dtype)
    checks.append(device_check)
    if model is not None:
        if device is not None and dtype is not None:
            checks.append(check_memory(job, model, device, dtype))
        if job_file is not None:
            checks.append(check_schemas(job, model))
    checks.append(check_disk("cache", cache_folder()))
    if job_file is not None:
        checks.append(check_disk("disk", resolve_path(job, job.output.database).resolve().parent, must_exist=True))
        checks += check_output(job)
    return checks


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """A line for each check, and below it what to do."""
    for check in checks:
        line = Text.assemble((f"{check.status:<5}", _STYLES[check.status]), f"{check.name:<11}{check.text}")
        console.print(line, soft_wrap=True)
        if check.advice:
            console.print(Text(f"{'':<16}to do: {check.advice}"), soft_wrap=True)
    failed, warned = (sum(check.status == status for check in checks) for status in (FAIL, WARN))
    last = "A run would work." if not failed else f"{failed} of {len(checks)} checks failed; a run would not work."
    console.print(last + (f" {warned} to know about." if warned else ""), highlight=False)
