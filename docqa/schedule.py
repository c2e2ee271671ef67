"""`docqa schedule`: a job every night, by cron or systemd."""

from __future__ import annotations

import json
import os
import zoneinfo
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from docqa.job_options import JobOptions
from docqa.options import json_option, quiet_option
from docqa.run import command as run_command
from docqa.schedule_cron import cron_block, has_crontab, install_in_crontab, is_in_crontab, remove_from_crontab
from docqa.schedule_systemd import install_units, installed_names, remove_units, unit_folder, unit_name, units
from docqa.scheduled_run import (
    ScheduledRun,
    ScheduleError,
    carried_environment,
    docqa_command,
    machine_time_zone,
    time_of_day,
)


@click.command("schedule")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB")
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- RUN-OPTIONS]")
@click.option("--at", envvar="DOCQA_AT", metavar="HH:MM", help="When to start, every night, as in 02:00.")
@click.option(
    "--kind",
    type=click.Choice(["auto", "cron", "systemd"]),
    default="auto",
    envvar="DOCQA_KIND",
    help="auto: systemd on a machine that it runs, else cron.",
)
@click.option(
    "--time-zone",
    envvar="DOCQA_TIME_ZONE",
    metavar="ZONE",
    help="The zone of --at, as in Europe/Berlin; the machine's if not given. systemd only.",
)
@click.option(
    "--log-file",
    type=click.Path(path_type=Path),
    envvar="DOCQA_LOG_FILE",
    metavar="FILE",
    help="Where the runs' log is appended; JOB with the ending .log if not given.",
)
@click.option(
    "--env",
    "variables",
    multiple=True,
    envvar="DOCQA_ENV",
    metavar="NAME[=VALUE]",
    help="Give the run a further environment variable; may be given several times.",
)
@click.option("--name", envvar="DOCQA_NAME", metavar="NAME", help="The name of the systemd units, without docqa-.")
@click.option("--install", is_flag=True, envvar="DOCQA_INSTALL", help="Do it, and don't just print it.")
@click.option("--remove", is_flag=True, envvar="DOCQA_REMOVE", help="Undo --install.")
@quiet_option
@json_option
def command(
    job_file: Path,
    run_options: tuple[str, ...],
    at: str | None,
    kind: str,
    time_zone: str | None,
    log_file: Path | None,
    variables: tuple[str, ...],
    name: str | None,
    install: bool,
    remove: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run a job every night: print what cron or systemd needs for it, or --install it.

    The nightly run does what `docqa run JOB RUN-OPTIONS` would do, typed here: the current directory, PATH, and the
    variables of docqa, the Hugging Face cache and the GPU choice go with it. It takes everything new since the last
    success. Options after -- are for the run, as in -- --set run.time_budget=5h --on-finish ./tell-me.
    """
    job_file = Path(os.path.abspath(job_file))
    if install and remove:
        raise click.UsageError("Give --install or --remove, not both.")
    if remove:
        removed = _remove(job_file, kind)
        if as_json:
            click.echo(json.dumps({"job_file": str(job_file), "removed": removed}))
        _tell(f"{job_file} is no longer run every night; {' and '.join(removed)} had it", quiet)
        return
    if at is None:
        raise click.UsageError("Say when, as in --at 02:00.")
    if kind == "auto":
        kind = "systemd" if Path("/run/systemd/system").is_dir() else "cron"
    run = _scheduled_run(job_file, run_options, at, time_zone, log_file, variables)
    unit = unit_name(name or run.job_name)
    if kind == "cron":
        texts = {"crontab": cron_block(run)}
    else:
        texts = {str(unit_folder() / file): text for file, text in units(run, unit).items()}
    notes = _install(run, kind, unit) if install else []
    if as_json:
        click.echo(json.dumps(_summary(run, kind, texts, installed=install, notes=notes), ensure_ascii=False))
    elif not install:
        parts = texts.values() if kind == "cron" else (f"# {place}\n{text}" for place, text in texts.items())
        click.echo("\n".join(parts), nl=False)
    for note in notes:
        _tell(note, quiet)
    _tell(
        f"{job_file} is run every night at {run.when}, by {kind}; its log is {run.log_file}"
        if install
        else f"nothing was changed; with --install, {kind} runs {job_file} every night at {run.when}",
        quiet,
    )


def _scheduled_run(
    job_file: Path,
    run_options: tuple[str, ...],
    at: str,
    time_zone: str | None,
    log_file: Path | None,
    variables: tuple[str, ...],
) -> ScheduledRun:
    try:
        hour, minute = time_of_day(at)
        if time_zone is not None:
            zoneinfo.ZoneInfo(time_zone)
    except zoneinfo.ZoneInfoNotFoundError:
        raise ScheduleError(f"--time-zone {time_zone}: no such zone; write it as in Europe/Berlin") from None
    except ValueError as error:
        raise ScheduleError(f"--at or --time-zone: {error}") from None
    log_file = Path(os.path.abspath(log_file or job_file.with_suffix(".log")))
    if not os.access(log_file.parent, os.W_OK | os.X_OK):
        raise ScheduleError(f"--log-file {log_file}: the folder is not there or not writable; name another file")
    # What the run would refuse at night is refused now.
    parsed = run_command.make_context("docqa run", [str(job_file), *run_options])
    job = JobOptions(**{name: parsed.params[name] for name in JobOptions.__dataclass_fields__}).load()
    # A log is read by date; text lines have none.
    has_format = parsed.get_parameter_source("log_format") is not ParameterSource.DEFAULT
    log_format = () if has_format else ("--log-format", "json")
    return ScheduledRun(
        job_file=job_file,
        job_name=job.name,
        hour=hour,
        minute=minute,
        time_zone=time_zone,
        arguments=(*docqa_command(), "run", str(job_file), *log_format, *run_options),
        environment=carried_environment(variables, os.environ),
        working_directory=Path.cwd(),
        log_file=log_file,
    )


def _summary(
    run: ScheduledRun, kind: str, texts: dict[str, str], *, installed: bool, notes: list[str]
) -> dict[str, Any]:
    return {
        "kind": kind,
        "job_file": str(run.job_file),
        "at": run.at,
        "time_zone": run.time_zone or machine_time_zone(),
        "command": list(run.arguments),
        "environment": dict(run.environment),
        "working_directory": str(run.working_directory),
        "log_file": str(run.log_file),
        "texts": texts,
        "installed": installed,
        "notes": notes,
    }


def _install(run: ScheduledRun, kind: str, unit: str) -> list[str]:
    """Returns notes for the user."""
    is_elsewhere = (
        bool(installed_names(run.job_file)) if kind == "cron" else has_crontab() and is_in_crontab(run.job_file)
    )
    if is_elsewhere:
        other = "systemd" if kind == "cron" else "cron"
        raise ScheduleError(
            f"{run.job_file} is run by {other} already; first: docqa schedule {run.job_file} --remove --kind {other}"
        )
    if kind == "cron":
        install_in_crontab(run)
        return []
    return install_units(run, unit)


def _remove(job_file: Path, kind: str) -> list[str]:
    """Returns the kinds that had the job. Raises ScheduleError if none had."""
    removed = []
    if kind in ("auto", "systemd") and remove_units(job_file):
        removed.append("systemd")
    # Where there is no cron at all, only one who asks for it needs to be told.
    if (kind == "cron" or (kind == "auto" and has_crontab())) and remove_from_crontab(job_file):
        removed.append("cron")
    if not removed:
        where = "by neither cron nor systemd" if kind == "auto" else f"not by {kind}"
        raise ScheduleError(f"{job_file} is run every night {where}; nothing was removed")
    return removed


def _tell(text: str, quiet: bool) -> None:
    if not quiet:
        click.echo(f"docqa: {text}", err=True)
