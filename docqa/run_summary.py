"""How a run ended, as JSON-ready values and as lines for people; `--json`, `--on-finish` and the log all use these."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from docqa.exit_status import ENDED_ABNORMALLY, NOTHING_RUN, OUTPUT_HELD
from docqa.wording import bad_files_text, row_counts
from jobs.output_lock import OutputLocked
from jobs.run import RunOutcome

SHOWN_DOCUMENTS = 10


def run_summary(outcome: RunOutcome) -> dict[str, Any]:
    """The summary of a run that has a record in the database."""
    run = outcome.run
    return _with_message(
        asdict(run)
        | {
            "started_at": run.started_at.isoformat(),
            "finished_at": run.finished_at.isoformat() if run.finished_at else None,
            "config": json.loads(run.config),
            "bad_files": json.loads(run.bad_files or "[]"),
            "rows_pending": run.rows_pending,
            "rows_waiting": outcome.rows_waiting,
            "unreached_documents": outcome.unreached_documents,
            "database": str(outcome.database),
            "exit_status": outcome.exit_status,
        }
    )


def unrecorded_summary(
    error: Exception, exit_status: int, *, job_name: str | None, database: str | None
) -> dict[str, Any]:
    """The summary of a run without a record: `not_run`, `locked`, or `failed` if not even that could be written."""
    status = {NOTHING_RUN: "not_run", OUTPUT_HELD: "locked"}.get(exit_status, "failed")
    summary: dict[str, Any] = {"run_id": None, "job_name": job_name, "status": status, "error": str(error)}
    if isinstance(error, OutputLocked):
        summary["holder"] = asdict(error.holder)
    return _with_message(summary | {"database": database, "exit_status": exit_status})


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """What people are told at the end; nothing of a run without a record, whose error says all."""
    if summary["run_id"] is None:
        return []
    status = summary["status"].replace("_", " ")
    lines = [f"Run {summary['run_id']} {status}: {row_counts(summary)}. Answers: {summary['database']}"]
    if summary["rows_waiting"]:
        lines.append(
            f"{summary['rows_waiting']} answers wait in the journal; "
            "the next run writes them to the database, or docqa status --publish"
        )
    if summary["bad_files"]:
        lines.append(bad_files_text(summary["bad_files"]))
    unreached = summary["unreached_documents"]
    if unreached:
        more = len(unreached) - SHOWN_DOCUMENTS
        shown = ", ".join(unreached[:SHOWN_DOCUMENTS])
        lines.append(f"Documents with pending rows: {shown}{f' and {more} more' if more > 0 else ''}")
    return lines


def over_limit_text(summary: dict[str, Any]) -> str | None:
    """Why a run that finished has the exit status of one that did not: more rows failed than the job allows."""
    if summary["exit_status"] != ENDED_ABNORMALLY or summary["error"] is not None:
        return None
    limit = json.dumps(summary["config"]["run"]["max_failures"])
    return (
        f"{summary['rows_failed']:,} of {summary['rows_total']:,} rows failed, and run.max_failures is {limit}: "
        f"exit status {ENDED_ABNORMALLY}; docqa report says why they failed"
    )


def _with_message(summary: dict[str, Any]) -> dict[str, Any]:
    """Adds `message`: the whole in words, a few lines, for a mail."""
    faults = [text for text in (summary["error"], over_limit_text(summary)) if text is not None]
    return summary | {"message": "\n".join([*summary_lines(summary), *faults])}
