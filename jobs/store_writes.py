"""Writing to an open output database: runs, and batches of answers with their documents. The caller commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from jobs.errors import OutputError
from jobs.journal_records import JournalRecord, RunEnding
from jobs.step_summary import STEP_COLUMNS
from jobs.store_calls import calls_table
from jobs.store_records import (
    RUN_STATUSES,
    AnswerRecord,
    DocumentRecord,
    RunRecord,
    answers_table,
    clean_json,
    clean_text,
    naive_utc,
    run_values,
)
from jobs.store_schema import TOTALS

_RECORD_SUMS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens", "output_tokens")


class MissingRun(OutputError):
    """Rows belong to a run that the database does not have."""

    def __init__(self, path: object, run_id: str):
        super().__init__(f"{path} has no run {run_id!r}; was the file replaced while the run was on?")


class AnswerBatch:
    """Answers and documents, made ready for DuckDB before its file is opened, so that readers wait for DuckDB alone.

    A run has one row for a key: of several, in the batch or written before, the first stays and the others are
    dropped. So a batch that may have been committed before a crash can simply be written again. Attempts are numbered
    when written, 1 + the key's highest of all runs.
    """

    def __init__(self, answers: Sequence[AnswerRecord], documents: Sequence[DocumentRecord] = ()) -> None:
        """Raises ValueError for an unknown status."""
        self._answers = answers
        self._keys = pa.table(
            {
                "position": pa.array(range(len(answers)), pa.int64()),
                "run_id": pa.array([clean_text(record.run_id) for record in answers], pa.large_string()),
                "doc_id": pa.array([clean_text(record.doc_id) for record in answers], pa.large_string()),
                "question_id": pa.array([clean_text(record.question_id) for record in answers], pa.large_string()),
            }
        )
        self._rows = answers_table(answers, [0] * len(answers))
        self._documents = _documents_table(documents)

    def write(self, connection: duckdb.DuckDBPyConnection, path: object) -> int:
        """Insert what is new and add it to the runs' totals; returns the rows added. Raises MissingRun."""
        kept, attempts = self._number_attempts(connection)
        if kept:
            rows = self._rows if len(kept) == len(self._answers) else self._rows.take(kept)
            place = rows.schema.get_field_index("attempt")
            connection.register("batch", rows.set_column(place, "attempt", pa.array(attempts, pa.int64())))
            connection.execute("INSERT INTO answers BY NAME SELECT * FROM batch")
            self._write_calls(connection, kept, attempts)
            for run_id, added in _sums(self._answers[position] for position in kept).items():
                assignments = ", ".join(f"{name} = {name} + ?" for name in added)
                update_run(connection, path, run_id, assignments, list(added.values()))
        if self._documents.num_rows:
            connection.register("batch_documents", self._documents)
            connection.execute(
                "INSERT INTO documents BY NAME SELECT * FROM batch_documents WHERE document_hash NOT IN "
                "(SELECT d.document_hash FROM documents d SEMI JOIN batch_documents USING (document_hash))"
            )
        return len(kept)

    def _write_calls(self, connection: duckdb.DuckDBPyConnection, kept: list[int], attempts: list[int]) -> None:
        """Insert the calls of the rows that are new."""
        records = [self._answers[position] for position in kept]
        owned = [
            (record.run_id, attempt, record.doc_id, record.question_id, record.calls)
            for record, attempt in zip(records, attempts, strict=True)
            if record.calls
        ]
        if owned:
            connection.register("batch_calls", calls_table(owned))
            connection.execute("INSERT INTO calls BY NAME SELECT * FROM batch_calls")

    def _number_attempts(self, connection: duckdb.DuckDBPyConnection) -> tuple[list[int], list[int]]:
        """Positions of the rows that are new to their run, and the attempt number of each."""
        if not self._answers:
            return [], []
        connection.register("batch_keys", self._keys)
        # The inner join has the small batch on one side whatever the table's size; keys that are new are not in it.
        previous = {
            position: (highest, written)
            for position, highest, written in connection.execute(
                "SELECT k.position, max(a.attempt), bool_or(a.run_id = k.run_id) "
                "FROM answers a JOIN batch_keys k ON a.doc_id = k.doc_id AND a.question_id = k.question_id "
                "GROUP BY k.position"
            ).fetchall()
        }
        kept: list[int] = []
        attempts: list[int] = []
        in_batch: dict[tuple[str, str], set[str]] = {}
        for position, record in enumerate(self._answers):
            highest, written = previous.get(position, (0, False))
            runs = in_batch.setdefault((record.doc_id, record.question_id), set())
            if written or record.run_id in runs:
                continue
            runs.add(record.run_id)
            kept.append(position)
            attempts.append(highest + len(runs))
        return kept, attempts


