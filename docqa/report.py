"""What `docqa report` says of a run: reuse, speed and failures, all from the database."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from docqa.progress import duration
from jobs.errors import OutputError
from jobs.store import AnswerStore

SHOWN_DOCUMENTS = 10


def report_of(store: AnswerStore, run_id: str | None) -> dict[str, Any]:
    """The report of a run (None: the latest) as JSON-ready values. Raises OutputError if there is none."""
    run = store.latest_run() if run_id is None else store.run(run_id)
    if run is None:
        known = ", ".join(found.run_id for found in store.runs()[:10])
        raise OutputError(
            f"{store.path} has no run{f' {run_id}; it has {known}' if run_id else ' yet; run the job first'}"
        )
    with store.reading() as connection:

        def rows(query: str) -> list[dict[str, Any]]:
            result = connection.execute(query, [run.run_id])
            names = [column[0] for column in result.description or ()]
            return [dict(zip(names, values, strict=True)) for values in result.fetchall()]

        statuses = rows("SELECT status, count(*) AS rows FROM answers WHERE run_id = ? GROUP BY ALL ORDER BY 2 DESC, 1")
        percentiles = rows(
            "SELECT " + ", ".join(
                f"quantile_cont({name}, {share}) AS {name}_p{round(share * 100)}"
                for name in ("ttft_seconds", "latency_seconds") for share in (0.5, 0.95)
            ) + " FROM answers WHERE run_id = ? AND prompt_tokens IS NOT NULL"
        )  # fmt: skip
        documents = rows(
            "SELECT * EXCLUDE (run_id) FROM reuse_by_document WHERE run_id = ? ORDER BY prompt_tokens DESC, 1"
        )
        errors = rows(
            "SELECT doc_id, question_id, status, error FROM answers WHERE run_id = ? AND status <> 'ok' ORDER BY ALL"
        )
    totals = asdict(run) | {
        "config": json.loads(run.config),
        "started_at": run.started_at.isoformat(),
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
        "rows_pending": run.rows_pending,
    }
    reached = run.prompt_tokens > 0
    return totals | {
        "rows_by_status": {entry["status"]: entry["rows"] for entry in statuses},
        "reused_share": run.cached_tokens / run.prompt_tokens if reached else None,
        "computed_to_minimum": run.computed_tokens / run.minimum_tokens if run.minimum_tokens else None,
        "rows_per_second": _per_second(run.rows_ok + run.rows_failed, run.seconds),
        "prompt_tokens_per_second": _per_second(run.prompt_tokens, run.seconds),
        "output_tokens_per_second": _per_second(run.output_tokens, run.seconds),
        "percentiles": percentiles[0],
        "documents": documents,
        "errors": errors,
    }


def print_report(report: dict[str, Any], console: Console) -> None:
    """The report for people."""
    console.print(f"Run {report['run_id']} of {report['job_name']}: {report['status']}", markup=False, style="bold")
    if report["error"]:
        console.print(report["error"], markup=False, soft_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="left", style="dim")
    table.add_row("rows", f"{report['rows_total']:,}", _counts(report))
    for status, count in report["rows_by_status"].items():
        table.add_row(f"  {status}", f"{count:,}")
    table.add_row("prompt tokens", f"{report['prompt_tokens']:,}")
    if report["reused_share"] is not None:
        table.add_row("  reused", f"{report['cached_tokens']:,}", f"{report['reused_share']:.1%} of prompt tokens")
        ratio = report["computed_to_minimum"]
        note = f"{ratio:.3f} of the least possible, {report['minimum_tokens']:,}" if ratio is not None else ""
        table.add_row("  computed", f"{report['computed_tokens']:,}", note)
    table.add_row("output tokens", f"{report['output_tokens']:,}", f"{report['forced_tokens']:,} forced by the grammar")
    if report["seconds"] is not None:
        speed = f"{report['rows_per_second']:.2f} rows/s, {report['prompt_tokens_per_second']:,.0f} prompt tokens/s"
        table.add_row("time", duration(report["seconds"]), f"{speed}; {duration(report['load_seconds'] or 0)} to load")
    percentiles = report["percentiles"]
    if percentiles["latency_seconds_p50"] is not None:
        for name, title in (("ttft_seconds", "first token"), ("latency_seconds", "whole answer")):
            half, most = percentiles[f"{name}_p50"], percentiles[f"{name}_p95"]
            table.add_row(title, f"{half:.2f} s", f"median, from the row's start; {most:.2f} s for 95 %")
    console.print(table)
    if report["documents"]:
        console.print("\nLargest documents", style="bold")
        largest = Table(box=None, pad_edge=False)
        for title in ("document", "rows", "prompt tokens", "minimum", "computed", "reused"):
            largest.add_column(title, justify="left" if title == "document" else "right")
        for entry in report["documents"][:SHOWN_DOCUMENTS]:
            figures = (f"{entry[name]:,}" for name in
                       ("rows", "prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens"))  # fmt: skip
            largest.add_row(entry["document_hash"][:12], *figures)
        console.print(largest)
    for entry in report["errors"][:SHOWN_DOCUMENTS]:
        line = f"{entry['status']}: {entry['doc_id']} / {entry['question_id']}: {entry['error']}"
        console.print(line, markup=False, soft_wrap=True)
    if len(report["errors"]) > SHOWN_DOCUMENTS:
        console.print(f"and {len(report['errors']) - SHOWN_DOCUMENTS} more; the view `errors` lists all", markup=False)


def _counts(report: dict[str, Any]) -> str:
    parts = []
    if report["rows_reused"]:
        parts.append(f"{report['rows_reused']:,} answered before")
    if report["rows_pending"]:
        parts.append(f"{report['rows_pending']:,} pending")
    return ", ".join(parts)


def _per_second(count: int, seconds: float | None) -> float | None:
    return count / seconds if seconds else None
