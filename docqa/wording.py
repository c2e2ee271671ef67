"""Figures in words: durations, sizes, and counts of rows; and texts as a terminal may show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Unicode's pictures of control characters, and the replacement character for those that have none.
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    """A text that steers no terminal: an id or a file name may hold an escape code, and is shown with a sign for it."""
    return text.translate(_PICTURES)


def duration(seconds: float) -> str:
    """Seconds as a short text: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def bytes_text(size: int) -> str:
    """`812 bytes`, `4.1 KiB`, `2.0 GiB`."""
    if size < 1024:
        return f"{size} bytes"
    amount = float(size)
    for unit in ("KiB", "MiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:,.1f} {unit}"
    return f"{amount / 1024:,.1f} GiB"


def row_counts(run: Mapping[str, Any]) -> str:
    """What became of a run's rows: `20 ok, 1 failed, 5 answered before, 3 pending`; the last two only if not 0."""
    parts = [f"{run['rows_ok']:,} ok", f"{run['rows_failed']:,} failed"]
    for name, word in (("rows_reused", "answered before"), ("rows_pending", "pending")):
        if run[name]:
            parts.append(f"{run[name]:,} {word}")
    return ", ".join(parts)


SHOWN_BAD_FILES = 5


def bad_files_text(bad_files: Sequence[Mapping[str, str]]) -> str:
    """`2 files can't be read and were skipped: a.parquet, b.parquet`; of many, the first few."""
    shown = ", ".join(entry["file"] for entry in bad_files[:SHOWN_BAD_FILES])
    more = len(bad_files) - SHOWN_BAD_FILES
    what = "1 file can't be read and was" if len(bad_files) == 1 else f"{len(bad_files):,} files can't be read and were"
    return f"{what} skipped: {shown}{f' and {more:,} more' if more > 0 else ''}"
