"""Charts as inline SVG. Positions across are percentages and text is in pixels, so that they fit any width unscaled.

Colours and patterns are classes of html/report.css; the element tree escapes every text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from docqa.report_rows import MOST_ID_CHARACTERS, cut_text
from docqa.wording import duration
from jobs.step_summary import StepBucket, merged_buckets

BAND_HEIGHT = 16.0
"""Pixels down that a name needs; of documents that are too many for that, neighbours are drawn as one."""
USUAL_HEIGHT = 560.0
MOST_HEIGHT = 1000.0


def tree_chart(report: dict[str, Any]) -> Markup:
    """The prefix tree as an icicle from left to right: across are token positions of a prompt, down are rows.

    A box is a part of prompts that rows share, so its area is the prompt tokens that were asked for; of its height,
    the dark part was computed. A document's own level is drawn at the mean length of its rows.
    """
    bands = [_band(document) for document in report["documents"] if document["levels"]]
    rows = sum(band["rows"] for band in bands)
    longest = max((sum(band["lengths"]) for band in bands), default=0)
    if not rows or not longest:
        return Markup()
    height = max(min(USUAL_HEIGHT, len(bands) * 2.5 * BAND_HEIGHT), len(bands) * BAND_HEIGHT)
    if height > MOST_HEIGHT:
        height = USUAL_HEIGHT
    bands = _merged(bands, rows * BAND_HEIGHT * 0.9 / height)
    chart = _svg(height + 26, "The prefix tree: tokens of each part of the prompts, computed and reused")
    top = 0.0
    shared = report["levels"][0]
    shared_share = max(band["lengths"][0] for band in bands) / longest
    _box(chart, 0, 0, shared_share, height, shared["computed_tokens"] / (shared["prompt_tokens"] or 1),
         f"shared by all rows: {_reuse_words(shared)}")  # fmt: skip
    for band in bands:
        band_height = height * band["rows"] / rows
        left = band["lengths"][0] / longest
        gap = 1.0 if band_height > 4 else 0.0
        for depth in range(1, len(band["lengths"])):
            width = band["lengths"][depth] / longest
            level = band["levels"][depth]
            title = f"{band['name']}, {LEVEL_TITLES[level['level']]}: {_reuse_words(level)}"
            _box(chart, left, top, width, band_height - gap, level["computed_tokens"] / (level["prompt_tokens"] or 1),
                 title)  # fmt: skip
            left += width
        # Inside a long box, beside a short one; the inner picture cuts off a name that is too long.
        start, css = (shared_share, "label") if left - shared_share > 0.45 else (left, "label outside")
        inner = _add(chart, "svg", x=_percent(start), y=top, width=_percent(1 - start), height=band_height)
        _text(inner, 6, band_height / 2 + 4, f"{band['name']} · {_noun(band['rows'], 'row')}", css=css)
        top += band_height
    _axis(chart, height, longest, lambda value: f"{value:,.0f}", "tokens")
    return _markup(chart)


LEVEL_TITLES = {
    "all": "shared by all rows",
    "schema": "shared by the rows of a schema",
    "document": "shared by the rows of a document",
    "row": "a row's own",
}


def _band(document: dict[str, Any]) -> dict[str, Any]:
    """A document as the icicle needs it: a name, its rows that reached the model, and each level's tokens a row."""
    more = document["doc_id_count"] - 1
    name = cut_text(document["doc_ids"][0], MOST_ID_CHARACTERS) + (f" and {_noun(more, 'more id')}" if more else "")
    rows = document["levels"][0]["rows"]
    lengths = [level["prompt_tokens"] / rows for level in document["levels"]]
    return {"name": name, "rows": rows, "lengths": lengths, "levels": document["levels"]}


def _merged(bands: Sequence[dict[str, Any]], least_rows: float) -> list[dict[str, Any]]:
    """The bands in their order; neighbours as one, until each has enough rows to be drawn and named."""
    groups: list[list[dict[str, Any]]] = [[]]
    for band in bands:
        if sum(each["rows"] for each in groups[-1]) >= least_rows:
            groups.append([])
        groups[-1].append(band)
    if len(groups) > 1 and sum(band["rows"] for band in groups[-1]) < least_rows:
        groups[-2:] = [groups[-2] + groups[-1]]
    return [_one_band(group) for group in groups]


