"""Publishing: what stands in the journal goes to the database, in short write transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from jobs.checkpoint_guard import undo_path
from jobs.journal import Journal, damaged, journal_path, read_journal
from jobs.journal_records import JournalRecord
from jobs.output_lock import OutputLock, OutputLocked
from jobs.store import AnswerStore, OutputBusy

RECORDS_IN_A_TRANSACTION = 4096
"""So that readers never wait for long, and a large journal takes little memory."""


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What one publishing did: rows that are new in the database, rows still in the journal, and a note if any."""

    rows_published: int = 0
    rows_waiting: int = 0
    note: str | None = None


def publish_pending(
    database: Path, *, wait_seconds: float = 30.0, command: str = "docqa", locked: bool = False
) -> PublishReport:
    """Publish what an earlier run left in the journal, and remove the journal; there may be none.

    Mends the database first if a process was killed while it wrote to it.

    Does nothing, and says so in a note, while another process has the database open for longer than `wait_seconds`, or
    a run is on, which publishes its own answers. `locked`: the caller holds the output's lock. Raises OutputError for
    what is wrong with either file; what stands before a damaged record is published first.
    """
    path = journal_path(database)
    if not path.exists() and not undo_path(database).exists():
        return PublishReport()
    try:
        with nullcontext() if locked else OutputLock(database, command):
            contents = read_journal(path)
            note = None
            if contents.torn_bytes and contents.damaged_at is None:
                note = (
                    f"{path}: the last record was cut off when the run died, and is dropped "
                    f"({contents.torn_bytes} bytes); its row is still to be answered"
                )
            published = 0
            if contents.records or undo_path(database).exists():
                try:
                    store = AnswerStore(database, lock_timeout_seconds=wait_seconds)
                    published = publish_records(store, contents.records)
                    store.mark_killed_runs()
                except OutputBusy as busy:
                    waiting = len(contents.answers)
                    what = f"{waiting} answers wait in {path}" if contents.records else "nothing was mended"
                    return PublishReport(0, waiting, f"{what}: {busy.holder} has {database} open")
            if contents.damaged_at is not None:
                raise damaged(path, contents.damaged_at)
            journal = Journal(database)
            journal.clear()
            journal.close()
            return PublishReport(published, 0, note)
    except OutputLocked as held:
        return PublishReport(
            note=f"nothing was published: {held.holder} is at work on this output and publishes itself"
        )


def publish_records(store: AnswerStore, records: Iterable[JournalRecord]) -> int:
    """Publish records in their order; returns how many answers are new in the database. Raises OutputError."""
    return sum(store.publish(chunk) for chunk in _chunks(records))


def _chunks(records: Iterable[JournalRecord]) -> Iterator[list[JournalRecord]]:
    remaining = iter(records)
    while chunk := list(islice(remaining, RECORDS_IN_A_TRANSACTION)):
        yield chunk
