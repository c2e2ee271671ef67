"""The journal of an output: an append-only file beside the database that holds what is finished and not yet in it.

It begins with one line, `docqa journal 1`, and goes on with frames. A frame is a marker, the payload's length, a CRC-32
over all that follows the marker but the checksum itself, how much of the file was on the disk when the frame was
written, and the payload: one record (see `journal_records`). So a file that was cut or garbled is told from a whole one
at any byte. What a power failure can garble is only what was never said to be on the disk; damage before that means
that the disk lost something.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jobs.durable import sync_folder
from jobs.errors import OutputError
from jobs.journal_records import (
    JournalRecord,
    RunEnding,
    SchemaViews,
    decode_record,
    encode_record,
)
from jobs.store_connection import free_space_note
from jobs.store_records import AnswerRecord

HEADER = b"docqa journal 1\n"
SYNC_SECONDS = 5.0
SYNC_ROWS = 256
"""What is appended reaches the disk after this long, or this many records: what a power failure can lose at most.
The death of the process alone loses nothing."""

_NAME = b"docqa journal "
_MARKER = b"\xd0\xca\x0a\xff"
_FRAME = struct.Struct("<IIQ")  # payload length, checksum, bytes on the disk
_FRAME_BYTES = len(_MARKER) + _FRAME.size


class JournalError(OutputError):
    """The journal can't be used: of a newer docqa, damaged, or no journal at all."""


@dataclass(frozen=True)
class JournalContents:
    """What a journal holds: `records` in order, `valid_bytes` of the file that they take, and what follows these.

    `torn_bytes` at the end belong to a record that was never whole on the disk. `damaged_at` is where a record that
    once was whole is so no more; then what follows it is not read.
    """

    records: list[JournalRecord] = field(default_factory=list)
    valid_bytes: int = 0
    torn_bytes: int = 0
    damaged_at: int | None = None

    @property
    def answers(self) -> list[AnswerRecord]:
        """The answers among the records."""
        return [record for record in self.records if isinstance(record, AnswerRecord)]


def journal_path(database: str | os.PathLike[str]) -> Path:
    """`<database>.journal`, beside the real file if `database` is a link."""
    real = Path(os.path.realpath(database))
    return real.with_name(real.name + ".journal")


def unpublished_rows(database: str | os.PathLike[str]) -> int:
    """How many rows stand in the journal and not yet in the database. Raises JournalError."""
    return len(read_journal(journal_path(database)).answers)


