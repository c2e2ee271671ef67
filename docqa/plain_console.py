"""The terminal as every command prints to it."""

from __future__ import annotations

from rich.console import Console


def plain_console(*, stderr: bool = False) -> Console:
    """A console on which text stays as it is, in tables too: `[b]` in an id is no markup and `:smile:` no emoji."""
    return Console(stderr=stderr, markup=False, emoji=False)
