"""One run at a time on one database: an exclusive lock on a sidecar file that names its holder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from jobs.errors import JobError, OutputError

_PATIENCE_SECONDS = 0.5
"""How long a taken lock is tried again: `lock_holder` holds a shared lock for an instant, and a new holder needs an
instant to write its facts."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """What a holder wrote about itself; None for what could not be read."""

    pid: int | None = None
    started_at: str | None = None
    host: str | None = None
    command: str | None = None


class OutputLocked(JobError):
    """Another run holds the output; `holder` says which."""

    def __init__(self, database: Path, holder: LockHolder):
        self.database = database
        self.holder = holder
        facts = f"process {holder.pid} on {holder.host}" if holder.pid is not None else "another process"
        if holder.started_at:
            facts += f", started at {holder.started_at}"
        if holder.command:
            facts += f", command: {holder.command}"
        super().__init__(f"{database}: another run holds this output ({facts})")


class OutputLock:
    """Context manager that holds `<database>.lock` exclusively.

    The kernel drops the lock when the holder dies, however it dies, so a file that is left over never blocks. The
    file stays in place after release: removing it would let two runs lock two files of one name. Raises OutputLocked
    when another run (of this process too) holds it, OutputError when the file can't be made.
    """

    def __init__(self, database_path: str | os.PathLike[str], command: str):
        # Two names of one file must meet in one lock, so links are followed.
        self.database = Path(os.path.realpath(database_path))
        self.path = self.database.with_name(self.database.name + ".lock")
        self.command = command
        self._descriptor: int | None = None

    def __enter__(self) -> OutputLock:
        if self._descriptor is not None:
            raise RuntimeError("this OutputLock is already held")
        descriptor = _lock(self.path, self.database)
        holder = LockHolder(
            pid=os.getpid(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            command=self.command,
        )
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise OutputError(f"{self.path}: can't write the lock file: {error.strerror}; free some space") from error
        self._descriptor = descriptor
        _held.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        descriptor, self._descriptor = self._descriptor, None
        _held.discard(self)
        if descriptor is not None:
            # Emptied, so that nobody takes the facts of a finished run for those of a live one.
            os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def _drop_in_child(self) -> None:
        """Give up a forked child's copy, which would keep the lock alive after the holder's death."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_holder(database_path: str | os.PathLike[str]) -> LockHolder | None:
    """Who holds the output now, or None; takes nothing and creates nothing."""
    database = Path(os.path.realpath(database_path))
    try:
        descriptor = os.open(database.with_name(database.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _read_holder(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _lock(path: Path, database: Path) -> int:
    """An exclusively locked descriptor of the file that bears the name now."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            # Python opens descriptors close-on-exec: a child program never holds the lock.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OutputError(_why_not(path, error)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            if time.monotonic() >= deadline:
                raise OutputLocked(database, holder) from None
            time.sleep(0.05)
            continue
        except OSError as error:
            os.close(descriptor)
            raise OutputError(
                f"{path}: this file system can't lock files ({error.strerror}); put the database on a local disk"
            ) from error
        # Check again: the file may have been removed or replaced between opening and locking.
        try:
            same = os.path.samestat(os.fstat(descriptor), os.stat(path))
        except FileNotFoundError:
            same = False
        if same:
            return descriptor
        os.close(descriptor)


def _read_holder(descriptor: int) -> LockHolder:
    try:
        facts = json.loads(os.pread(descriptor, 1 << 16, 0))
        return LockHolder(**{name: facts.get(name) for name in LockHolder.__dataclass_fields__})
    except (OSError, ValueError, AttributeError):
        return LockHolder()


def _why_not(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        advice = f"make the folder {path.parent} first, or choose another output.database"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = f"make the folder {path.parent} writable for this user, or choose another output.database"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "free some space"
    else:
        advice = "choose another output.database"
    return f"{path}: can't open the lock file: {error.strerror}; {advice}"


_held: weakref.WeakSet[OutputLock] = weakref.WeakSet()


def _drop_all_in_child() -> None:
    for lock in list(_held):
        lock._drop_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_drop_all_in_child)
