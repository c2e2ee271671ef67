"""What a run measured beside its rows: time by kind, KV memory, and why tokens were computed again."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from engine.request import Completion
from jobs.step_summary import StepSummary

if TYPE_CHECKING:
    from engine.engine import Engine


class RunStatistics:
    """Collects what the engine measures, step by step; `as_json` is what `runs.statistics` holds."""

    def __init__(self) -> None:
        self.steps = StepSummary()
        self._totals: Counter[str] = Counter()
        self._prompt_flops = 0

    def add_step(self, engine: Engine, ended_seconds: float) -> None:
        """The engine's newest step, which ended so many seconds after the run was ready."""
        step = engine.last_step
        if step is None:
            return
        self.steps.add(step, ended_seconds)
        self._prompt_flops += step.prompt_flops

    def add_completion(self, completion: Completion) -> None:
        """A request that ended, its second draw too."""
        self._totals["copied_tokens"] += completion.copied_tokens
        self._totals["repeated_output_tokens"] += completion.repeated_output_tokens

    def as_json(self, engine: Engine, *, smallest_pages: int) -> str:
        """All of it as JSON text; `smallest_pages` is the smallest pool with which every row of the plan can run."""
        buckets = self.steps.buckets
        counts = engine.statistics
        values = {
            "steps": sum(bucket.steps for bucket in buckets),
            "prompt_tokens": sum(bucket.prompt_tokens for bucket in buckets),
            "output_tokens": sum(bucket.output_tokens for bucket in buckets),
            "prompt_seconds": sum(bucket.prompt_seconds for bucket in buckets),
            "output_seconds": sum(bucket.output_seconds for bucket in buckets),
            "mask_seconds": sum(bucket.mask_seconds for bucket in buckets),
            "prompt_flops": self._prompt_flops,
            "work": asdict(engine.work),
            "kv_page_tokens": engine.settings.page_size,
            "kv_page_bytes": engine.kv_page_bytes,
            "kv_pages": engine.settings.kv_pages,
            "kv_pages_at_peak": counts.peak_pages,
            "kv_pages_smallest": smallest_pages,
            "copied_tokens": self._totals["copied_tokens"],
            "repeated_output_tokens": self._totals["repeated_output_tokens"],
            "preemptions": counts.preemptions,
            "drafted_tokens": counts.drafted_tokens,
            "accepted_tokens": counts.accepted_tokens,
        }
        return json.dumps(values)
