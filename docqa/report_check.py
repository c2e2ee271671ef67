"""Proves that a database and the reports of its runs agree: tables with totals, and every report with both.

The figures of the page are read back from its HTML.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from docqa.report_figures import report_of
from docqa.report_page import page_of
from docqa.report_page_sums import page_disagreements
from docqa.report_reuse import TOKEN_COUNTS
from docqa.report_rows import page_data
from jobs.store import AnswerStore, RunRecord

_CLOCK_ERROR_SECONDS = 0.01

Pair = tuple[str, int, str, int]
"""What sums up to what, and what to which other sum."""


def disagreements(store: AnswerStore, runs: Iterable[RunRecord]) -> list[str]:
    """A sentence for each thing that does not add up, in the tables or in a run's report; empty if all does."""
    return [*store.check(), *(sentence for run in runs for sentence in _of_report(store, report_of(store, run.run_id)))]


def _of_report(store: AnswerStore, report: dict[str, Any]) -> list[str]:
    """What of a report and of its page does not add up to the run's totals.

    After `docqa compact` some rows of a run are gone from the tables while its totals still count them; then the
    parts are compared with what is left.
    """
    data = page_data(store, report)
    pairs = [
        *_rows(report),
        *_tokens(report),
        *_page(report, data),
        *page_disagreements(page_of(report, data), report),
    ]
    found = [
        f"run {report['run_id']}: the report's {left} sum up to {total:,}, but {right} to {expected:,}"
        for left, total, right, expected in pairs
        if total != expected
    ]
    parts = report["time_parts"]
    if parts is not None and abs(sum(parts.values()) - report["seconds"]) > _CLOCK_ERROR_SECONDS:
        found.append(f"run {report['run_id']}: the parts of its time are not its {report['seconds']:.2f} s")
    if parts is not None and min(parts.values()) < -_CLOCK_ERROR_SECONDS:
        found.append(f"run {report['run_id']}: its steps took longer than the run")
    return found


def _rows(report: dict[str, Any]) -> list[Pair]:
    rows = sum(report["rows_by_status"].values())
    ended = sum(part["rows_ok"] + part["rows_failed"] for part in report["timeline"]["intervals"])
    return [
        ("rows_by_status", rows, "rows_ok + rows_failed - rows_removed",
         report["rows_ok"] + report["rows_failed"] - report["rows_removed"]),
        ("failures", sum(cause["rows"] for cause in report["failures"]), "errors", len(report["errors"])),
        ("rows_by_status without ok", rows - report["rows_by_status"].get("ok", 0), "errors", len(report["errors"])),
        ("changes", sum(report["changes"].values()), "rows_by_status", rows),
        ("timeline", ended, "rows_by_status", rows if report["timeline"]["intervals"] else 0),
    ]  # fmt: skip


def _tokens(report: dict[str, Any]) -> list[Pair]:
    """Levels, documents and segments are the run, and causes the difference between computed and least possible.

    Segments and causes only of a run of which every row has them.
    """
    pairs: list[Pair] = []
    levels = {name: sum(level[name] for level in report["levels"]) for name in TOKEN_COUNTS}
    for name, total in levels.items():
        if not report["rows_removed"]:
            pairs.append((f"levels' {name}", total, f"the run's {name}", report[name]))
        pairs.append((f"documents' {name}", _sum(report["documents"], name), f"levels' {name}", total))
    if report["statistics"] is None or not report["segments"]:
        return pairs
    for name, total in levels.items():
        pairs.append((f"segments' {name}", _sum(report["segments"], name), f"levels' {name}", total))
    within = sum(entry["tokens"] for entry in report["repeated"] if entry["within_computed"])
    difference = levels["computed_tokens"] - levels["minimum_tokens"]
    pairs.append(("causes of computing again", within, "computed_tokens - minimum_tokens", difference))
    saved = report["saved"]
    for part in ("segments", "documents"):
        pairs.append((f"{part}' saved_flops", sum(entry["saved_flops"] or 0 for entry in report[part]), "the run's",
                      saved["flops"]))  # fmt: skip
    pairs.append(("steps' prompt_tokens", _sum(report["steps"], "prompt_tokens"), "the statistics'",
                  saved["prompt_tokens"]))  # fmt: skip
    return pairs


def _page(report: dict[str, Any], data: dict[str, Any]) -> list[Pair]:
    """The lists that the page's script shows; only if it has room for all rows."""
    pairs = [("page", data["total"], "rows_by_status", sum(report["rows_by_status"].values()))]
    for name in ("prompt_tokens", "cached_tokens", "minimum_tokens") if data["shown"] == data["total"] else ():
        place = data["columns"].index(name)
        listed = sum(row[place] or 0 for row in data["rows"])
        if not report["rows_removed"]:
            pairs.append((f"page's {name}", listed, f"the run's {name}", report[name]))
    return pairs


def _sum(entries: Iterable[dict[str, Any]], name: str) -> int:
    return sum(entry[name] for entry in entries)
