"""Why prompt tokens of a row were computed more than once: what the engine tells, and second draws."""

from __future__ import annotations

from dataclasses import replace

from engine.request import Completion, RepeatCause

ASKED_AGAIN = "asked_again"

WITHIN_COMPUTED = {
    str(RepeatCause.EVICTED): "their pages were taken while a planned row still needed them: the KV memory is small",
    str(RepeatCause.LAST_TOKEN): "the prompt was in the cache, but not the state in which its answer begins",
}
"""Causes whose tokens are among a row's `computed_tokens`: these are its `minimum_tokens` and theirs, added up."""

ON_TOP = {
    str(RepeatCause.PREEMPTED): "the row gave up its pages so that others could go on",
    ASKED_AGAIN: "the first answer broke its schema, and the row was asked once more",
}
"""Causes whose tokens come on top of a row's `computed_tokens`, which are those of its first pass."""

CAUSES = WITHIN_COMPUTED | ON_TOP


def whole_row(last_draw: Completion, first_draw: Completion | None) -> tuple[Completion, dict[str, int]]:
    """A row's end and its repeated tokens by cause; one that did not happen is left out.

    `first_draw` is what the row was answered with before it was asked again, if it was: what was reused, and when the
    row began, is that of the first draw then. (A second draw computes nothing where it shares one with another row.)
    """
    if first_draw is None:
        return last_draw, {str(cause): tokens for cause, tokens in last_draw.repeated_tokens.items()}
    again = last_draw.computed_tokens + last_draw.repeated_tokens.get(RepeatCause.PREEMPTED, 0)
    whole = replace(
        last_draw,
        cached_tokens=first_draw.cached_tokens,
        computed_tokens=first_draw.computed_tokens,
        repeated_tokens=first_draw.repeated_tokens,
        ttft_seconds=first_draw.ttft_seconds,
        latency_seconds=(first_draw.latency_seconds or 0.0) + (last_draw.latency_seconds or 0.0),
    )
    return whole, {str(cause): tokens for cause, tokens in first_draw.repeated_tokens.items()} | {ASKED_AGAIN: again}
