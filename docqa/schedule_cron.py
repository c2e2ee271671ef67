"""A nightly run by cron: one line of the user's crontab, between two comments that say whose it is."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from docqa.scheduled_run import ScheduledRun, ScheduleError, machine_time_zone

COMMAND_CHARACTERS = 990
"""Debian's cron takes no longer command."""

_BEGIN = "# docqa schedule: "
_END = "# end of docqa schedule: "


def cron_block(run: ScheduledRun) -> str:
    """The crontab lines. Raises ScheduleError for what cron can't do."""
    if run.time_zone is not None and run.time_zone != machine_time_zone():
        raise ScheduleError(
            f"--time-zone {run.time_zone}: cron goes by the machine's time zone, {machine_time_zone()}; "
            "leave it out, or use --kind systemd"
        )
    environment = [f"{name}={value}" for name, value in run.environment.items()]
    log_file = shlex.quote(str(run.log_file))
    # In a crontab an unescaped % is a line break, also between quotes.
    command = (
        f"cd {shlex.quote(str(run.working_directory))} && {shlex.join(['env', *environment, *run.arguments])} "
        f">>{log_file} 2>&1"
    ).replace("%", r"\%")
    if len(command.encode()) > COMMAND_CHARACTERS:
        raise ScheduleError(
            f"the crontab line would be {len(command.encode())} bytes long, and cron takes {COMMAND_CHARACTERS}; "
            "use --kind systemd, or a shorter PATH, as in --env PATH=/usr/local/bin:/usr/bin:/bin"
        )
    return (
        f"{_BEGIN}{run.job_file}\n"
        f"# Every night at {run.when}.\n"
        "# A run takes all that is new since the last success, so a night that was missed is made up for by the next\n"
        "# one. If a run is still on at that time, the second one ends at once with exit status 4.\n"
        f"{run.minute} {run.hour} * * * {command}\n"
        f"{_END}{run.job_file}\n"
    )


def install_in_crontab(run: ScheduledRun) -> None:
    """Add the job to the user's crontab, in place of what an earlier call added. Raises ScheduleError."""
    block = cron_block(run)
    rest = _without(_read_crontab(), run.job_file)
    _write_crontab(rest + ("" if not rest or rest.endswith("\n") else "\n") + block)


def remove_from_crontab(job_file: Path) -> bool:
    """Take the job out of the user's crontab; False if it was not in. Raises ScheduleError."""
    crontab = _read_crontab()
    rest = _without(crontab, job_file)
    if rest == crontab:
        return False
    _write_crontab(rest)
    return True


def has_crontab() -> bool:
    """Whether this machine has the command."""
    return shutil.which("crontab") is not None


def is_in_crontab(job_file: Path) -> bool:
    """Whether the user's crontab runs the job."""
    return f"{_BEGIN}{job_file}" in _read_crontab().splitlines()


def _without(crontab: str, job_file: Path) -> str:
    """The crontab without the job's lines; every other line stays as it is, byte for byte."""
    kept = []
    inside = False
    for line in crontab.splitlines(keepends=True):
        if line.rstrip("\n") == f"{_BEGIN}{job_file}":
            inside = True
        if not inside:
            kept.append(line)
        if line.rstrip("\n") == f"{_END}{job_file}":
            inside = False
    if inside:
        raise ScheduleError(
            f'the crontab has the line "{_BEGIN}{job_file}" without its end; mend it with crontab -e, then try again'
        )
    return "".join(kept)


def _read_crontab() -> str:
    result = _crontab("-l")
    if result.returncode == 0:
        return result.stdout
    if "no crontab for" in result.stderr:
        return ""
    # Never taken for an empty one: writing would then delete the user's other lines.
    raise ScheduleError(f"crontab -l failed, so nothing was changed: {_told(result)}")


def _write_crontab(crontab: str) -> None:
    result = _crontab("-", crontab)
    if result.returncode != 0:
        raise ScheduleError(f"crontab did not take the new lines, so nothing was changed: {_told(result)}")


def _crontab(argument: str, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["crontab", argument],
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            env={**os.environ, "LC_ALL": "C"},  # "no crontab for" is told apart by its words
        )
    except FileNotFoundError:
        raise ScheduleError(
            "there is no crontab command on this machine; install cron, or use --kind systemd"
        ) from None


def _told(result: subprocess.CompletedProcess[str]) -> str:
    return " ".join(result.stderr.split()) or f"status {result.returncode}"
