"""What signals do to a run."""

from __future__ import annotations

import _thread
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from jobs.observe import StopRequest


@contextmanager
def stop_signals(stop: StopRequest, on_hangup: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the run to stop, a second one ends the process at once.

    SIGHUP is survived: the terminal is gone or going, so nothing more is written to it, and `on_hangup` is called in
    a thread of its own. A process that was started to ignore SIGHUP or SIGINT, as nohup and a shell's `&` do, goes on
    ignoring it.
    """
    terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        if stop.signal_number is not None:
            os._exit(128 + number)
        stop.request(number)

    def leave_terminal(number: int, frame: FrameType | None) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in terminals:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        # The signal may have come while this thread wrote to the log, with a lock that the log's other thread waits for
        # while it holds the one that would be needed here.
        _thread.start_new_thread(on_hangup, ())

    handlers = {signal.SIGINT: ask_to_stop, signal.SIGTERM: ask_to_stop, signal.SIGHUP: leave_terminal}
    previous = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
