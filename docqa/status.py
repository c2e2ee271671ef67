"""`docqa status`: what an output holds, what goes on with it, and what is left to do."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from docqa.exit_status import OUTPUT_HELD
from docqa.options import database_argument, json_option, quiet_option
from docqa.plain_console import plain_console
from docqa.progress import progress_line, share_done
from docqa.wording import bad_files_text, bytes_text, duration, row_counts
from jobs.journal import journal_path, unpublished_rows
from jobs.output_lock import LockHolder, lock_holder
from jobs.progress_file import read_progress
from jobs.publish import publish_pending
from jobs.store import AnswerStore, OutputBusy, RunRecord

SHOWN_RUNS = 10
PATIENCE_SECONDS = 5.0
"""How long to wait for a program that holds the database open; a publishing run needs a fraction of a second."""


@click.command("status")
@database_argument
@click.option(
    "--publish",
    is_flag=True,
    envvar="DOCQA_PUBLISH",
    help="First write the answers that wait in the journal to the database.",
)
@quiet_option
@json_option
def command(database: Path, publish: bool, quiet: bool, as_json: bool) -> None:
    """Show the last runs, whether one is going on, what is pending, and the size on disk."""
    published = publish_pending(database, wait_seconds=PATIENCE_SECONDS, command="docqa status") if publish else None
    if published is not None and not quiet:
        note = published.note or f"{published.rows_published:,} answers were published"
        click.echo(f"docqa: {note}", err=True)
    status = status_of(database)
    if as_json:
        click.echo(json.dumps(status, ensure_ascii=False))
    else:
        print_status(status, plain_console())
    if published is not None and published.rows_waiting:
        sys.exit(OUTPUT_HELD)


def status_of(database: Path) -> dict[str, Any]:
    """The state of an output as JSON-ready values. Raises OutputError if there is none, or it can't be read.

    While another program keeps the database open, `busy` says so and what only the database knows is left out.
    """
    holder = lock_holder(database)
    journal = journal_path(database)
    status: dict[str, Any] = {
        "database": os.path.abspath(database),
        "holder": asdict(holder) if holder is not None else None,
        "rows_in_journal": unpublished_rows(database) if journal.exists() else 0,
        "database_bytes": _size(database),
        "journal_bytes": _size(journal),
        "busy": None,
        "progress": _progress_of(database, holder) if holder is not None else None,
        "rows_pending": None,
        "runs": [],
        "failed_rows": {},
    }
    if not database.exists() and (holder is not None or status["journal_bytes"]):
        return status  # the first run has not got as far as to write an answer
    try:
        store = AnswerStore(database, read_only=True, lock_timeout_seconds=PATIENCE_SECONDS)
        runs = store.runs()
        with store.reading() as connection:
            failed = connection.execute("SELECT status, count(*) FROM errors GROUP BY 1 ORDER BY 2 DESC, 1").fetchall()
    except OutputBusy as error:
        return status | {"busy": str(error)}
    return status | {
        "rows_pending": runs[0].rows_pending if runs else 0,
        "runs": [_run_of(run, is_held=holder is not None) for run in runs[:SHOWN_RUNS]],
        "failed_rows": dict(failed),
    }


def print_status(status: dict[str, Any], console: Console) -> None:
    """The state for people."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    journal = f", {bytes_text(status['journal_bytes'])} of journal" if status["journal_bytes"] else ""
    say(f"{status['database']}: {bytes_text(status['database_bytes'])}{journal}")
    holder = status["holder"]
    if holder is None:
        say("No run is going on.")
    else:
        say(f"Held by process {holder['pid']} on {holder['host']} since {holder['started_at']}: {holder['command']}")
        if status["progress"] is not None:
            say(f"Now: {status['progress']['line']}")
    if status["rows_in_journal"]:
        waiting = f"{status['rows_in_journal']:,} answers wait in the journal"
        say(f"{waiting}; docqa status --publish writes them to the database" if holder is None else waiting)
    if status["busy"] is not None:
        say(status["busy"])
        return
    if not status["runs"]:
        say("There is no run in it yet.")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("run", "started (UTC)", "took", "status", "reused", "rows"):
        right = title in ("took", "reused")
        table.add_column(title, justify="right" if right else "left", no_wrap=title != "rows", overflow="fold")
    for run in status["runs"]:
        took = duration(run["seconds"]) if run["seconds"] is not None else ""
        started = run["started_at"][:16].replace("T", " ")
        reused = "" if run["reused_share"] is None else f"{run['reused_share']:.1%}"
        rows = row_counts(run) + (f"; {len(run['bad_files']):,} bad files" if run["bad_files"] else "")
        table.add_row(run["run_id"], started, took, run["state"].replace("_", " "), reused, rows)
    console.print(table)
    latest = status["runs"][0]
    if latest["bad_files"]:
        say(f"In the latest run, {bad_files_text(latest['bad_files'])}.")
    if latest["state"] == "running":
        done = latest["rows_ok"] + latest["rows_failed"] + status["rows_in_journal"]
        say(f"{done:,} of {latest['rows_total'] - latest['rows_reused']:,} rows of this run are answered so far.")
        return
    if latest["error"] is not None:
        say(f"The latest run ended early: {latest['error']}")
    if status["rows_pending"]:
        say(f"{status['rows_pending']:,} rows of the latest run are pending; the next run answers them.")
    if status["failed_rows"]:
        failed = ", ".join(f"{rows:,} {name}" for name, rows in status["failed_rows"].items())
        say(f"Without a valid answer: {failed}; the view `errors` lists them, docqa retry answers them again.")


def _progress_of(database: Path, holder: LockHolder) -> dict[str, Any] | None:
    """How far the run that is on is, as the run itself tells it; `line` says it in words."""
    found = read_progress(database)
    if found is None or found.pid != holder.pid:
        return None
    progress = found.progress
    if progress is None:
        return {"stage": found.stage, "line": found.stage}
    fields = asdict(progress) | {"share_done": share_done(progress)}
    return {"stage": found.stage, "line": progress_line(progress).strip(), **fields}


def _run_of(run: RunRecord, *, is_held: bool) -> dict[str, Any]:
    """A run's row. `state` is its status; `killed` for one that says it is running while nobody holds the output."""
    ended = run.finished_at or (datetime.now(UTC) if run.status == "running" and is_held else None)
    return {
        "run_id": run.run_id,
        "job_name": run.job_name,
        "state": "killed" if run.status == "running" and not is_held else run.status,
        "started_at": run.started_at.isoformat(),
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
        "seconds": (ended - run.started_at).total_seconds() if ended is not None else None,
        "rows_total": run.rows_total,
        "rows_ok": run.rows_ok,
        "rows_failed": run.rows_failed,
        "rows_reused": run.rows_reused,
        "rows_pending": run.rows_pending,
        "reused_share": run.cached_tokens / run.prompt_tokens if run.prompt_tokens else None,
        "bad_files": json.loads(run.bad_files or "[]"),
        "error": run.error,
    }


def _size(path: Path) -> int:
    """Bytes of a file and, for a database, its write-ahead log; 0 for none."""
    return sum(part.stat().st_size for part in (path, path.with_name(path.name + ".wal")) if part.exists())
