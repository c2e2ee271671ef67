"""A nightly run by systemd: a service and a timer of the user's own."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from docqa.scheduled_run import ScheduledRun, ScheduleError

_OWNER = "# docqa schedule: "


def unit_name(job_name: str) -> str:
    """The name of a job's units, without `.service` or `.timer`."""
    return "docqa-" + (re.sub(r"[^A-Za-z0-9_.]+", "-", job_name).strip("-.") or "job")


def units(run: ScheduledRun, name: str) -> dict[str, str]:
    """The two unit files by their names."""
    zone = f" {run.time_zone}" if run.time_zone is not None else ""
    environment = "".join(f"Environment={_quoted(f'{key}={value}')}\n" for key, value in run.environment.items())
    program, *arguments = run.arguments
    # A dollar sign begins a variable in every word but the first.
    command = " ".join([_quoted(program), *(_quoted(argument).replace("$", "$$") for argument in arguments)])
    service = f"""\
{_OWNER}{run.job_file}
[Unit]
Description=docqa run of {_escaped(run.job_name)}

[Service]
Type=oneshot
WorkingDirectory={_escaped(str(run.working_directory))}
{environment}ExecStart={command}
StandardOutput=append:{_escaped(str(run.log_file))}
StandardError=append:{_escaped(str(run.log_file))}
TimeoutStartSec=infinity
# To stop, docqa alone gets SIGTERM; it ends the step that is on, writes what is finished and ends its helpers.
KillMode=mixed
TimeoutStopSec=120
"""
    timer = f"""\
{_OWNER}{run.job_file}
# Every night at {run.when}.
# Nights that were missed while the machine was off are made up for by one run when it is on again. systemd starts no
# second run while one is on.
[Unit]
Description=docqa run of {_escaped(run.job_name)}, every night at {run.at}

[Timer]
OnCalendar=*-*-* {run.at}:00{zone}
Persistent=true
AccuracySec=1min

[Install]
WantedBy=timers.target
"""
    return {f"{name}.service": service, f"{name}.timer": timer}


def unit_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where systemd looks for a user's own units."""
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def install_units(run: ScheduledRun, name: str) -> list[str]:
    """Write the units and start the timer, in place of what an earlier call made; returns notes for the user.

    Raises ScheduleError, and leaves no half-installed units then.
    """
    folder = unit_folder()
    files = {folder / file: text for file, text in units(run, name).items()}
    for path in files:
        if path.exists() and not _belongs_to(path, run.job_file):
            raise ScheduleError(f"{path} belongs to something else; choose another name with --name")
    _systemctl("--version")
    for old in installed_names(run.job_file):
        if old != name:
            _remove(old)
    before = {path: path.read_bytes() if path.exists() else None for path in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        _systemctl("daemon-reload")
        _systemctl("enable", f"{name}.timer")
        # Started anew, so that a timer that is on already takes the new time.
        _systemctl("restart", f"{name}.timer")
    except (OSError, ScheduleError) as error:
        _put_back(before, name)
        if isinstance(error, ScheduleError):
            raise
        raise ScheduleError(f"{folder}: the units can't be written ({error.strerror})") from error
    if any(Path("/var/lib/systemd/linger", user).exists() for user in _names_of_user()):
        return []
    return ["the timer runs only while you are logged in; to let it run always, once: loginctl enable-linger"]


def _put_back(before: Mapping[Path, bytes | None], name: str) -> None:
    """Undo a half-done installation, as far as systemd and the disk allow."""
    if None in before.values():
        with suppress(ScheduleError):
            _systemctl("disable", f"{name}.timer")
    for path, content in before.items():
        with suppress(OSError):
            path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    with suppress(ScheduleError):
        _systemctl("daemon-reload")


def remove_units(job_file: Path) -> bool:
    """Stop the job's timer and delete its units; False if it has none. Raises ScheduleError."""
    names = installed_names(job_file)
    for name in names:
        _remove(name)
    return bool(names)


def installed_names(job_file: Path) -> list[str]:
    """The names of the job's units."""
    services = sorted(unit_folder().glob("docqa-*.service"))
    return [path.stem for path in services if _belongs_to(path, job_file)]


def _remove(name: str) -> None:
    _systemctl("disable", "--now", f"{name}.timer")
    for ending in (".timer", ".service"):
        (unit_folder() / f"{name}{ending}").unlink(missing_ok=True)
    _systemctl("daemon-reload")


def _names_of_user() -> list[str]:
    try:
        return [pwd.getpwuid(os.getuid()).pw_name]
    except KeyError:  # in a container a user may have a number only
        return []


def _belongs_to(path: Path, job_file: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace").startswith(f"{_OWNER}{job_file}\n")
    except OSError:
        return False


def _escaped(text: str) -> str:
    """A text that is a whole value: only the percent sign is special."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """A text that is one word of a value."""
    return '"' + _escaped(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _systemctl(*arguments: str) -> None:
    try:
        result = subprocess.run(
            ["systemctl", "--user", *arguments], capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except FileNotFoundError:
        raise ScheduleError("there is no systemctl command on this machine; use --kind cron") from None
    if result.returncode != 0:
        told = " ".join(result.stderr.split()) or f"status {result.returncode}"
        raise ScheduleError(
            f"systemctl --user {' '.join(arguments)} failed: {told}; a user's timers need a login session of that user "
            "(sudo and su make none); without one, use --kind cron"
        )