def add_run(connection: duckdb.DuckDBPyConnection, run: RunRecord) -> bool:
    """Add a run, unless there is one of its id; says whether it did.

    Runs on one output follow each other, so one that is still `running` when the next is added was killed.
    """
    values = run_values(run)
    if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", [values["run_id"]]).fetchall():
        return False
    mark_killed_runs(connection)
    places = ", ".join("?" for _ in values)
    connection.execute(f"INSERT INTO runs ({', '.join(values)}) VALUES ({places})", list(values.values()))
    return True


def mark_killed_runs(connection: duckdb.DuckDBPyConnection) -> None:
    """End the runs that never said how they ended. The caller knows that none is on."""
    connection.execute(
        "UPDATE runs SET status = 'failed', error = 'killed', finished_at = coalesce("
        "(SELECT max(answered_at) FROM answers WHERE answers.run_id = runs.run_id), started_at) "
        "WHERE status = 'running'"
    )


def end_run(connection: duckdb.DuckDBPyConnection, path: object, ending: RunEnding) -> None:
    """Set how a run ended, and write its steps. Raises MissingRun, and ValueError for an unknown status."""
    if ending.status not in RUN_STATUSES:
        raise ValueError(f"unknown run status {ending.status!r}")
    values: dict[str, Any] = {
        "status": ending.status,
        "error": clean_text(ending.error),
        "finished_at": naive_utc(ending.finished_at),
        "forced_tokens": ending.forced_tokens,
        "load_seconds": ending.load_seconds,
        "seconds": ending.seconds,
        "statistics": clean_json(ending.statistics),
    }
    if ending.rows_reused is not None:
        values["rows_reused"] = ending.rows_reused
    update_run(connection, path, ending.run_id, ", ".join(f"{name} = ?" for name in values), list(values.values()))
    if ending.steps:
        connection.execute("DELETE FROM run_steps WHERE run_id = ?", [clean_text(ending.run_id)])
        columns = {name: [bucket[name] for bucket in ending.steps] for name in STEP_COLUMNS}
        connection.register("ended_steps", pa.table(columns))
        connection.execute("INSERT INTO run_steps BY NAME SELECT ? AS run_id, * FROM ended_steps",
                           [clean_text(ending.run_id)])  # fmt: skip


def update_run(
    connection: duckdb.DuckDBPyConnection, path: object, run_id: str, assignments: str, values: list[Any]
) -> None:
    """Set columns of a run. Raises MissingRun."""
    query = f"UPDATE runs SET {assignments} WHERE run_id = ? RETURNING 1"
    if not connection.execute(query, [*values, clean_text(run_id)]).fetchall():
        raise MissingRun(path, run_id)


WriteStep = RunRecord | RunEnding | AnswerBatch


def write_steps(records: Iterable[JournalRecord]) -> list[WriteStep]:
    """The records of a journal as steps to write in their order, what follows each other in one batch."""
    steps: list[WriteStep] = []
    answers: list[AnswerRecord] = []
    documents: list[DocumentRecord] = []
    for record in records:
        if isinstance(record, AnswerRecord):
            answers.append(record)
        elif isinstance(record, DocumentRecord):
            documents.append(record)
        elif isinstance(record, RunRecord | RunEnding):
            if answers or documents:
                steps.append(AnswerBatch(answers, documents))
                answers, documents = [], []
            steps.append(record)
    if answers or documents:
        steps.append(AnswerBatch(answers, documents))
    return steps


def write_step(connection: duckdb.DuckDBPyConnection, path: object, step: WriteStep) -> int:
    """Write one; returns the answers added. Raises MissingRun."""
    if isinstance(step, AnswerBatch):
        return step.write(connection, path)
    if isinstance(step, RunRecord):
        add_run(connection, step)
    else:
        end_run(connection, path, step)
    return 0


def _sums(records: Iterable[AnswerRecord]) -> dict[str, dict[str, int]]:
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
