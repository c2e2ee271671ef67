"""What a run tells while it is on, and how it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Stopped(Exception):
    """The run was asked to stop."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number


@dataclass
class StopRequest:
    """Set from a signal handler to end a run after the step that is on: `signal_number` says by which signal."""

    signal_number: int | None = None
    _interrupts: bool = field(default=False, repr=False)

    def request(self, signal_number: int) -> None:
        """Ask for the stop, from a signal handler in the main thread.

        Raises Stopped there while the run only reads or loads, which may take minutes and leaves nothing half-done.
        """
        self.signal_number = signal_number
        if self._interrupts:
            self._interrupts = False
            raise Stopped(signal_number)

    def check(self) -> None:
        """Raise Stopped if the stop was asked for."""
        if self.signal_number is not None:
            raise Stopped(self.signal_number)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Within, `request` raises at once."""
        self._interrupts = True
        try:
            self.check()
            yield
        finally:
            self._interrupts = False
        self.check()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Tokens are the honest measure: rows of a new document cost far more than its later ones."""

    rows_total: int
    rows_done: int
    rows_failed: int
    prompt_tokens: int  # of rows that have ended
    cached_tokens: int
    tokens_done: int  # prompt tokens computed and output tokens drawn
    tokens_total: int  # an estimate: the answers' lengths are not known
    seconds: float
    seconds_left: float | None = None  # None while nothing can be said


@dataclass(frozen=True)
class Observer:
    """What a run tells while it goes on. Every function may be left out."""

    on_stage: Callable[[str], None] = lambda stage: None
    on_progress: Callable[[Progress], None] = lambda progress: None
    on_note: Callable[[str], None] = lambda note: None


SILENT = Observer()
