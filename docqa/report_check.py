"""Proves that a database and the reports of its runs agree: tables with totals, and every report with both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from docqa.report_figures import report_of
from docqa.report_rows import page_data
from jobs.store import AnswerStore, RunRecord

_TOKENS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens")


def disagreements(store: AnswerStore, runs: Iterable[RunRecord]) -> list[str]:
    """A sentence for each thing that does not add up, in the tables or in a run's report; empty if all does."""
    return [*store.check(), *(sentence for run in runs for sentence in _of_report(store, report_of(store, run.run_id)))]


def _of_report(store: AnswerStore, report: dict[str, Any]) -> list[str]:
    """What of a report and of its page does not add up to the run's totals.

    After `docqa compact` some rows of a run are gone from the tables while its totals still count them; then the
    parts are compared with what is left.
    """
    rows = sum(report["rows_by_status"].values())
    parts = [
        ("rows_by_status", rows, "rows_ok + rows_failed - rows_removed",
         report["rows_ok"] + report["rows_failed"] - report["rows_removed"]),
        ("failures", sum(cause["rows"] for cause in report["failures"]), "errors", len(report["errors"])),
        ("rows_by_status without ok", rows - report["rows_by_status"].get("ok", 0), "errors", len(report["errors"])),
        ("changes", sum(report["changes"].values()), "rows_by_status", rows),
        ("timeline", sum(part["rows_ok"] + part["rows_failed"] for part in report["timeline"]["intervals"]),
         "rows_by_status", rows if report["timeline"]["intervals"] else 0),
    ]  # fmt: skip
    for name in _TOKENS:
        levels = sum(level[name] for level in report["levels"])
        if not report["rows_removed"]:
            parts.append((f"levels' {name}", levels, f"the run's {name}", report[name]))
        parts.append((f"documents' {name}", sum(document[name] for document in report["documents"]),
                      f"levels' {name}", levels))  # fmt: skip
    page = page_data(store, report)
    parts.append(("page", page["total"], "rows_by_status", rows))
    for name in ("prompt_tokens", "cached_tokens") if page["shown"] == page["total"] else ():
        place = page["columns"].index(name)
        listed = sum(row[place] or 0 for row in page["rows"])
        if not report["rows_removed"]:
            parts.append((f"page's {name}", listed, f"the run's {name}", report[name]))
    return [
        f"run {report['run_id']}: the report's {left} sum up to {total:,}, but {right} to {expected:,}"
        for left, total, right, expected in parts
        if total != expected
    ]
