"""The report of a run as text for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from docqa.report_figures import PERCENTILES
from docqa.report_reuse import TOKEN_COUNTS
from docqa.report_time import TIME_PARTS
from docqa.wording import bad_files_text, bytes_text, duration, row_counts

CALL_NAMES = {"sample": "samples", "piece": "pieces", "combine": "combinings"}
CALL_TITLES = {
    "sample": "calls of questions asked several times",
    "piece": "calls for pieces of long documents",
    "combine": "calls that combine their answers",
}
"""Of rows that took several calls, what those were."""

SHOWN = 10
SHOWN_SLOWEST = 3


def print_report(report: dict[str, Any], console: Console) -> None:
    """The report for people."""
    console.print(f"Run {report['run_id']} of {report['job_name']}: {report['status']}", style="bold")
    if report["error"]:
        console.print(report["error"], soft_wrap=True)
    if report["bad_files"]:
        console.print(bad_files_text(report["bad_files"]), soft_wrap=True)
    console.print(_totals(report))
    _print_segments(report, console)
    _print_repeated(report, console)
    _print_latency(report, console)
    _print_documents(report, console)
    _print_failures(report, console)
    _print_changes(report, console)


def quotes_text(quotes: dict[str, int]) -> str:
    """What became of them: `136 found in their documents, 20 empty`; the second only if not 0."""
    empty = f", {quotes['empty']:,} empty" if quotes["empty"] else ""
    return f"{quotes['found']:,} found in their documents{empty}"


def _totals(report: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="left", style="dim")
    table.add_row("rows", f"{report['rows_total']:,}", row_counts(report))
    for status, count in report["rows_by_status"].items():
        table.add_row(f"  {status}", f"{count:,}")
    if report["rows_removed"]:
        table.add_row("  removed", f"{report['rows_removed']:,}", "by docqa compact; what is listed below lacks them")
    if report["quotes"]:
        table.add_row("quotes", f"{report['quotes']['quotes']:,}", quotes_text(report["quotes"]))
    if report["cut"]:
        cut = report["cut"]
        share = cut["used_document_tokens"] / cut["document_tokens"]
        table.add_row("cut", f"{cut['rows']:,}", f"had only the beginning of their document, {share:.1%} of its tokens")
    for entry in report["calls"]:
        note = f"{CALL_TITLES[entry['kind']]}, of {entry['rows']:,} rows"
        table.add_row(CALL_NAMES[entry["kind"]], f"{entry['calls']:,}", note)
    table.add_row("prompt tokens", f"{report['prompt_tokens']:,}")
    if report["reused_share"] is not None:
        table.add_row("  reused", f"{report['cached_tokens']:,}", f"{report['reused_share']:.1%} of prompt tokens")
        ratio = report["computed_to_minimum"]
        note = f"{ratio:.3f} of the least possible, {report['minimum_tokens']:,}" if ratio is not None else ""
        table.add_row("  computed", f"{report['computed_tokens']:,}", note)
    table.add_row("output tokens", f"{report['output_tokens']:,}", f"{report['forced_tokens']:,} forced by the grammar")
    if report["seconds"] is not None:
        speed = f"{report['rows_per_second'] or 0:.2f} rows/s, {report['prompt_tokens_per_second'] or 0:,.0f}"
        loading = duration(report["load_seconds"] or 0)
        table.add_row("time", duration(report["seconds"]), f"{speed} prompt tokens/s; {loading} to load")
    if report["time_parts"] is not None:
        for name, title in TIME_PARTS.items():
            table.add_row(f"  {name.removesuffix('_seconds')}", f"{report['time_parts'][name]:,.2f} s", title)
    if report["saved"] is not None:
        _add_savings(report["saved"], table)
    if report["kv_memory"] is not None:
        memory = report["kv_memory"]
        table.add_row("KV memory", bytes_text(memory["kv_bytes_at_peak"]), "at peak; "
                      f"{bytes_text(memory['kv_bytes_smallest'])} are enough to run every row")  # fmt: skip
    return table


def _add_savings(saved: dict[str, Any], table: Table) -> None:
    if saved["seconds"] is not None:
        share = saved["flops"] / saved["prompt_flops"]
        note = f"by reuse: {share:.2f} times the arithmetic of the prompts' {saved['prompt_seconds']:,.2f} s"
        table.add_row("saved", f"{saved['seconds']:,.2f} s", note)
    table.add_row("  KV", bytes_text(saved["kv_bytes"]), f"{bytes_text(saved['kv_bytes_per_token'])} a reused token")


def _print_segments(report: dict[str, Any], console: Console) -> None:
    if not report["segments"]:
        return
    console.print("\nSegments of the prompts", style="bold")
    table = _table("segment", "prompt tokens", "minimum", "computed", "reused", "share", "seconds saved")
    for entry in report["segments"]:
        share = f"{entry['cached_tokens'] / entry['prompt_tokens']:.1%}" if entry["prompt_tokens"] else ""
        saved = "" if entry["saved_seconds"] is None else f"{entry['saved_seconds']:,.2f}"
        table.add_row(entry["segment"], *(f"{entry[name]:,}" for name in TOKEN_COUNTS), share, saved)
    console.print(table)


def _print_repeated(report: dict[str, Any], console: Console) -> None:
    earlier = report["computed_in_earlier_runs"]
    if earlier is not None and earlier["tokens"]:
        console.print(f"{earlier['tokens']:,} of the computed tokens had been computed in an earlier run too: "
                      f"{earlier['documents']:,} documents, whose keys and values are not kept between runs",
                      highlight=False, soft_wrap=True)  # fmt: skip
    repeated = [entry for entry in report["repeated"] if entry["tokens"]]
    if not repeated:
        if report["repeated"]:
            console.print("nothing was computed more than once")
        return
    console.print("\nPrompt tokens computed more than once, by cause", style="bold")
    for entry in repeated:
        console.print(f"{entry['tokens']:,} {entry['cause'].replace('_', ' ')} ({entry['rows']:,} rows): "
                      f"{entry['meaning']}", highlight=False, soft_wrap=True)  # fmt: skip


def _print_latency(report: dict[str, Any], console: Console) -> None:
    percentiles = report["percentiles"]
    if percentiles["latency_seconds_p50"] is None:
        return
    console.print("\nSeconds of a row, from its start", style="bold")
    table = _table("", *("median" if name == "p50" else name for name in PERCENTILES))
    for column, title in (("ttft_seconds", "to the first token"), ("latency_seconds", "to the end")):
        values = (percentiles[f"{column}_{name}"] for name in PERCENTILES)
        table.add_row(title, *("" if value is None else f"{value:.2f}" for value in values))
    console.print(table)
    slowest = [
        f"{row['doc_id']} / {row['question_id']} ({row['latency_seconds']:.2f} s)"
        for row in report["slowest_rows"][:SHOWN_SLOWEST]
    ]
    console.print(f"slowest: {', '.join(slowest)}", highlight=False, soft_wrap=True)


def _print_documents(report: dict[str, Any], console: Console) -> None:
    if not report["documents"]:
        return
    console.print("\nLargest documents", style="bold")
    table = _table("document", "rows", "prompt tokens", "minimum", "computed", "reused", "seconds")
    for entry in report["documents"][:SHOWN]:
        figures = (f"{entry[name]:,}" for name in
                   ("rows", "prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens"))  # fmt: skip
        seconds = "" if entry["seconds"] is None else f"{entry['seconds']:.1f}"
        more = f" and {entry['doc_id_count'] - 1:,} more" if entry["doc_id_count"] > 1 else ""
        table.add_row(entry["doc_ids"][0] + more, *figures, seconds)
    console.print(table)
    if len(report["documents"]) > SHOWN:
        console.print(f"and {len(report['documents']) - SHOWN:,} more; reuse_by_document lists all")


def _print_failures(report: dict[str, Any], console: Console) -> None:
    if not report["failures"]:
        return
    console.print("\nFailures by cause, with the first row of each", style="bold")
    for cause in report["failures"][:SHOWN]:
        example = f"{cause['doc_id']} / {cause['question_id']}: {cause['error']}"
        console.print(f"{cause['rows']:,} {cause['status']}: {example}", highlight=False, soft_wrap=True)
    more = report["failures"][SHOWN:]
    if more:
        rows = sum(cause["rows"] for cause in more)
        console.print(f"and {rows:,} rows of {len(more):,} more causes; the view `errors` lists all")


def _print_changes(report: dict[str, Any], console: Console) -> None:
    previous = report["previous_run"]
    if previous is None:
        return
    changes = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in report["changes"].items() if count)
    took = "" if previous["seconds"] is None else f" in {duration(previous['seconds'])}"
    console.print(f"\nSince run {previous['run_id']}", style="bold")
    console.print(
        f"it had {row_counts(previous)}, {previous['computed_tokens']:,} tokens computed{took}; "
        f"rows against their attempt before: {changes or 'none'}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in (first, *others):
        table.add_column(title, justify="left" if title == first else "right")
    return table
