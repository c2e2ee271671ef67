"""A plan for people: a table of figures, the tree of what rows share, warnings, and rows that can't run."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from docqa.wording import bytes_text, duration

SHOWN_REJECTED_ROWS = 20


def print_plan(summary: dict[str, Any], console: Console) -> None:
    """Print what `plan_summary` says."""
    console.print(_figures(summary))
    if summary["shared_parts"]["saved_tokens_below"] + summary["shared_parts"]["saved_tokens"]:
        console.print(_tree(summary["shared_parts"]))
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", soft_wrap=True)
    for rejected in summary["rejected_rows"][:SHOWN_REJECTED_ROWS]:
        key = f"{rejected['doc_id']} / {rejected['question_id']}"
        console.print(f"{rejected['status']}: {key}: {rejected['error']}", soft_wrap=True)
    more = len(summary["rejected_rows"]) - SHOWN_REJECTED_ROWS
    if more > 0:
        console.print(f"and {more} more rows that can't run; --json lists all")
    console.print(f"model {summary['model']}, answers to {summary['database']}", soft_wrap=True)


def _figures(summary: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="left", style="dim", overflow="fold")

    def row(name: str, value: int | str, note: str = "") -> None:
        table.add_row(name, value if isinstance(value, str) else f"{value:,}", note)

    _rows(summary, row)
    _tokens(summary, row)
    _memory(summary, row)
    _time(summary, row)
    for schema in summary["schemas"]:
        how = "read from disk" if schema["from_disk"] else "to compile, in the background"
        row(f"schema {schema['schema']}", f"{schema['seconds']:.1f} s", f"{how}; {schema['backend']}")
    return table


def _rows(summary: dict[str, Any], row: Any) -> None:
    files = "1 file" if summary["files"] == 1 else f"{summary['files']:,} files"
    row("rows", summary["rows"], f"{summary['layout']} layout, {files}")
    row("  new", summary["rows_new"])
    if summary["rows_changed"]:
        parts = sorted(summary["changed_by"].items(), key=lambda part: (-part[1], part[0]))
        row("  changed", summary["rows_changed"], ", ".join(f"{name} of {rows:,}" for name, rows in parts))
    if summary["rows_failed_before"]:
        row("  failed before", summary["rows_failed_before"])
    row("  done", summary["rows_done"], "have a valid answer already")
    row("to run", summary["rows_to_run"])
    if summary["rows_waiting"]:
        note = f"for answers of others; {summary['waiting_known_tokens']:,} of their tokens are known, the rest depends"
        row("  waiting", summary["rows_waiting"], f"{note} on the answers")
    if summary["rows_identical"]:
        row("  identical", summary["rows_identical"], "ask the same as another row, and get its answer")
    if summary["rows_cut"]:
        row("  cut", summary["rows_cut"], f"get the beginning of their document ({summary['documents_cut']:,} of them)")
    if summary["rows_split"]:
        note = f"asked of pieces of their document: {summary['piece_calls']:,} calls, and those that combine answers"
        row("  in pieces", summary["rows_split"], note)
    if summary["rows_sampled"]:
        row(
            "  sampled",
            summary["rows_sampled"],
            f"asked several times: {summary['sample_calls']:,} calls, a row's prompt counts once",
        )
    statuses = sorted(summary["rejected_by_status"].items(), key=lambda part: (-part[1], part[0]))
    row("that can't run", summary["rows_rejected"], ", ".join(f"{rows:,} {status}" for status, rows in statuses))
    if summary["rows_gone"]:
        row("gone", summary["rows_gone"], "answered once, not in the input any more")
    row("documents", summary["documents"], f"{summary['document_tokens']:,} tokens")


def _tokens(summary: dict[str, Any], row: Any) -> None:
    row("prompt tokens", summary["prompt_tokens"], f"longest prompt {summary['longest_prompt_tokens']:,}")
    share = f"{summary['hit_share']:.1%}, the expected hit share" if summary["hit_share"] is not None else ""
    row("  shared", summary["shared_tokens"], share)
    row("minimum tokens", summary["minimum_tokens"], "the least that must be computed")
    in_order = summary["input_order"]
    if in_order is None:
        return
    row("grouping saves", summary["shared_tokens"], "tokens, against no reuse")
    if in_order["saved_tokens"] is None:
        row("", "", f"against input order: {in_order['note']}")
        return
    row(
        "",
        in_order["saved_tokens"],
        f"tokens, against recency in input order in a pool of {in_order['pool_pages']:,} pages"
        + (f"; {in_order['note']}" if in_order["note"] else ""),
    )


def _memory(summary: dict[str, Any], row: Any) -> None:
    if not summary["rows_to_run"]:
        return
    dtype = summary["kv_dtype"]
    row(
        "peak KV memory",
        bytes_text(summary["peak_kv_bytes"][dtype]),
        f"expected with {summary['rows_at_a_time']} rows at a time, {summary['peak_kv_pages']:,} pages; "
        f"{summary['kv_bytes_per_token']:,} bytes a token in {dtype}: {summary['kv_bytes_per_token_derived']}",
    )
    row(
        "smallest KV memory",
        bytes_text(summary["smallest_kv_bytes"][dtype]),
        f"{summary['smallest_kv_bytes'][dtype]:,} bytes; still computes everything once, with fewer rows at a time",
    )


def _time(summary: dict[str, Any], row: Any) -> None:
    estimate = summary["time_estimate"]
    if estimate is None:
        row("time", "", "no run with this model and these settings on this machine yet, so it can't be estimated")
        return
    if not summary["rows_to_run"]:
        row("time", duration(estimate["seconds"]), "to plan; nothing is left to compute")
        return
    parts = [
        f"{duration(estimate[name])} {word}"
        for name, word in (
            ("prepare_seconds", "to plan"),
            ("model_seconds", "to load the model"),
            ("prompt_seconds", "for prompts"),
            ("output_seconds", "for answers"),
            ("other_seconds", "for the rest"),
        )
        if estimate[name] >= 0.5
    ]
    runs = "1 run" if estimate["runs"] == 1 else f"{estimate['runs']} runs"
    if estimate["error"] is None:
        error = f"by the speed of {runs} on this machine, too few to tell the error"
    else:
        error = f"give or take {estimate['error']:.0%}, by the speed of {runs} on this machine"
    if not estimate["same_answers"]:
        error += ", none with this schema and max_tokens"
    row("time", duration(estimate["seconds"]), f"{error}; {', '.join(parts)}")


def _tree(part: dict[str, Any]) -> Tree:
    tree = Tree(_part_label(part) if part["tokens"] else Text("what rows share"))
    _add_parts(tree, part)
    return tree


def _add_parts(tree: Tree, part: dict[str, Any]) -> None:
    for child in part["parts"]:
        _add_parts(tree.add(_part_label(child)), child)
    if part["parts"] and part["saved_tokens_left_out"]:
        tree.add(Text(f"smaller parts save {part['saved_tokens_left_out']:,}", style="dim"))


def _part_label(part: dict[str, Any]) -> Text:
    names = []
    for segment in part["segments"]:
        if segment == "document" and part["doc_id"] is not None:
            names.append(f"document {part['doc_id']}")
        elif segment == "document":
            names.append(f"beginning of {part['documents']:,} documents")
        else:
            names.append({"system": "system text", "question": "beginning of questions"}[segment])
    label = Text(" + ".join(names))
    figures = f": {part['tokens']:,} tokens x {part['rows']:,} rows, saves {part['saved_tokens']:,}"
    return label.append(figures, style="dim")
