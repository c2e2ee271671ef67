"""One run at a time on one database: an exclusive lock on a sidecar file that names its holder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from jobs.errors import JobError, OutputError

_PATIENCE_SECONDS = 0.5
"""How long a taken lock is tried again: `lock_holder` holds a shared lock for an instant, and a new holder needs an
instant to write its facts."""
_PAUSE_SECONDS = 0.05
_LONG_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class LockHolder:
    """What a holder wrote about itself; None for what could not be read."""

    pid: int | None = None
    started_at: str | None = None
    host: str | None = None
    command: str | None = None

    def __str__(self) -> str:
        facts = f"process {self.pid} on {self.host}" if self.pid is not None else "another process"
        if self.started_at:
            facts += f", started at {self.started_at}"
        if self.command:
            facts += f", command: {self.command}"
        return facts


class OutputLocked(JobError):
    """Another run holds the output; `holder` says which."""

    def __init__(self, database: Path, holder: LockHolder):
        self.database = database
        self.holder = holder
        super().__init__(f"{database}: another run holds this output ({holder}); wait for it with --wait, or stop it")


class OutputLock:
    """Context manager that holds `<database>.lock` exclusively.

    The kernel drops the lock when the holder dies, however it dies, so a file that is left over never blocks. The
    file stays in place after release: removing it would let two runs lock two files of one name. Raises OutputLocked
    when another run (of this process too) holds it and still does so after `wait_seconds`, OutputError when the file
    can't be made. While it waits, it tells `on_wait` once who holds it, and calls `on_poll`, which may raise.
    """

    def __init__(
        self,
        database_path: str | os.PathLike[str],
        command: str,
        *,
        wait_seconds: float = 0.0,
        on_wait: Callable[[LockHolder], None] = lambda holder: None,
        on_poll: Callable[[], None] = lambda: None,
    ):
        # Two names of one file must meet in one lock, so links are followed.
        self.database = Path(os.path.realpath(database_path))
        if self.database.is_dir():
            raise OutputError(f"{database_path} is a folder; name a file as output.database")
        self.path = self.database.with_name(self.database.name + ".lock")
        self.command = command
        self._wait_seconds = wait_seconds
        self._on_wait = on_wait
        self._on_poll = on_poll
        self._descriptor: int | None = None

    def __enter__(self) -> OutputLock:
        if self._descriptor is not None:
            raise RuntimeError("this OutputLock is already held")
        descriptor = self._take()
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

    def _take(self) -> int:
        started = time.monotonic()
        told = False
        while True:
            found = _try_lock(self.path)
            if isinstance(found, int):
                return found
            waited = time.monotonic() - started
            if found is not None and waited >= max(self._wait_seconds, _PATIENCE_SECONDS):
                raise OutputLocked(self.database, found)
            if found is not None and waited >= _PATIENCE_SECONDS and not told:
                told = True
                self._on_wait(found)
            self._on_poll()
            time.sleep(_PAUSE_SECONDS if waited < _PATIENCE_SECONDS else _LONG_PAUSE_SECONDS)

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


def _try_lock(path: Path) -> int | LockHolder | None:
    """An exclusively locked descriptor of the file that bears the name now, or who has it; None: try again."""
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
        return holder
    except OSError as error:
        os.close(descriptor)
        raise OutputError(
            f"{path}: this file system can't lock files ({error.strerror}); put the database on a local disk"
        ) from error
    # Check again: the file may have been removed or replaced between opening and locking.
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def _read_holder(descriptor: int) -> LockHolder:
    try:
        facts = json.loads(os.pread(descriptor, 1 << 16, 0))
        return LockHolder(**{name: facts.get(name) for name in LockHolder.__dataclass_fields__})
    except (OSError, ValueError, AttributeError):
        return LockHolder()


def _why_not(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        advice = f"make the folder {path.parent} first, or choose another output.database"
    elif error.errno == errno.EACCES and path.exists():
        advice = "make that file writable for this user, or choose another output.database"
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
