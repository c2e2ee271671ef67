"""The KV pages that a run of a plan will hold, said before it runs. Imports no torch."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from engine.scheduler import MAX_ROWS
from jobs.plan import DependentRow, Plan
from jobs.prompt_segments import SharedPrefix


def expected_peak_pages(plan: Plan, page_size: int, *, max_rows: int = MAX_ROWS) -> int:
    """Pages that are held at the peak, where the pool has room enough.

    Requests start in the plan's order, `max_rows` at a time, each with its prompt and room for its longest answer. So
    the peak is expected where `max_rows` neighbours need most, what they share being held once. In a smaller pool fewer
    run at a time. Rows that ask the very same as another don't run; a row that is asked several times is as many
    requests, and rows that wait for answers come behind the others on their document.
    """
    running: deque[tuple[int, int]] = deque()  # of each request: its pages alone, and beside the one before it
    beside = peak = 0
    for prompt_tokens, shared_tokens, output_tokens in _requests(plan):
        # The KV of an answer's last token is never read, so it needs no slot.
        alone = -(-(prompt_tokens + output_tokens - 1) // page_size)
        own = alone - shared_tokens // page_size
        running.append((alone, own))
        beside += own
        if len(running) > max_rows:
            beside -= running.popleft()[1]
        first_alone, first_own = running[0]
        peak = max(peak, beside - first_own + first_alone)
    return peak


def _requests(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Of each request: tokens of its prompt, how many of them it shares with the one before, and of its answer."""
    waiting: dict[SharedPrefix, list[DependentRow]] = defaultdict(list)
    for dependent in plan.dependents:
        waiting[dependent.prefix].append(dependent)
    left: dict[SharedPrefix, int] = defaultdict(int)  # rows by prefix, for which others wait
    for row in plan.rows:
        if row.segments.prefix in waiting:
            left[row.segments.prefix] += 1
    for row in plan.rows:
        prefix = row.segments.prefix
        if row.same_as is None:
            yield row.prompt_tokens, row.prompt_tokens - row.minimum_tokens, row.max_output_tokens
            for _ in range(row.samples - 1):
                yield row.prompt_tokens, row.prompt_tokens, row.max_output_tokens
        if prefix in left:
            left[prefix] -= 1
            if not left[prefix]:
                yield from _behind(waiting.pop(prefix), len(prefix))
    for dependents in waiting.values():
        yield from _behind(dependents, 0)


def _behind(dependents: list[DependentRow], shared_tokens: int) -> Iterator[tuple[int, int, int]]:
    """Rows that wait, on one document; the first shares `shared_tokens` with what came before."""
    for dependent in dependents:
        yield len(dependent.prefix), shared_tokens, dependent.reserve_tokens
        shared_tokens = len(dependent.prefix)
