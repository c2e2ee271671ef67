"""An evaluation as tables for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from jobs.evaluate_summary import WHOLE_ANSWER

SHOWN_GROUPS = 10
SHOWN_PROPERTIES = 5
SHOWN_CHANGES = 20
SHOWN_CLASSES = 20
_LONGEST_VALUE = 60


def print_evaluation(found: dict[str, Any], console: Console) -> None:
    """The figures of one evaluation, and of a comparison if there is one; `--json` has every row."""
    _say(console, f"{found['answers']} against {found['gold']}", style="bold")
    _say(
        console,
        f"{found['rows']:,} rows with gold, {found['rows_answered']:,} of them with a valid answer (others are wrong); "
        f"all right: {found['rows_correct']:,}, {_share(found['accuracy'])}",
    )
    for name, text in (
        ("rows_without_gold", "rows have no gold and are left out"),
        ("gold_without_row", "rows of gold were not tried and are left out"),
    ):
        if found[name]:
            _say(console, f"{found[name]:,} {text}")
    if found["gold_names_ignored"]:
        names = ", ".join(found["gold_names_ignored"])
        _say(console, f"Names in gold that the answers don't have, left out: {names}")
    _print_defects(found, console)
    table = _table("property", "kind", "rows", "correct", "of answered", "F1", "error")
    titles = _names(found["properties"])
    for name, one in zip(titles, found["properties"], strict=True):
        mean_error = one.get("mean_absolute_error")
        table.add_row(
            name,
            one["kind"],
            f"{one['rows']:,}",
            _share(one["accuracy"]),
            _share(one["accuracy_of_answered"]),
            _share(one.get("f1", one.get("macro_f1"))),
            "" if mean_error is None else f"{mean_error:.4g}",
        )
    _heading(console, "Properties", "correct: exact match for text. F1: of tokens, for labels the mean of the classes")
    console.print(table)
    for name, one in zip(titles, found["properties"], strict=True):
        if "classes" in one:
            _print_classes(one, name, console)
    for name, one in zip(titles, found["properties"], strict=True):
        if one["calibration"] is not None:
            _print_calibration(one, name, console)
    for group, name in (("by_document", "doc_id"), ("by_question", "question_id")):
        _print_groups(found[group], name, console)
    if "comparison" in found:
        _print_comparison(found["comparison"], console)


def _names(properties: Sequence[dict[str, Any]]) -> list[str]:
    """What each property is called: with its schema where several schemas have one of its name."""
    plain = [one["property"] or WHOLE_ANSWER for one in properties]
    return [
        f"{name} of {one['schema']}" if plain.count(name) > 1 else name
        for name, one in zip(plain, properties, strict=True)
    ]


def _print_defects(found: dict[str, Any], console: Console) -> None:
    words = {
        "offset": "offsets of gold point elsewhere than at its text; texts are compared, so no answer suffers",
        "value": "values of gold can't be by the schema, and are not scored",
    }
    for kind, count in found["gold_defects"].items():
        _say(console, f"Defects of the data: {count:,} {words[kind]}", style="yellow")
    for one in found["gold_defect_examples"][:3]:
        _say(console, f"  {one['doc_id']} / {one['question_id']}: {one['text']}", style="dim")


def _print_classes(one: dict[str, Any], name: str, console: Console) -> None:
    _heading(console, f"Classes of {name}", "confusion: rows are gold, columns answers")
    confusion = one["confusion"]
    shown = range(min(len(one["classes"]), SHOWN_CLASSES))
    headings = [_value(confusion["predicted"][index]) for index in (*shown, -1)]
    table = _table("class", "precision", "recall", "F1", "gold", *headings)
    for index in shown:
        figures, counts = one["classes"][index], confusion["counts"][index]
        table.add_row(
            _value(figures["class"]),
            *(_share(figures[name]) for name in ("precision", "recall", "f1")),
            f"{figures['gold']:,}",
            *(f"{counts[other]:,}" for other in (*shown, -1)),
        )
    console.print(table)
    if len(one["classes"]) > SHOWN_CLASSES:
        _say(console, f"and {len(one['classes']) - SHOWN_CLASSES} more classes; --json has them all")


def _print_calibration(one: dict[str, Any], name: str, console: Console) -> None:
    figures = one["calibration"]
    _heading(
        console,
        f"Calibration of {name}",
        f"{figures['rows']:,} answers, mean confidence {_share(figures['mean_confidence'])}, right "
        f"{_share(figures['accuracy'])}; expected calibration error "
        f"{_share(figures['expected_calibration_error'])}, Brier score {figures['brier_score']:.3f}",
    )
    table = _table("confidence", "rows", "mean", "right")
    for part in figures["bins"]:
        if part["rows"]:
            shares = (_share(part["mean_confidence"]), _share(part["accuracy"]))
            table.add_row(f"{part['from']:.0%} to {part['to']:.0%}", f"{part['rows']:,}", *shares)
    console.print(table)


def _print_groups(groups: Sequence[dict[str, Any]], name: str, console: Console) -> None:
    if len(groups) < 2 or all(one["rows"] == 1 for one in groups):
        return
    known = list(dict.fromkeys(shown for one in groups for shown in one["accuracy_by_property"]))
    properties = known[:SHOWN_PROPERTIES]
    note = f"{min(len(groups), SHOWN_GROUPS)} of {len(groups):,}; rows that are right"
    if len(known) > len(properties):
        note += f", by {len(properties)} of {len(known)} properties; --json has all"
    _heading(console, f"Worst by {name}", note)
    table = _table(name, "rows", "answered", "all", *properties, "F1")
    for one in groups[:SHOWN_GROUPS]:
        shares = (_share(one["accuracy_by_property"].get(shown)) for shown in properties)
        counts = (f"{one['rows']:,}", f"{one['answered']:,}")
        table.add_row(one[name], *counts, _share(one["accuracy"]), *shares, _share(one["f1"]))
    console.print(table)


def _print_comparison(found: dict[str, Any], console: Console) -> None:
    _heading(console, f"Compared with {found['against']}", "p: two-sided, McNemar's exact test; of F1 the sign test")
    table = _table("", "rows", "before", "now", "better", "worse", "p")
    _add_pair(table, "all right", found["rows_correct"])
    for name, one in zip(_names(found["properties"]), found["properties"], strict=True):
        _add_pair(table, name, one)
        if "f1" in one:
            f1 = one["f1"]
            table.add_row(f"{name} (F1)", "", _share(f1["before"]), _share(f1["now"]), f"{f1['better']:,}",
                          f"{f1['worse']:,}", f"{f1['p_value']:.3g}")  # fmt: skip
    console.print(table)
    if found["rows_only_here"] or found["rows_only_there"]:
        _say(
            console,
            f"Not compared: {found['rows_only_here']:,} rows only here, {found['rows_only_there']:,} only there",
        )
    _say(console, f"{len(found['changed']):,} values changed")
    for one in found["changed"][:SHOWN_CHANGES]:
        now, before = (
            f"{_value(one[when])} ({'right' if one[f'{when}_correct'] else 'wrong'})"
            if one[f"{when}_status"] == "ok"
            else one[f"{when}_status"]
            for when in ("now", "before")
        )
        _say(console, f"  {one['doc_id']} / {one['question_id']} {one['property'] or ''}: {before} -> {now}")
    if len(found["changed"]) > SHOWN_CHANGES:
        _say(console, f"  and {len(found['changed']) - SHOWN_CHANGES:,} more; --json has them all")


def _add_pair(table: Table, name: str, pair: dict[str, Any]) -> None:
    rows = pair["rows"]
    shares = (_share(pair[part] / rows if rows else None) for part in ("correct_before", "correct_now"))
    table.add_row(name, f"{rows:,}", *shares, f"{pair['better']:,}", f"{pair['worse']:,}", f"{pair['p_value']:.3g}")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title, justify="left" if title == "kind" else "right")
    return table


def _heading(console: Console, title: str, note: str) -> None:
    console.print()
    _say(console, title, style="bold")
    _say(console, note, style="dim")


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, highlight=False, soft_wrap=True, style=style)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
