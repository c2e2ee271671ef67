"""How far the run on a database is, in a small file beside it, for `docqa status` while the run goes on.

The database can't say it: it has finished rows only, and those late. The file is written anew every few seconds and
removed at the end. One that a killed run left behind names a process that does not hold the output; the next run
replaces it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic

from jobs.observe import Progress

WRITE_SECONDS = 2.0
"""How often the file is written."""


@dataclass(frozen=True, slots=True)
class RunStage:
    """What the process of a run is doing: a stage such as loading the model, or `answering`, and how far it is."""

    pid: int
    stage: str
    progress: Progress | None = None


class ProgressFile:
    """Writes the progress of one run. Whoever makes one holds the output's lock.

    Nothing depends on the file, so a full disk or a folder that can't be written is let pass.
    """

    def __init__(self, database: Path) -> None:
        self._path = _path(database)
        self._new = self._path.with_name(self._path.name + ".new")
        self._now = RunStage(os.getpid(), "starting")
        self._written_at = float("-inf")

    def stage(self, name: str) -> None:
        """The run has come to a stage."""
        self._now = replace(self._now, stage=name)
        self._write()

    def progress(self, progress: Progress) -> None:
        """How far the run is with its answers; written when it is time to."""
        self._now = replace(self._now, stage="answering", progress=progress)
        if monotonic() - self._written_at >= WRITE_SECONDS:
            self._write()

    def remove(self) -> None:
        """The run has ended."""
        for path in (self._path, self._new):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _write(self) -> None:
        with suppress(OSError):
            self._new.write_text(json.dumps(asdict(self._now)), encoding="utf-8")
            os.replace(self._new, self._path)  # a reader sees the old one or the new one, never a part
        self._written_at = monotonic()


def read_progress(database: Path) -> RunStage | None:
    """What the file says; None where there is none. The caller knows which process runs."""
    try:
        values = json.loads(_path(database).read_text(encoding="utf-8"))
        progress = values["progress"]
        return RunStage(values["pid"], values["stage"], None if progress is None else Progress(**progress))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(database: Path) -> Path:
    real = Path(os.path.realpath(database))  # two names of one database have one file
    return real.with_name(real.name + ".progress")
