"""The KV pages that a run of a plan will hold, said before it runs. Imports no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engine.scheduler import MAX_ROWS
from jobs.plan import PlannedRow


def expected_peak_pages(rows: Sequence[PlannedRow], page_size: int, *, max_rows: int = MAX_ROWS) -> int:
    """Pages that are held at the peak, where the pool has room enough.

    Rows start in the plan's order, `max_rows` at a time, each with its prompt and room for its longest answer. So the
    peak is expected where `max_rows` neighbours need most, what they share being held once. In a smaller pool fewer
    rows run at a time. Rows that ask the very same as another don't run.
    """
    running: deque[tuple[int, int]] = deque()  # of each row: its pages alone, and beside the row before it
    beside = peak = 0
    for row in rows:
        if row.same_as is not None:
            continue
        # The KV of an answer's last token is never read, so it needs no slot.
        alone = -(-(row.prompt_tokens + row.max_output_tokens - 1) // page_size)
        shared = (row.prompt_tokens - row.minimum_tokens) // page_size
        running.append((alone, alone - shared))
        beside += alone - shared
        if len(running) > max_rows:
            beside -= running.popleft()[1]
        first_alone, first_beside = running[0]
        peak = max(peak, beside - first_beside + first_alone)
    return peak
