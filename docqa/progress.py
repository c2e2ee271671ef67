"""How far a run is, as one line for people, and how often such a line is due in a log."""

from __future__ import annotations

from time import monotonic

from docqa.wording import duration
from jobs.observe import Progress

LINE_SECONDS = 30.0
"""Without a terminal, at most one progress line in this time, so that a nightly log stays short."""


class LineInterval:
    """Says when a line is due: LINE_SECONDS after the last one; the first at once, or as long after the start."""

    def __init__(self, *, first_at_once: bool) -> None:
        self._line_at = None if first_at_once else monotonic()

    def is_due(self) -> bool:
        """Whether to write a line now; if so, the next one is due LINE_SECONDS later."""
        now = monotonic()
        if self._line_at is not None and now - self._line_at < LINE_SECONDS:
            return False
        self._line_at = now
        return True


def share_done(progress: Progress) -> float:
    """The share of the run's tokens that is done, 0 to 1."""
    return min(progress.tokens_done / progress.tokens_total, 1.0) if progress.tokens_total else 1.0


def progress_line(progress: Progress) -> str:
    """One line: tokens, rows, share of prompt tokens that came from the cache, failures, time left."""
    percent = int(100 * share_done(progress))  # rounded down: 100 % is when all is done
    parts = [f"{percent:3}% of tokens", f"{progress.rows_done}/{progress.rows_total} rows"]
    if progress.rows_done:
        parts.append(f"{progress.rows_done / max(progress.seconds, 1e-9):.1f} rows/s")
    if progress.prompt_tokens:
        parts.append(f"{progress.cached_tokens / progress.prompt_tokens:.0%} reused")
    if progress.rows_failed:
        parts.append(f"{progress.rows_failed} failed")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)
