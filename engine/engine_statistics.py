"""What an engine has done since it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineStatistics:
    """Counts since the engine was made. Pages at peak are those held by anyone, evictable ones included."""

    steps: int = 0
    step_rows: int = 0  # query rows over all steps
    decoding_rows: int = 0  # of which predicted a token after the first
    work_items: int = 0
    shared_items: int = 0  # of which served several sequences at once
    peak_pages: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # of the drafted
    prefill_seconds: float = 0.0  # steps that computed any prompt token
    decode_seconds: float = 0.0  # steps that did not
    mask_seconds: float = 0.0  # of both, to write the masks of grammars
    log_probability_seconds: float = 0.0  # of both, to say how likely tokens were
