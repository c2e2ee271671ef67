"""Progress on stderr: one calm live line on a terminal; elsewhere only notes and a log line now and then."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from jobs.run import Progress

LINE_SECONDS = 30.0
"""Without a terminal, at most one progress line in this time, so that a nightly log stays short."""


class ProgressDisplay:
    """Context manager that shows stages, progress and notes. With `quiet` it shows nothing at all."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._shows_live = self._console.is_terminal and not quiet
        self._line_at = time.monotonic()

    def __enter__(self) -> ProgressDisplay:
        if self._shows_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shows_live:
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
            self._console.print(f"docqa: {text}", markup=False, soft_wrap=True)

    def _show(self, line: str) -> None:
        if self._shows_live:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif not self._quiet and time.monotonic() - self._line_at >= LINE_SECONDS:
            self._line_at = time.monotonic()
            self._console.print(f"docqa: {line}", markup=False, soft_wrap=True)


def progress_line(progress: Progress) -> str:
    """One line: tokens, rows, share of prompt tokens that came from the cache, failures, time left."""
    share = min(progress.tokens_done / progress.tokens_total, 1.0) if progress.tokens_total else 1.0
    parts = [
        f"{share:4.0%} of tokens",
        f"{progress.rows_done}/{progress.rows_total} rows",
        f"{progress.rows_done / max(progress.seconds, 1e-9):.1f} rows/s",
    ]
    if progress.prompt_tokens:
        parts.append(f"{progress.cached_tokens / progress.prompt_tokens:.0%} reused")
    if progress.rows_failed:
        parts.append(f"{progress.rows_failed} failed")
    if 0 < share < 1:
        parts.append(f"{duration(progress.seconds * (1 - share) / share)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as a short text: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
