"""Where a run's time went, step by step, and how much KV memory it held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.step_summary import STEP_COLUMNS

TIME_PARTS = {
    "prompt_seconds": "computing prompts",
    "output_seconds": "writing answers",
    "mask_seconds": "masks of the grammars",
    "outside_seconds": "outside the engine: checking and storing answers",
}
"""What a run's seconds, from ready to its last answer, are made of."""


def time_figures(rows: Any, run: Mapping[str, Any]) -> dict[str, Any]:
    """`time_parts` add up to the run's seconds; `steps` are the run's in their order. None and empty if unknown."""
    statistics = run["statistics"]
    steps = rows(
        f"SELECT {', '.join(STEP_COLUMNS)} FROM run_steps WHERE run_id = ? ORDER BY started_seconds", run["run_id"]
    )
    if statistics is None or run["seconds"] is None:
        return {"time_parts": None, "steps": steps, "kv_memory": None}
    parts = {name: statistics[name] for name in TIME_PARTS if name != "outside_seconds"}
    parts["outside_seconds"] = run["seconds"] - sum(parts.values())
    memory = {name: statistics[name] for name in statistics if name.startswith("kv_")}
    memory["kv_bytes_at_peak"] = memory["kv_pages_at_peak"] * memory["kv_page_bytes"]
    # What engine.kv_memory would have to be: one page more, which padding reads.
    memory["kv_bytes_smallest"] = (memory["kv_pages_smallest"] + 1) * memory["kv_page_bytes"]
    return {"time_parts": parts, "steps": steps, "kv_memory": memory}
