"""Keeping the database small: superseded attempts are removed, and the file is written anew without their space.

DuckDB gives space inside a file free for reuse and hardly ever back to the disk. So what is left is copied to a new
file beside the old one, which takes its name in one step: a kill at any moment leaves a whole database.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import duckdb

from jobs.errors import JobError, OutputError
from jobs.output_lock import OutputLock
from jobs.publish import publish_pending
from jobs.schema_types import quote_literal
from jobs.store import AnswerStore
from jobs.store_connection import STORAGE_VERSION, WRITER_CONFIG, DatabaseFile
from jobs.store_records import naive_utc, utc_now

BUSY_WAIT_SECONDS = 10.0
"""How long another process may keep the database open before compacting gives up."""


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What compacting did; bytes are those of the database file."""

    rows_removed: int
    bytes_before: int
    bytes_after: int


def compact(
    database: Path,
    *,
    keep_attempts: int | None = None,
    older_than_days: float | None = None,
    command: str = "docqa compact",
    wait_seconds: float = 0.0,
) -> CompactReport:
    """Remove a key's attempts beyond the newest `keep_attempts`, and those older than so many days; rewrite the file.

    The row that `latest_answers` shows always stays, and counts as one of the kept. Of documents, those stay that an
    answer is left of; runs stay, and remember how many of their rows were removed. With neither limit the file is only
    rewritten. Publishes what waits in the journal first.

    Raises OutputLocked while a run is on, OutputBusy while another process has the database open, JobError for a
    limit that makes no sense, OutputError for all other faults; the database is whole then, as it was before.
    """
    if keep_attempts is not None and keep_attempts < 1:
        raise JobError(f"keep {keep_attempts} attempts: at least 1 must be kept; a key's latest answer always stays")
    if older_than_days is not None and not older_than_days >= 0:
        raise JobError(f"older than {older_than_days} days: give 0 or more")
    path = Path(os.path.realpath(database))
    if not path.exists():
        raise OutputError(f"{path} does not exist; run the job first, or correct the path")
    busy_wait_seconds = max(wait_seconds, BUSY_WAIT_SECONDS)
    with OutputLock(path, command, wait_seconds=wait_seconds):
        AnswerStore(path, read_only=True, lock_timeout_seconds=busy_wait_seconds)  # nothing else is ever rewritten
        report = publish_pending(path, wait_seconds=busy_wait_seconds, locked=True)
        if report.rows_waiting and report.note is not None:
            raise OutputError(report.note)
        bytes_before = path.stat().st_size
        store = AnswerStore(path, lock_timeout_seconds=busy_wait_seconds)
        cutoff = None if older_than_days is None else utc_now() - timedelta(days=older_than_days)
        with store.writing("removing old attempts") as connection:
            rows_removed = _remove_attempts(connection, keep_attempts, cutoff)
        _rewrite(path)
        return CompactReport(rows_removed, bytes_before, path.stat().st_size)


def _remove_attempts(connection: duckdb.DuckDBPyConnection, keep_attempts: int | None, cutoff: datetime | None) -> int:
    removed = connection.execute(
        "WITH latest AS (SELECT arg_max(rowid, attempt + CASE WHEN status = 'ok' THEN 1000000000000 ELSE 0 END) AS row "
        "FROM answers GROUP BY doc_id, question_id), "
        "ranked AS (SELECT answers.rowid AS row, answered_at, latest.row IS NOT NULL AS is_latest, "
        "row_number() OVER (PARTITION BY doc_id, question_id ORDER BY latest.row IS NULL, attempt DESC) AS place "
        "FROM answers LEFT JOIN latest ON latest.row = answers.rowid) "
        "DELETE FROM answers WHERE rowid IN (SELECT row FROM ranked WHERE NOT is_latest "
        "AND (coalesce(place > $keep, false) OR coalesce(answered_at < $cutoff, false))) RETURNING run_id",
        {"keep": keep_attempts, "cutoff": naive_utc(cutoff)},
    ).fetchall()
    for run_id, rows in Counter(run_id for (run_id,) in removed).items():
        connection.execute("UPDATE runs SET rows_removed = rows_removed + ? WHERE run_id = ?", [rows, run_id])
    connection.execute(
        "DELETE FROM calls WHERE NOT EXISTS (SELECT 1 FROM answers WHERE answers.run_id = calls.run_id "
        "AND answers.attempt = calls.attempt AND answers.doc_id = calls.doc_id "
        "AND answers.question_id = calls.question_id)"
    )
    connection.execute(
        "DELETE FROM documents WHERE document_hash NOT IN "
        "(SELECT document_hash FROM answers WHERE document_hash IS NOT NULL)"
    )
    return len(removed)


def _rewrite(path: Path) -> None:
    """Copy a database to a new file of the same name, rights and owner."""
    new = DatabaseFile(path.with_name(path.name + ".compact"), 0.0)
    try:
        new.remove()
        # Beside the database, not in the current folder, where DuckDB would put what it has no memory for.
        with duckdb.connect(config=dict(WRITER_CONFIG, temp_directory=f"{new.path}.tmp")) as connection:
            # While this is attached, nobody else can write to the file that is about to be replaced.
            connection.execute(f"ATTACH {quote_literal(str(path))} AS old_file (READ_ONLY)")
            if path.with_name(path.name + ".wal").exists():
                raise OutputError(f"{path}: another process wrote to the database just now; compact it again later")
            connection.execute(
                f"ATTACH {quote_literal(str(new.path))} AS new_file (STORAGE_VERSION {quote_literal(STORAGE_VERSION)})"
            )
            connection.execute("COPY FROM DATABASE old_file TO new_file")
            connection.execute("DETACH new_file")
            _copy_rights(path, new.path)
            new.take_place(path)
    except (duckdb.Error, OSError) as error:
        raise DatabaseFile(path, 0.0).fault("compacting", error) from error
    finally:
        with suppress(OSError):
            new.remove()


def _copy_rights(old: Path, new: Path) -> None:
    status = old.stat()
    os.chmod(new, status.st_mode & 0o7777)
    with suppress(PermissionError):
        os.chown(new, status.st_uid, status.st_gid)
