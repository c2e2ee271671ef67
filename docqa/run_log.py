"""What a command says on stderr while it works: a calm live line on a terminal, elsewhere a few lines of text.

`log_lines.JsonLog` has the same methods and writes JSON.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from docqa.plain_console import plain_console
from docqa.progress import LineInterval, progress_line
from docqa.run_summary import over_limit_text, summary_lines
from docqa.wording import visible
from jobs.observe import Observer, Progress


class RunLog(Protocol):
    """Context manager that tells of a run. With `quiet` it writes errors only."""

    def __enter__(self) -> RunLog: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def stage(self, name: str) -> None:
        """What goes on before the first token, such as reading or loading."""

    def progress(self, progress: Progress) -> None:
        """How far the run is."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def finished(self, summary: dict[str, Any]) -> None:
        """How the run ended, as `run_summary` has it."""

    def error(self, message: str) -> None:
        """Something that went wrong; written in spite of `quiet`."""


class TextLog:
    """The log for people."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        console = plain_console(stderr=True)
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._shows_live = _can_rewrite_lines(console) and not quiet
        self._interval = LineInterval(first_at_once=False)

    def __enter__(self) -> TextLog:
        if self._shows_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shows_live:
            with suppress(OSError):
                self._live.stop()

    def stage(self, name: str) -> None:
        """What goes on before the first token, such as reading or loading."""
        self._show(f"{name} ...")

    def progress(self, progress: Progress) -> None:
        """How far the run is."""
        self._show(progress_line(progress))

    def note(self, text: str) -> None:
        """Something the user should know; stays on the screen."""
        if not self._quiet:
            self._line(f"docqa: {text}")

    def finished(self, summary: dict[str, Any]) -> None:
        """How the run ended."""
        for fault in (summary["error"], over_limit_text(summary)):
            if fault is not None:
                self.error(fault)
        if not self._quiet:
            for line in summary_lines(summary):
                self._line(line)

    def error(self, message: str) -> None:
        """Something that went wrong; written in spite of `quiet`."""
        self._line(f"docqa: {message}")

    def _line(self, text: str) -> None:
        if not self._live.is_started:
            stderr_line(text)
            return
        with suppress(OSError):
            self._live.console.print(text, highlight=False, soft_wrap=True)  # above the live line

    def _show(self, line: str) -> None:
        if self._shows_live:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif not self._quiet and self._interval.is_due():
            self._line(f"docqa: {line}")


def _can_rewrite_lines(console: Console) -> bool:
    """Whether stderr is a terminal that can. The console alone believes FORCE_COLOR, which jobs set in a pipe too."""
    return console.is_terminal and not console.is_dumb_terminal and sys.stderr is not None and sys.stderr.isatty()


def observer_of(log: RunLog) -> Observer:
    """The log as what a run tells things to."""
    return Observer(on_stage=log.stage, on_progress=log.progress, on_note=log.note)


def stderr_line(line: str) -> None:
    """Write a line. A lost terminal, a closed pipe or a full log disk must not end a run, so faults are let pass."""
    with suppress(OSError):
        click.echo(visible(line), err=True)