def _one_band(bands: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(bands) == 1:
        return bands[0]
    rows = sum(band["rows"] for band in bands)
    counts = ("prompt_tokens", "computed_tokens", "cached_tokens")
    levels = [
        {"level": parts[0]["level"]} | {name: sum(part[name] for part in parts) for name in counts}
        for parts in zip(*(band["levels"] for band in bands), strict=True)
    ]
    lengths = [level["prompt_tokens"] / rows for level in levels]
    return {"name": f"{len(bands):,} documents like {bands[0]['name']}", "rows": rows, "lengths": lengths,
            "levels": levels}  # fmt: skip


def timeline_chart(timeline: dict[str, Any]) -> Markup:
    """Rows that ended in each interval of the run; those that failed on top, with a pattern."""
    intervals = timeline["intervals"]
    most = max((part["rows_ok"] + part["rows_failed"] for part in intervals), default=0)
    if not most:
        return Markup()
    height = 96.0
    chart = _svg(height + 26, f"Rows that ended over the time of the run, at most {most:,} in one interval")
    width = 1 / len(intervals)
    for number, part in enumerate(intervals):
        bottom = height
        start, end = (duration(timeline["interval_seconds"] * edge) for edge in (number, number + 1))
        title = f"{start} to {end}: {part['rows_ok']:,} rows ok, {part['rows_failed']:,} failed"
        for name, css in (("rows_ok", "bar"), ("rows_failed", "failed")):
            tall = height * part[name] / most
            if tall:
                bottom -= tall
                bar = _add(chart, "rect", css, x=_percent(number * width), y=bottom, width=_percent(width * 0.86),
                           height=tall)  # fmt: skip
                _add(bar, "title").text = title
    _axis(chart, height, timeline["seconds"], duration, "since the start")
    return _markup(chart)


MOST_COLUMNS = 120


def steps_chart(steps: Sequence[dict[str, Any]], pool_pages: int) -> Markup:
    """Where each interval's seconds went, stacked from the bottom, and as a line the KV pages in use of the pool's.

    What a column leaves open at its top was spent outside the engine.
    """
    if not steps:
        return Markup()
    together = -(-len(steps) // MOST_COLUMNS)
    columns = merged_buckets([StepBucket(**step) for step in steps], together)
    total = columns[-1].started_seconds + columns[-1].seconds
    height = 120.0
    chart = _svg(height + 26, "What the seconds of the run were spent on, from its start to its end")
    points = []
    for column in columns:
        left, width = column.started_seconds / total, column.seconds / total
        pages = column.kv_pages / (pool_pages or 1)
        points += [f"{100 * left:.2f},{100 * (1 - pages):.2f}", f"{100 * (left + width):.2f},{100 * (1 - pages):.2f}"]
        group = _add(chart, "g")
        _add(group, "title").text = _column_title(column, pool_pages)
        _add(group, "rect", "none", x=_percent(left), y=0, width=_percent(width), height=height)
        bottom = height
        for name, css in STEP_CLASSES.items():
            tall = height * getattr(column, name) / (column.seconds or 1)
            if tall > 0.1:
                bottom -= tall
                _add(group, "rect", css, x=_percent(left), y=bottom, width=_percent(width), height=tall)
    square = _add(chart, "svg", x=0, y=0, width="100%", height=height, viewBox="0 0 100 100",
                  preserveAspectRatio="none")  # fmt: skip
    for css in ("line pages-under", "line pages"):  # so that it is seen on every ground
        _add(square, "polyline", css, points=" ".join(points))
    _axis(chart, height, total, duration, "since the run was ready")
    return _markup(chart)


STEP_CLASSES = {"prompt_seconds": "computed", "output_seconds": "bar", "mask_seconds": "mask"}
"""The parts of a column, from the bottom, with their classes of html/report.css."""


def _column_title(column: StepBucket, pool_pages: int) -> str:
    start, end = column.started_seconds, column.started_seconds + column.seconds
    inside = column.prompt_seconds + column.output_seconds + column.mask_seconds
    return (
        f"{start:,.1f} s to {end:,.1f} s, {_noun(column.steps, 'step')}: {column.prompt_seconds:,.2f} s for "
        f"{column.prompt_tokens:,} prompt tokens, {column.output_seconds:,.2f} s for {column.output_tokens:,} output "
        f"tokens, {column.mask_seconds:,.2f} s for masks, {max(column.seconds - inside, 0):,.2f} s outside; up to "
        f"{_noun(column.running_rows, 'row')} at once, {column.kv_pages:,} of {pool_pages:,} KV pages"
    )


def latency_chart(curve: dict[str, list[float]]) -> Markup:
    """The share of rows that had their first token, and their end, within so many seconds; seconds grow by tenfolds."""
    series = [(curve["ttft_seconds"], "line first", "first token"), (curve["latency_seconds"], "line", "end")]
    series = [entry for entry in series if entry[0]]
    values = [max(value, 1e-3) for entry in series for value in entry[0]]
    if not values:
        return Markup()
    low, high = math.log10(min(values)), math.log10(max(values))
    high = max(high, low + 0.5)
    height = 180.0
    chart = _svg(height + 26, "Share of rows that had their first token, and their end, within so many seconds")
    for share in (0.5, 0.95):
        y = height * (1 - share)
        _add(chart, "line", "grid", x1="0%", x2="100%", y1=y, y2=y)
        _text(chart, "100%", y + 15, "half of the rows" if share == 0.5 else "95 %", css="end")
    for power in range(math.floor(low), math.ceil(high) + 1):
        for digit in (1, 2, 5):
            x = (math.log10(digit) + power - low) / (high - low)
            if 0 <= x <= 1:
                _add(chart, "line", "grid", x1=_percent(x), x2=_percent(x), y1=0, y2=height)
                _text(chart, _percent(x), height + 18, f"{digit * 10.0**power:g} s", css=_anchor(x))
    # Lines know no percentages: they are drawn in a square of their own, stretched to the chart.
    square = _add(chart, "svg", x=0, y=0, width="100%", height=height, viewBox="0 0 100 100",
                  preserveAspectRatio="none")  # fmt: skip
    for seconds, css, _ in series:
        places = [100 * (math.log10(max(value, 1e-3)) - low) / (high - low) for value in seconds]
        points = " ".join(f"{x:.2f},{100 - share:.2f}" for share, x in enumerate(places))
        _add(square, "polyline", css, points=points)
    return _markup(chart)


def share_bar(parts: Sequence[tuple[str, float, str]]) -> Markup:
    """One bar of parts side by side; each is a class, an amount and a title."""
    total = sum(amount for _, amount, _ in parts) or 1
    chart = _svg(14, "; ".join(title for _, _, title in parts))
    left = 0.0
    for css, amount, title in parts:
        if amount:
            part = _add(chart, "rect", css, x=_percent(left), y=0, width=_percent(amount / total), height=14)
            _add(part, "title").text = title
        left += amount / total
    return _markup(chart)


def _box(
    chart: ElementTree.Element, left: float, top: float, width: float, height: float, computed: float, title: str
) -> None:
    """A box of the icicle; shares of the width, pixels of the height, and the share that was computed on top."""
    if not width or height <= 0:
        return
    group = _add(chart, "g")
    _add(group, "title").text = title
    _add(group, "rect", "reused", x=_percent(left), y=top, width=_percent(width), height=height)
    if computed:
        tall = max(1.0, height * computed)  # a pixel at least, so that it can be seen
        _add(group, "rect", "computed", x=_percent(left), y=top, width=_percent(width), height=tall)


def _reuse_words(level: dict[str, Any]) -> str:
    return f"{level['computed_tokens']:,} tokens computed, {level['cached_tokens']:,} reused"


def _axis(chart: ElementTree.Element, height: float, most: float, words: Any, unit: str) -> None:
    _add(chart, "line", "axis", x1="0%", x2="100%", y1=height + 0.5, y2=height + 0.5)
    for share in (0.0, 0.5, 1.0):
        text = words(most * share)
        _text(
            chart,
            _percent(share),
            height + 18,
            f"{text} {unit}" if share == 1.0 else text,
            css=_anchor(share) + " half" * (share == 0.5),
        )


def _anchor(share: float) -> str:
    return "start" if share < 0.02 else "end" if share > 0.98 else "middle"


def _svg(height: float, label: str) -> ElementTree.Element:
    return ElementTree.Element(
        "svg", {"class": "chart", "width": "100%", "height": f"{height:g}", "role": "img", "aria-label": label}
    )


def _add(parent: ElementTree.Element, name: str, css: str | None = None, **attributes: Any) -> ElementTree.Element:
    texts = {key: f"{value:.2f}" if isinstance(value, float) else str(value) for key, value in attributes.items()}
    return ElementTree.SubElement(parent, name, texts | ({"class": css} if css else {}))


def _text(parent: ElementTree.Element, x: float | str, y: float, text: str, css: str) -> None:
    _add(parent, "text", css, x=x, y=y).text = text


def _noun(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.3f}%"


def _markup(chart: ElementTree.Element) -> Markup:
    return Markup(ElementTree.tostring(chart, encoding="unicode"))
