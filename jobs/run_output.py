"""Where the records of a run that is on go: to the journal at once, to the database now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from jobs.journal import Journal, read_journal
from jobs.journal_records import JournalRecord, RunEnding, SchemaViews
from jobs.publish import publish_records
from jobs.schema_types import Schema
from jobs.store import AnswerStore, OutputBusy, RunRecord

logger = logging.getLogger(__name__)

PUBLISH_ROWS = 256
PUBLISH_SECONDS = 5.0
"""The journal is published when it holds so many rows, or some for this long."""

PUBLISH_SHARE = 0.05
"""The most of a run's time that publishing takes: after a slow one, the next waits."""

START_WAIT_SECONDS = 5.0
END_WAIT_SECONDS = 10.0
"""How long the first and the last publishing wait for another process that has the database open; those between do not
wait at all."""


class RunOutput:
    """The journal and the database of one run. Whoever makes one holds the output's lock.

    While another process has the database open, records stay in the journal and the run goes on. All other faults of
    either file are OutputError: a full disk, say. What was appended before is kept then.
    """

    def __init__(self, database: Path, on_note: Callable[[str], None]) -> None:
        self._database = database
        self._on_note = on_note
        self._journal = Journal(database)
        self._store: AnswerStore | None = None
        self._run: RunRecord | None = None
        self._published_at = time.monotonic()
        self._last_seconds = 0.0
        self._busy = False
        self.publish_seconds = 0.0

    @property
    def rows_waiting(self) -> int:
        """Answers that are in the journal and not in the database."""
        return self._journal.rows

    def begin(self, run: RunRecord, schemas: Mapping[str, Schema]) -> None:
        """Write down that the run is on."""
        self._run = run
        self._journal.append(run)
        if schemas:
            self._journal.append(SchemaViews(dict(schemas)))
        self._journal.sync()
        self._publish(START_WAIT_SECONDS)

    def append(self, record: JournalRecord) -> None:
        """Write down something that is finished."""
        self._journal.append(record)

    def keep_up(self) -> None:
        """Call it often: syncs and publishes when due."""
        self._journal.sync_if_due()
        waited = time.monotonic() - self._published_at
        due = self._journal.rows >= PUBLISH_ROWS or (self._journal.rows and waited >= PUBLISH_SECONDS)
        if due and waited >= self._last_seconds / PUBLISH_SHARE:
            self._publish(0.0)

    def publish(self) -> None:
        """Publish everything, if the database is free or becomes so soon."""
        self._journal.sync()
        self._publish(END_WAIT_SECONDS)

    def end(self, ending: RunEnding) -> None:
        """Write down how the run ended, after `publish`, and publish that too."""
        self._journal.append(ending)
        self._journal.sync()
        self._publish(0.0 if self._busy else END_WAIT_SECONDS)

    def close(self) -> None:
        """Close the journal; it is removed if everything was published."""
        self._journal.close()

    def _publish(self, wait_seconds: float) -> None:
        started = time.monotonic()
        records = read_journal(self._journal.path).records
        try:
            if self._store is None or not self._database.exists():
                self._store = AnswerStore(self._database, lock_timeout_seconds=wait_seconds)
            with self._store.waiting(wait_seconds):
                publish_records(self._store, records)
        except OutputBusy as busy:
            if not self._busy:
                self._on_note(
                    f"{busy.holder} has {self._database} open; answers wait in {self._journal.path} until it is free, "
                    "and are published then by this run, the next, or `docqa status --publish`"
                )
            self._busy = True
        else:
            self._journal.clear()
            if self._run is not None and not any(isinstance(record, RunEnding) for record in records[-1:]):
                # With it in front, rows that follow find their run also in a database that was put in the old one's
                # place.
                self._journal.append(self._run)
            if self._busy:
                self._on_note("the database is free again; what waited is published")
            self._busy = False
        self._published_at = time.monotonic()
        self._last_seconds = self._published_at - started
        self.publish_seconds += self._last_seconds
        logger.debug("published %d records in %.3f s", len(records), self._last_seconds)