def read_journal(path: Path) -> JournalContents:
    """Read a journal; one that is not there is empty. Raises JournalError for what is none, or a newer version's."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return JournalContents()
    except OSError as error:
        raise JournalError(f"{path}: can't read the journal: {error.strerror}; make it readable") from error
    if content[: len(HEADER)] != HEADER:
        if HEADER.startswith(content):  # killed while it was made
            return JournalContents(torn_bytes=len(content))
        if content.startswith(_NAME):
            version = content[len(_NAME) :].split(b"\n", 1)[0][:20].decode("ascii", "replace")
            raise JournalError(
                f"{path} is a journal of version {version}, and this docqa knows version 1; use the docqa that wrote it"
            )
        raise JournalError(f"{path} is no journal of docqa; move it away, or name another output.database")
    records: list[JournalRecord] = []
    place = len(HEADER)
    while (found := _frame_at(content, place)) is not None:
        try:
            records.append(decode_record(found.payload))
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{path}: the record at byte {place} is of no kind that this docqa knows") from error
        place = found.end
    damaged = any(frame.synced_bytes > place for frame in _frames_after(content, place))
    return JournalContents(records, place, torn_bytes=len(content) - place, damaged_at=place if damaged else None)


@dataclass(frozen=True, slots=True)
class _Frame:
    payload: bytes
    synced_bytes: int
    end: int


def _frame_at(content: bytes, place: int) -> _Frame | None:
    """The whole frame that begins at a byte, or None."""
    start = place + _FRAME_BYTES
    if len(content) < start or content[place : place + len(_MARKER)] != _MARKER:
        return None
    length, checksum, synced_bytes = _FRAME.unpack_from(content, place + len(_MARKER))
    payload = content[start : start + length]
    if len(payload) < length or _checksum(length, synced_bytes, payload) != checksum:
        return None
    return _Frame(payload, synced_bytes, start + length)


def _frames_after(content: bytes, place: int) -> Iterator[_Frame]:
    """Whole frames anywhere behind a byte where none begins."""
    place = content.find(_MARKER, place)
    while place >= 0:
        found = _frame_at(content, place)
        if found is not None:
            yield found
        place = content.find(_MARKER, place + 1 if found is None else found.end)


def _checksum(length: int, synced_bytes: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<IQ", length, synced_bytes)))


class Journal:
    """Appends records to the journal of a database. Whoever opens one holds the output's lock.

    Opening makes the file and cuts a torn tail off; `torn_bytes` says how much that was. Raises JournalError for a
    damaged one, which stays as it is. An `append` or `clear` that raised OutputError (a full disk) changed nothing, or
    left a torn tail, which the next one cuts off.
    """

    def __init__(self, database: str | os.PathLike[str]) -> None:
        self.path = journal_path(database)
        contents = read_journal(self.path)
        if contents.damaged_at is not None:
            raise damaged(self.path, contents.damaged_at)
        self.torn_bytes = contents.torn_bytes
        self._rows = len(contents.answers)
        self._size = contents.valid_bytes
        self._synced = 0
        self._unsynced_records = 0
        self._synced_at = time.monotonic()
        try:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._fault("opening", error) from error
        try:
            self._begin()
        except OutputError:
            os.close(self._descriptor)
            raise

    @property
    def rows(self) -> int:
        """Answers in the journal."""
        return self._rows

    def append(self, record: JournalRecord) -> None:
        """Add a record; it survives the death of this process at once, and that of the machine after a sync."""
        payload = encode_record(record)
        checksum = _checksum(len(payload), self._synced, payload)
        self._write(_MARKER + _FRAME.pack(len(payload), checksum, self._synced) + payload)
        self._rows += isinstance(record, AnswerRecord)
        self._unsynced_records += 1
        if self._unsynced_records >= SYNC_ROWS:
            self.sync()

    def sync_if_due(self) -> None:
        """Call it often: brings to the disk what has waited for SYNC_SECONDS."""
        if self._unsynced_records and time.monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring everything to the disk."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._fault("writing", error) from error
        self._synced = self._size
        self._unsynced_records = 0
        self._synced_at = time.monotonic()

    def clear(self) -> None:
        """Forget all records: they are in the database."""
        try:
            os.ftruncate(self._descriptor, len(HEADER))
        except OSError as error:
            raise self._fault("clearing", error) from error
        self._size, self._rows = len(HEADER), 0
        self.sync()

    def close(self) -> None:
        """Sync and close. A journal without records is removed."""
        try:
            if self._size > len(HEADER):
                self.sync()
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self._fault("closing", error) from error
        finally:
            os.close(self._descriptor)

    def _begin(self) -> None:
        if self._size == 0:
            self._write(HEADER)
            sync_folder(self.path.parent)
        else:
            self._cut()
        self.sync()

    def _write(self, content: bytes) -> None:
        written = 0
        try:
            while written < len(content):
                written += os.pwrite(self._descriptor, content[written:], self._size + written)
        except OSError as error:
            if written:
                self._cut()
            raise self._fault("writing", error) from error
        self._size += len(content)

    def _cut(self) -> None:
        """Cut off what is behind the last whole record."""
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            raise self._fault("writing", error) from error

    def _fault(self, doing: str, error: OSError) -> OutputError:
        return OutputError(
            f"{self.path}: {doing} the journal failed: {error.strerror}{free_space_note(self.path.parent)}; "
            "answers that were finished before are kept"
        )


def damaged(path: Path, place: int) -> JournalError:
    """The error for a journal whose record at a byte is damaged."""
    return JournalError(
        f"{path}: the record at byte {place} is damaged, though the disk once had it whole; what stands before it is "
        "published; check the disk, move this file away and run again, so that the rows behind it are answered anew"
    )


__all__ = ["Journal", "JournalContents", "JournalError", "RunEnding", "SchemaViews", "journal_path", "read_journal"]
