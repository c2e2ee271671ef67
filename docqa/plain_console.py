"""The terminal as every command prints to it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from docqa.wording import visible


def plain_console(*, stderr: bool = False) -> Console:
    """A console on which text stays as it is, in tables too: `[b]` in an id is no markup and `:smile:` no emoji."""
    return _PlainConsole(stderr=stderr, markup=False, emoji=False)


class _PlainConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As a Console does it, with the texts `visible`; what the console itself says to the terminal is not text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
