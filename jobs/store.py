"""The output database: runs, documents and every attempt at every question, in DuckDB.

The file is open only while something is read or written, so that other processes can query between the windows.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from jobs.checkpoint_guard import undo_path
from jobs.errors import OutputError
from jobs.journal import journal_path
from jobs.journal_records import JournalRecord, RunEnding, SchemaViews
from jobs.schema_types import Schema
from jobs.store_check import violations
from jobs.store_connection import DatabaseFile, OutputBusy
from jobs.store_records import AnswerRecord, DocumentRecord, KeyState, RunRecord, clean_text, run_from_row
from jobs.store_schema import LATEST, STORE_VERSION, create_or_check, is_complete, store_version
from jobs.store_views import define_views, widen_views
from jobs.store_writes import AnswerBatch, add_run, end_run, mark_killed_runs, write_step, write_steps
from jobs.wide_integers import has_long_number

__all__ = ["AnswerRecord", "AnswerStore", "DocumentRecord", "KeyState", "OutputBusy", "RunEnding", "RunRecord"]

KEYS_AT_A_TIME = 8192
"""How many keys are read at a time, so that a large output is not held twice."""


class AnswerStore:
    """Reads and writes one output database.

    Opening creates file, tables and views, and brings a store of an older version to this one, unless `read_only`;
    then `version` says which it is. Who opens it for writing holds the output's lock.

    Every method opens the file, works and closes it again; if another process has it open, it waits up to
    `lock_timeout_seconds` and then raises OutputBusy. All faults of the file are OutputError; a method that raised one
    has written nothing, or (when closing failed) all of it, and may be called again with the same arguments. Methods
    may be called from any thread.
    """

    def __init__(self, path: str | os.PathLike[str], *, lock_timeout_seconds: float = 30.0, read_only: bool = False):
        self.path = Path(os.path.abspath(path))
        self.read_only = read_only
        self._file = DatabaseFile(self.path, lock_timeout_seconds)
        if read_only:
            if not self.path.exists():
                raise OutputError(f"{self.path} does not exist; run the job first, or correct the path")
            with self._connection(doing="reading") as connection:
                version = store_version(connection, self.path)
                complete = version is not None and is_complete(connection, version)
            if version is None or not complete:
                raise OutputError(f"{self.path} is no output of docqa: it lacks docqa's tables")
            self.version = version
            return
        self.version = STORE_VERSION
        self._remove_empty_file()
        if not self.path.exists():
            self._make_file()
        with self._connection(writing=True, doing="opening it") as connection:
            create_or_check(connection, self.path)

    def begin_run(self, run: RunRecord) -> None:
        """Add a run, which must be of a new id.

        The caller holds the output lock, so a run that is still `running` was killed: it becomes `failed`.
        """
        with self.writing("starting a run") as connection:
            if not add_run(connection, run):
                raise ValueError(f"there is a run {run.run_id!r} already")

    def mark_killed_runs(self) -> None:
        """End the runs that never said how they ended; the caller holds the output lock, so none is on."""
        with self.writing("ending killed runs") as connection:
            mark_killed_runs(connection)

    def finish_run(self, ending: RunEnding) -> None:
        """End a run. Raises OutputError if there is no such run."""
        with self.writing("finishing a run") as connection:
            end_run(connection, self.path, ending)

    def write_answers(self, batch: Sequence[AnswerRecord], documents: Sequence[DocumentRecord] = ()) -> int:
        """Store a batch, its documents and the runs' new totals in one transaction; returns the rows added.

        See AnswerBatch for rows that are there already. The runs must have been begun, else OutputError.
        """
        if not batch and not documents:
            return 0
        ready = AnswerBatch(batch, documents)
        with self.writing("writing answers") as connection:
            added = ready.write(connection, self.path)
        self._widen_views(batch)
        return added

    def publish(self, records: Sequence[JournalRecord]) -> int:
        """Write the records of a journal in their order, in one transaction; returns the answers added.

        What is there already is left as it is, so records may be published again.
        """
        steps = write_steps(records)
        schemas = {name: schema for r in records if isinstance(r, SchemaViews) for name, schema in r.schemas.items()}
        with self._connection(writing=True, doing="publishing answers") as connection:
            connection.execute("BEGIN")
            added = sum(write_step(connection, self.path, step) for step in steps)
            connection.execute("COMMIT")
            if schemas:
                define_views(connection, schemas)
        self._widen_views(records)
        return added

    def _widen_views(self, records: Sequence[JournalRecord]) -> None:
        long: dict[str, list[str]] = {}
        for record in records:
            if not isinstance(record, AnswerRecord) or record.status != "ok":
                continue
            if record.schema_name is not None and record.answer is not None and has_long_number(record.answer):
                long.setdefault(record.schema_name, []).append(record.answer)
        if long:
            with self._connection(writing=True, doing="widening the views of schemas") as connection:
                widen_views(connection, long)

    def define_schema_views(self, schemas: dict[str, Schema]) -> dict[str, str]:
        """Create or renew `answers_<schema>` for each schema by name; returns the views' names by the schemas'."""
        with self._connection(writing=True, doing="defining the views of schemas") as connection:
            return define_views(connection, schemas)

    def key_states(self) -> dict[tuple[str, str], KeyState]:
        """What is known of every key (doc_id, question_id) that was tried: its newest attempt and newest valid answer.

        An older valid answer does not count: a job that went back to its settings must write anew, or latest_answers
        would show the other settings' answer.
        """
        parts = "request_parts" if self.version > 1 else "NULL"
        states: dict[tuple[str, str], KeyState] = {}
        texts: dict[str, str] = {}  # ids, hashes and parts repeat from row to row: each is held once
        with self._connection(doing="reading answers") as connection:
            found = connection.execute(
                f"WITH keys AS (SELECT arg_max(status, attempt) AS newest_status, arg_max(rowid, {LATEST}) AS latest "
                "FROM answers GROUP BY doc_id, question_id) "
                f"SELECT doc_id, question_id, newest_status, status = 'ok', request_digest, {parts}, document_hash, "
                "md5(question) FROM answers JOIN keys ON answers.rowid = keys.latest"
            )
            while rows := found.fetchmany(KEYS_AT_A_TIME):
                for doc_id, question_id, status, has_answer, digest, *others in rows:
                    doc_id, question_id, status = (
                        texts.setdefault(text, text) for text in (doc_id, question_id, status)
                    )
                    known = [None if text is None else texts.setdefault(text, text) for text in others]
                    state = KeyState(status, True, digest, *known) if has_answer else KeyState(status)
                    states[doc_id, question_id] = state
        return states

    def valid_answers(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The newest valid answer (JSON text) of each of these keys that has one."""
        columns = [pa.array([key[place] for key in keys], pa.large_string()) for place in (0, 1)]
        wanted = pa.table(columns, names=["doc_id", "question_id"])
        with self._connection(doing="reading answers") as connection:
            connection.register("wanted", wanted)
            rows = connection.execute(
                "SELECT doc_id, question_id, answer FROM latest_answers SEMI JOIN wanted USING (doc_id, question_id) "
                "WHERE status = 'ok'"
            ).fetchall()
        return {(doc_id, question_id): answer for doc_id, question_id, answer in rows}

    def size_bytes(self) -> int:
        """Bytes on the disk: the database, its write-ahead log, its journal, and what a killed checkpoint left."""
        return sum(file.stat().st_size for file in self._files() if file.exists())

    def run(self, run_id: str) -> RunRecord | None:
        """A run by its id, or None."""
        return next(iter(self._runs("WHERE run_id = ?", [clean_text(run_id)])), None)

    def latest_run(self) -> RunRecord | None:
        """The run that began last, or None."""
        return next(iter(self._runs("ORDER BY started_at DESC, rowid DESC LIMIT 1", [])), None)

    def runs(self) -> list[RunRecord]:
        """All runs, the latest first."""
        return self._runs("ORDER BY started_at DESC, rowid DESC", [])

    def check(self) -> list[str]:
        """What is not as it must be, a sentence each; empty for a sound database."""
        with self._connection(doing="checking") as connection:
            return violations(connection)

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A read-only connection for queries of reports and exports; while it is open, no run can write."""
        with self._connection(doing="reading") as connection:
            yield connection

    @contextmanager
    def waiting(self, lock_timeout_seconds: float) -> Iterator[None]:
        """Another lock timeout for a while."""
        before, self._file.lock_timeout_seconds = self._file.lock_timeout_seconds, lock_timeout_seconds
        try:
            yield
        finally:
            self._file.lock_timeout_seconds = before

    @contextmanager
    def _connection(self, *, doing: str, writing: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        if writing and self.read_only:
            raise RuntimeError("this AnswerStore was opened read-only")
        with self._file.connection(read_only=not writing, doing=doing) as connection:
            yield connection

    def _runs(self, clause: str, values: list[Any]) -> list[RunRecord]:
        with self._connection(doing="reading runs") as connection:
            found = connection.execute(f"SELECT * FROM runs {clause}", values)
            names = [column[0] for column in found.description or ()]
            return [run_from_row(names, row) for row in found.fetchall()]

    @contextmanager
    def writing(self, doing: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection in a transaction that is committed at the end."""
        with self._connection(writing=True, doing=doing) as connection:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    def _files(self) -> list[Path]:
        real = Path(os.path.realpath(self.path))
        return [real, real.with_name(real.name + ".wal"), journal_path(real), undo_path(real)]

    def _make_file(self) -> None:
        """Make the database under another name: DuckDB can't open a file that a kill or a full disk left short."""
        real = Path(os.path.realpath(self.path))
        new = DatabaseFile(real.with_name(real.name + ".new"), 0.0)
        try:
            new.remove()
            with new.connection(doing="making the database") as connection:
                create_or_check(connection, self.path)
            new.take_place(real)
        except OSError as error:
            raise self._file.fault("making the database", error) from error
        finally:
            with suppress(OSError):
                new.remove()

    def _remove_empty_file(self) -> None:
        """A run that is killed while it makes the file can leave it empty, which DuckDB would refuse for ever."""
        try:
            if self.path.is_file() and self.path.stat().st_size == 0:
                self.path.unlink()
        except OSError as error:
            raise self._file.fault("opening it", error) from error
