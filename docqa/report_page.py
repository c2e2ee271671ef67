"""The report as one HTML file that needs nothing else: figures and charts, and the answers to browse and search."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from docqa import report_charts
from docqa.report_changes import CHANGES
from docqa.report_documents import document_note, fitting_texts
from docqa.report_figures import PERCENTILES
from docqa.report_rows import DOCUMENT_PLACE, cut_text
from docqa.report_text import CALL_TITLES
from docqa.report_time import TIME_PARTS
from docqa.wording import bad_files_text, bytes_text, duration, row_counts
from jobs.errors import OutputError


def write_page(path: Path, page: str, database: Path) -> str:
    """Write a page, all of it or nothing; returns a sentence about it. Raises OutputError."""
    if os.path.realpath(path) == os.path.realpath(database):
        raise OutputError(f"{path} is the database; name another file for the page")
    content = page.encode()
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_bytes(content)
        os.replace(new, path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise OutputError(
            f"{path}: the page can't be written: {error.strerror}; name a file in a folder that exists"
        ) from error
    return f"the report is in {path} ({bytes_text(len(content))})"


def page_of(report: dict[str, Any], data: dict[str, Any], documents: Mapping[str, str] | None = None) -> str:
    """The HTML text of a report. `data` is that of page_data; `documents` are texts by hash, to show beside answers."""
    shown_hashes = [data["texts"][row[DOCUMENT_PLACE]] for row in data["rows"] if row[DOCUMENT_PLACE] is not None]
    texts, left_out = fitting_texts(documents or {}, shown_hashes)
    note = document_note(report, documents, len(texts), left_out)
    data = data | {"document_texts": texts}
    folder = resources.files("docqa").joinpath("html")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return render(
        report=report,
        row_counts=row_counts(report),
        bad_files_text=bad_files_text,
        percentiles=PERCENTILES,
        comparison=_comparison(report),
        level_titles=report_charts.LEVEL_TITLES,
        charts=report_charts,
        call_titles=CALL_TITLES,
        change_words=CHANGES,
        time_parts=TIME_PARTS,
        shown=data["shown"],
        texts_cut=data["texts_cut"],
        documents_shown=len(data["documents"]),
        config=json.dumps(report["config"], indent=2, ensure_ascii=False),
        style=Markup(style),
        script=Markup(script),
        style_digest=_digest(style),
        script_digest=_digest(script),
        data=_embedded(data),
        document_note=note,
    )


def render(**values: Any) -> str:
    """The template's text with these values."""
    return environment().get_template("report.html").render(**values)


def environment() -> Environment:
    """Escapes every value, knows no undefined ones, and has the filters of the template."""
    made = Environment(
        loader=PackageLoader("docqa", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bytes": bytes_text,
        "count": _count,
        "cut": cut_text,
        "duration": duration,
        "moment": _moment,
        "percent": _percent,
        "seconds": _seconds,
        "words": lambda name: name.replace("_", " "),
    }
    return made


def _comparison(report: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """A line each: what, in the previous run, in this one, and the difference in words."""
    previous = report["previous_run"]
    if previous is None:
        return []
    figures: list[tuple[str, str, Any]] = [
        ("rows asked for", "rows_total", _count),
        ("answered before", "rows_reused", _count),
        ("ok", "rows_ok", _count),
        ("failed", "rows_failed", _count),
        ("pending", "rows_pending", _count),
        ("prompt tokens", "prompt_tokens", _count),
        ("computed tokens", "computed_tokens", _count),
        ("reused share", "reused_share", _percent),
        ("computed, of the least possible", "computed_to_minimum", partial(_number, digits=3)),
        ("seconds saved by reuse", "saved_seconds", _seconds),
        ("output tokens", "output_tokens", _count),
        ("seconds to load", "load_seconds", _seconds),
        ("seconds to answer", "seconds", _seconds),
        ("rows a second", "rows_per_second", partial(_number, digits=2)),
    ]
    lines = []
    for title, name, words in figures:
        before, now = previous[name], report[name]
        difference = ""
        if before is not None and now is not None and before != now:
            amount = words(abs(now - before))
            difference = ("+" if now > before else "\N{MINUS SIGN}") + amount.replace("%", "points")
        lines.append((title, words(before), words(now), difference))
    return lines


def _embedded(data: Any) -> Markup:
    """JSON inside a script element: without `<` no text can end the element or open another."""
    return Markup(json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _digest(content: str) -> str:
    """What a content security policy calls an inline script or style by."""
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _seconds(value: float | None) -> str:
    return _number(value, 2)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}".replace("%", " %")


def _moment(text: str | None) -> str:
    return "" if text is None else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S UTC")
