"""The database file: opened in short windows, waited for when another process has it, faults named."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import duckdb

from jobs.checkpoint_guard import CheckpointGuard, mend, undo_path
from jobs.durable import sync_file, sync_folder
from jobs.errors import OutputError

logger = logging.getLogger(__name__)

STORAGE_VERSION = "v1.1.0"
"""The oldest DuckDB that can read what we write; a newer default would lock out the readers' older tools."""

MEMORY_LIMIT = "2GiB"
"""What a query may take; beyond that DuckDB puts its work into `<database>.tmp` while it lasts."""

WRITER_CONFIG = {
    "memory_limit": MEMORY_LIMIT,
    "storage_compatibility_version": STORAGE_VERSION,
    # A window inserts some hundred rows: more threads would cost more to start than they save, and the model runs.
    "threads": "1",
    # Only CheckpointGuard writes checkpoints.
    "checkpoint_threshold": "1TB",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_READER_CONFIG = {
    "memory_limit": MEMORY_LIMIT,
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


def free_space_note(folder: Path) -> str:
    """` (N bytes free on this disk)`, for messages; empty where it can't be told."""
    try:
        return f" ({shutil.disk_usage(folder).free:,} bytes free on this disk)"
    except OSError:
        return ""


class OutputBusy(OutputError):
    """Another process had the database open for the whole lock timeout; `pid` is its id if DuckDB told it.

    `holder` names it in words. Nothing was lost or written: the same call may be tried again later.
    """

    def __init__(self, message: str, pid: int | None, holder: str):
        super().__init__(message)
        self.pid = pid
        self.holder = holder


class DatabaseFile:
    """One DuckDB file that is open only inside `connection()`, and by one thread of ours at a time."""

    def __init__(self, path: Path, lock_timeout_seconds: float):
        self.path = path
        self.lock_timeout_seconds = lock_timeout_seconds
        self._thread_lock = threading.RLock()

    @contextmanager
    def connection(self, *, read_only: bool = False, doing: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one window. Leaving it without a COMMIT undoes what the window began.

        Every fault of DuckDB in it comes out as an OutputError that says what we were `doing`. Who opens it for
        writing holds the output's lock.
        """
        with self._thread_lock, ExitStack() as after:
            connection = self._open(read_only, doing)
            guard = None if read_only else after.enter_context(closing(CheckpointGuard(self.path)))
            try:
                yield connection
            except BaseException as error:
                # What went wrong first is what the user must know; a broken file often can't even be closed.
                with suppress(duckdb.Error):
                    connection.close()
                if isinstance(error, duckdb.Error):
                    raise self.fault(doing, error) from error
                raise
            try:
                if guard is not None and self._log_path.exists():
                    guard.checkpoint(connection)
                connection.close()
            except (duckdb.Error, OSError) as error:
                with suppress(duckdb.Error):
                    connection.close()
                # What was committed is in the write-ahead log and safe.
                raise self.fault(f"closing after {doing}", error) from error

    def remove(self) -> None:
        """Delete the file and its write-ahead log, if they are there."""
        for file in (self.path, self._log_path, undo_path(self.path)):
            file.unlink(missing_ok=True)

    def take_place(self, of: Path) -> None:
        """Give this file, which is closed, another's name in one step, durably."""
        sync_file(self.path)
        os.replace(self.path, of)
        sync_folder(of.parent)

    def fault(self, doing: str, error: BaseException) -> OutputError:
        """An OutputError with the path, the cause and how much room the disk has."""
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "Corrupt database file" in cause and undo_path(self.path).exists():
            return OutputError(
                f"{self.path}: {doing} failed, since a process was killed while it wrote to it; the next run mends it, "
                f"or `docqa status {self.path} --publish`"
            )
        free = free_space_note(self.path.parent)
        return OutputError(f"{self.path}: {doing} failed: {cause}{free}; what was committed before is kept")

    def _open(self, read_only: bool, doing: str) -> duckdb.DuckDBPyConnection:
        deadline = time.monotonic() + self.lock_timeout_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._connect(read_only)
            except (duckdb.Error, OSError) as error:
                if not _is_held(error):
                    raise self._opening_fault(error) from error
                if time.monotonic() + pause > deadline:
                    raise self._busy(doing, error) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _connect(self, read_only: bool) -> duckdb.DuckDBPyConnection:
        if read_only:
            return duckdb.connect(os.path.realpath(self.path), read_only=True, config=dict(_READER_CONFIG))
        if undo_path(self.path).exists() and mend(self.path):
            logger.info("%s: mended what a killed process left half written", self.path)
        connection = duckdb.connect(os.path.realpath(self.path), config=dict(WRITER_CONFIG))
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        return connection

    @property
    def _log_path(self) -> Path:
        """DuckDB's write-ahead log."""
        real = Path(os.path.realpath(self.path))
        return real.with_name(real.name + ".wal")

    def _busy(self, doing: str, error: Exception) -> OutputBusy:
        found = re.search(r"PID (\d+)", str(error))
        pid = int(found.group(1)) if found else None
        holder = f"process {pid}" if pid is not None else "this process, elsewhere," if _is_own(error) else "a process"
        return OutputBusy(
            f"{self.path}: {doing} failed: {holder} has the database open and did not close it within "
            f"{self.lock_timeout_seconds:g} s; close it and run the same command again",
            pid,
            holder,
        )

    def _opening_fault(self, error: Exception) -> OutputError:
        text = str(error)
        if self.path.is_dir():
            return OutputError(f"{self.path} is a folder; name a file as output.database")
        if "not a valid DuckDB database" in text:
            return OutputError(
                f"{self.path} exists and is no DuckDB database; correct the path, or name another file as "
                "output.database"
            )
        if "with version number" in text or "newer version" in text:
            return OutputError(
                f"{self.path} was written by a DuckDB that this one ({duckdb.__version__}) can't read: "
                f"{text.splitlines()[0]}"
            )
        if not self.path.parent.is_dir():
            return OutputError(f"{self.path}: the folder {self.path.parent} does not exist; make it first")
        return self.fault("opening it", error)


def _is_held(error: Exception) -> bool:
    waits = isinstance(error, BlockingIOError)  # raised by mend
    return waits or "Could not set lock" in str(error) or "Conflicting lock" in str(error) or _is_own(error)


def _is_own(error: Exception) -> bool:
    """Whether another connection of this very process is in the way."""
    return "with a different configuration" in str(error) or "Unique file handle conflict" in str(error)
