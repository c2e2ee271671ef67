"""The output database: runs, documents and every attempt at every question, in DuckDB.

The file is open only while something is read or written, so that other processes can query between the windows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from jobs.errors import OutputError
from jobs.schema_types import Schema
from jobs.store_check import violations
from jobs.store_connection import DatabaseFile, OutputBusy
from jobs.store_records import (
    RUN_STATUSES,
    AnswerRecord,
    DocumentRecord,
    RunRecord,
    answers_table,
    clean_text,
    naive_utc,
    run_from_row,
    run_values,
    utc_now,
)
from jobs.store_schema import TOTALS, create_or_check, define_views, is_complete

__all__ = ["AnswerRecord", "AnswerStore", "DocumentRecord", "OutputBusy", "RunRecord"]

_RUN_COLUMNS = tuple(column.name for column in fields(RunRecord))
_SETTABLE = frozenset({"rows_total", "rows_reused", "forced_tokens", "load_seconds", "seconds"})
_RECORD_SUMS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens", "output_tokens")


class AnswerStore:
    """Reads and writes one output database.

    Opening creates file, tables and views unless `read_only`. Every method opens the file, works and closes it again;
    if another process has the file open, it waits up to `lock_timeout_seconds` and then raises OutputBusy. All faults
    of the file are OutputError; a method that raised one has written nothing, or (when closing failed) all of it, and
    may be called again with the same arguments. Methods may be called from any thread.
    """

    def __init__(self, path: str | os.PathLike[str], *, lock_timeout_seconds: float = 30.0, read_only: bool = False):
        self.path = Path(os.path.abspath(path))
        self.read_only = read_only
        self._file = DatabaseFile(self.path, lock_timeout_seconds)
        if read_only:
            if not self.path.exists():
                raise OutputError(f"{self.path} does not exist; run the job first, or correct the path")
            with self._connection(doing="reading") as connection:
                if not is_complete(connection, self.path):
                    raise OutputError(f"{self.path} is no output of docqa: it lacks docqa's tables")
            return
        self._remove_empty_file()
        with self._connection(writing=True, doing="opening it") as connection:
            create_or_check(connection, self.path)

    def begin_run(self, run: RunRecord) -> None:
        """Add a run, which must be of a new id.

        The caller holds the output lock, so a run that is still `running` was killed: it becomes `failed`.
        """
        values = run_values(run)
        with self._connection(writing=True, doing="starting a run") as connection:
            connection.execute("BEGIN")
            if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", [run.run_id]).fetchone():
                raise ValueError(f"there is a run {run.run_id!r} already")
            connection.execute(
                "UPDATE runs SET status = 'failed', error = 'killed', finished_at = coalesce("
                "(SELECT max(answered_at) FROM answers WHERE answers.run_id = runs.run_id), started_at) "
                "WHERE status = 'running'"
            )
            places = ", ".join("?" for _ in values)
            connection.execute(f"INSERT INTO runs ({', '.join(values)}) VALUES ({places})", list(values.values()))
            connection.execute("COMMIT")

    def update_run(self, run_id: str, **totals: int | float | None) -> None:
        """Set what is no sum of rows: rows_total, rows_reused, forced_tokens, load_seconds, seconds."""
        self._set_run(run_id, totals, doing="updating a run")

    def finish_run(
        self,
        run_id: str,
        status: str,
        *,
        finished_at: datetime | None = None,
        error: str | None = None,
        **totals: int | float | None,
    ) -> None:
        """End a run with a status of RUN_STATUSES; `totals` as for update_run."""
        if status not in RUN_STATUSES:
            raise ValueError(f"unknown run status {status!r}")
        ending = {"status": status, "finished_at": naive_utc(finished_at or utc_now()), "error": clean_text(error)}
        self._set_run(run_id, totals, ending, doing="finishing a run")

    def write_answers(self, batch: Sequence[AnswerRecord], documents: Sequence[DocumentRecord] = ()) -> int:
        """Store a batch, its documents and the runs' new totals in one transaction; returns the rows added.

        A run has one row for a key: of several, in the batch or written before, the first stays and the others are
        dropped. So a batch that may have been committed before a crash can simply be written again. Attempts are
        numbered here, 1 + the key's rows of all runs. The runs must have been begun, else OutputError.
        """
        if not batch and not documents:
            return 0
        # Documents and texts are made ready before the window opens, so that readers wait for DuckDB alone.
        keys = pa.table(
            {
                "position": pa.array(range(len(batch)), pa.int64()),
                "run_id": pa.array([clean_text(record.run_id) for record in batch], pa.large_string()),
                "doc_id": pa.array([clean_text(record.doc_id) for record in batch], pa.large_string()),
                "question_id": pa.array([clean_text(record.question_id) for record in batch], pa.large_string()),
            }
        )
        rows = answers_table(batch, [0] * len(batch))
        texts = _documents_table(documents)
        with self._connection(writing=True, doing="writing answers") as connection:
            connection.execute("BEGIN")
            kept, attempts = _number_attempts(connection, batch, keys)
            if kept:
                if len(kept) < len(batch):
                    rows = rows.take(kept)
                place = rows.schema.get_field_index("attempt")
                rows = rows.set_column(place, "attempt", pa.array(attempts, pa.int64()))
                connection.register("batch", rows)
                connection.execute("INSERT INTO answers BY NAME SELECT * FROM batch")
                for run_id, added in _sums(batch[position] for position in kept).items():
                    self._add_to_run(connection, run_id, added)
            if documents:
                connection.register("batch_documents", texts)
                connection.execute(
                    "INSERT INTO documents BY NAME SELECT * FROM batch_documents WHERE document_hash NOT IN "
                    "(SELECT d.document_hash FROM documents d SEMI JOIN batch_documents USING (document_hash))"
                )
            connection.execute("COMMIT")
        return len(kept)

    def define_schema_views(self, schemas: dict[str, Schema]) -> dict[str, str]:
        """Create or renew `answers_<schema>` for each schema by name; returns the views' names by the schemas'."""
        with self._connection(writing=True, doing="defining the views of schemas") as connection:
            return define_views(connection, schemas)

    def answered_digests(self) -> set[str]:
        """The request digests of keys that have a valid answer: of each key the newest one's, as in latest_answers.

        An older valid answer of the same key does not count: a job that went back to its settings must write anew,
        or latest_answers would show the other settings' answer.
        """
        rows = self._query(
            "SELECT DISTINCT request_digest FROM latest_answers WHERE status = 'ok' AND request_digest IS NOT NULL"
        )
        return {digest for (digest,) in rows}

    def answered_keys(self) -> dict[tuple[str, str], str | None]:
        """The request digest of the newest valid answer by (doc_id, question_id)."""
        rows = self._query("SELECT doc_id, question_id, request_digest FROM latest_answers WHERE status = 'ok'")
        return {(doc_id, question_id): digest for doc_id, question_id, digest in rows}

    def failed_keys(self) -> dict[tuple[str, str], str]:
        """The status of the newest attempt by (doc_id, question_id), of keys that have no valid answer."""
        rows = self._query("SELECT doc_id, question_id, status FROM errors")
        return {(doc_id, question_id): status for doc_id, question_id, status in rows}

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
    def _connection(self, *, doing: str, writing: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        if writing and self.read_only:
            raise RuntimeError("this AnswerStore was opened read-only")
        with self._file.connection(read_only=not writing, doing=doing) as connection:
            yield connection

    def _query(self, query: str) -> list[tuple[Any, ...]]:
        with self._connection(doing="reading") as connection:
            return connection.execute(query).fetchall()

    def _runs(self, clause: str, values: list[Any]) -> list[RunRecord]:
        with self._connection(doing="reading runs") as connection:
            rows = connection.execute(f"SELECT {', '.join(_RUN_COLUMNS)} FROM runs {clause}", values).fetchall()
        return [run_from_row(_RUN_COLUMNS, row) for row in rows]

    def _set_run(
        self, run_id: str, totals: dict[str, Any], ending: dict[str, Any] | None = None, *, doing: str
    ) -> None:
        unknown = totals.keys() - _SETTABLE
        if unknown:
            raise ValueError(f"not to be set on a run: {', '.join(sorted(unknown))}")
        values = {**totals, **(ending or {})}
        if not values:
            return
        with self._connection(writing=True, doing=doing) as connection:
            assignments = ", ".join(f"{name} = ?" for name in values)
            self._update(connection, assignments, list(values.values()), run_id)

    def _add_to_run(self, connection: duckdb.DuckDBPyConnection, run_id: str, added: dict[str, int]) -> None:
        assignments = ", ".join(f"{name} = {name} + ?" for name in added)
        self._update(connection, assignments, list(added.values()), run_id)

    def _update(self, connection: duckdb.DuckDBPyConnection, assignments: str, values: list[Any], run_id: str) -> None:
        query = f"UPDATE runs SET {assignments} WHERE run_id = ? RETURNING 1"
        if connection.execute(query, [*values, clean_text(run_id)]).fetchone() is None:
            raise OutputError(f"{self.path} has no run {run_id!r}; was the file replaced while the run was on?")

    def _remove_empty_file(self) -> None:
        """A run that is killed while it makes the file can leave it empty, which DuckDB would refuse for ever."""
        try:
            if self.path.is_file() and self.path.stat().st_size == 0:
                self.path.unlink()
        except OSError as error:
            raise self._file.fault("opening it", error) from error


def _number_attempts(
    connection: duckdb.DuckDBPyConnection, batch: Sequence[AnswerRecord], keys: pa.Table
) -> tuple[list[int], list[int]]:
    """Positions of the batch's rows that are new to their run, and the attempt number of each."""
    connection.register("batch_keys", keys)
    # The inner join has the small batch on one side whatever the table's size; keys that are new are not in it.
    previous = {
        position: (count, written)
        for position, count, written in connection.execute(
            "SELECT k.position, count(*), bool_or(a.run_id = k.run_id) "
            "FROM answers a JOIN batch_keys k ON a.doc_id = k.doc_id AND a.question_id = k.question_id "
            "GROUP BY k.position"
        ).fetchall()
    }
    kept: list[int] = []
    attempts: list[int] = []
    in_batch: dict[tuple[str, str], set[str]] = {}
    for position, record in enumerate(batch):
        count, written = previous.get(position, (0, False))
        runs = in_batch.setdefault((record.doc_id, record.question_id), set())
        if written or record.run_id in runs:
            continue
        runs.add(record.run_id)
        kept.append(position)
        attempts.append(count + len(runs))
    return kept, attempts


def _sums(records: Iterator[AnswerRecord]) -> dict[str, dict[str, int]]:
    """What the records add to the totals of their runs; same names as TOTALS."""
    sums: dict[str, dict[str, int]] = {}
    for record in records:
        added = sums.setdefault(record.run_id, dict.fromkeys(TOTALS, 0))
        added["rows_ok" if record.status == "ok" else "rows_failed"] += 1
        for name in _RECORD_SUMS:
            added[name] += getattr(record, name) or 0
    return sums


def _documents_table(documents: Sequence[DocumentRecord]) -> pa.Table:
    distinct = {document.document_hash: document for document in documents}.values()
    return pa.table(
        {
            "document_hash": pa.array([document.document_hash for document in distinct], pa.large_string()),
            "characters": pa.array([document.characters for document in distinct], pa.int64()),
            "tokens": pa.array([document.tokens for document in distinct], pa.int64()),
        }
    )
