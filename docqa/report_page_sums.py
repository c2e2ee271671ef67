"""The figures that a page of a report shows, read back from its HTML: for the check that they are the database's."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class ShownFigures(HTMLParser):
    """`totals` by the name in `data-figure`, and by that in `data-part` the sum of all cells that have it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.totals: dict[str, int] = {}
        self.sums: dict[str, int] = {}
        self._into: tuple[dict[str, int], str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember where the cell's number goes."""
        for name, into in (("data-figure", self.totals), ("data-part", self.sums)):
            if figure := dict(attrs).get(name):
                self._into = into, figure

    def handle_data(self, data: str) -> None:
        """The number of such a cell."""
        if self._into is not None:
            into, name = self._into
            into[name] = into.get(name, 0) + int(data.strip().replace(",", "") or 0)
            self._into = None


def page_disagreements(page: str, report: dict[str, Any]) -> list[tuple[str, int, str, int]]:
    """What the page shows against the report: what, its value, against what, that one's value."""
    shown = ShownFigures(page)
    pairs = []
    for name, value in shown.totals.items():
        expected = {
            "failures": len(report["errors"]),
            "changes": sum(report["changes"].values()),
            "repeated": sum(entry["tokens"] for entry in report["repeated"]),
        }.get(name)
        pairs.append((f"page's {name}", value, "report", report[name] if expected is None else expected))
    for part, value in shown.sums.items():
        table, _, name = part.partition(".")
        entries = report[table].values() if isinstance(report[table], dict) else report[table]
        expected = sum(entry[name] if name else entry for entry in entries)
        pairs.append((f"page's {part}", value, "report", expected))
    return pairs
