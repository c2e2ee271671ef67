"""A nightly run, as cron or systemd is told of it: what is run, when, where, and with which environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import JobError

CARRIED_VARIABLES = frozenset(
    {"PATH", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"}
)
"""What a scheduler does not know and a run may need; DOCQA_ variables are carried too. Tokens are not: they would
stand readable in a unit file."""


class ScheduleError(JobError):
    """The job can't be scheduled, or its schedule not be removed."""


@dataclass(frozen=True)
class ScheduledRun:
    """One run a night. `arguments` is the whole command, `working_directory` and `log_file` are absolute."""

    job_file: Path
    job_name: str
    hour: int
    minute: int
    time_zone: str | None  # None: the machine's
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    working_directory: Path
    log_file: Path

    def __post_init__(self) -> None:
        texts = [str(self.job_file), str(self.working_directory), str(self.log_file), *self.arguments]
        for text in [*texts, *(f"{name}={value}" for name, value in self.environment.items())]:
            if any(ord(character) < 32 or ord(character) == 127 for character in text):
                raise ScheduleError(f"{text!r} holds a control character, which no schedule can hold; rename it")

    @property
    def at(self) -> str:
        """The time of day, as in 02:00."""
        return f"{self.hour:02}:{self.minute:02}"

    @property
    def when(self) -> str:
        """The time with its zone, in words."""
        if self.time_zone is not None:
            return f"{self.at} in the time zone {self.time_zone}"
        return f"{self.at} in the machine's time zone, {machine_time_zone()}"


def docqa_command() -> tuple[str, ...]:
    """How to start this very docqa from anywhere."""
    script = Path(sys.executable).with_name("docqa")
    # -P: a folder of the user's that is named like a module must not be taken for it.
    return (str(script),) if script.exists() else (sys.executable, "-P", "-m", "docqa.main")


def time_of_day(text: str) -> tuple[int, int]:
    """Hour and minute of `02:00` or `2:00`. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,2}):(\d{2})", text, re.ASCII)
    if not found or int(found[1]) > 23 or int(found[2]) > 59:
        raise ValueError(f"{text!r} is no time of day; write it as in 02:00, from 00:00 to 23:59")
    return int(found[1]), int(found[2])


def carried_environment(given: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables a scheduled run gets: those that it may need, and `given` as NAME=VALUE, or NAME for its value now.

    Raises ScheduleError for a given one that is not set or badly written.
    """
    carried = {
        name: value for name, value in environment.items() if name in CARRIED_VARIABLES or name.startswith("DOCQA_")
    }
    for entry in given:
        name, equals, value = entry.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ScheduleError(f"--env {entry}: write it as NAME=VALUE, or NAME for the value it has now")
        if not equals and name not in environment:
            raise ScheduleError(f"--env {name}: the variable is not set; write it as {name}=VALUE")
        carried[name] = value if equals else environment[name]
    return dict(sorted(carried.items()))


def machine_time_zone() -> str:
    """The zone that cron and systemd go by. It is the machine's, whatever TZ says for this user."""
    target = os.path.realpath("/etc/localtime")
    _, found, name = target.partition("zoneinfo/")
    if found:
        return name
    try:
        return Path("/etc/timezone").read_text(encoding="utf-8").strip() or "UTC"
    except OSError:
        return "UTC"  # what both take where nothing is said
