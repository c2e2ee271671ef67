"""What reuse was worth in a run, by segment of the prompt, and why anything was computed more than once.

Seconds saved are derived from what the run measured. The engine shares out the seconds of each step between prompt
tokens and the rest in the ratio of their arithmetic, so a run has seconds for a known amount of prompt arithmetic.
A reused token would have cost its own arithmetic at that speed: its matrix products, and attention to every token
before it, which grows along the prompt (engine/forward_work.py). KV bytes saved are those of the reused tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.repeated_tokens import CAUSES, WITHIN_COMPUTED
from jobs.store_check_reuse import repeated_sql

TOKEN_COUNTS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens")


SAVED_FLOPS = "list_sum([CAST(part AS BIGINT) FOR part IN json_extract_string(prompt_segments, '$.*.saved_flops')])"
"""SQL over `answers`: the arithmetic of what a row reused."""


def saved_seconds(flops: int | None, statistics: Mapping[str, Any] | None) -> float | None:
    """How long so much prompt arithmetic took in a run; None where it measured none."""
    if flops is None or statistics is None or not statistics["prompt_flops"]:
        return None
    seconds: float = flops * statistics["prompt_seconds"] / statistics["prompt_flops"]
    return seconds


def reuse_figures(rows: Any, run_id: str, statistics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Segments, causes and savings of a run, JSON-ready; empty or None where an older docqa wrote it.

    `saved_flops` are whole numbers, so that those of segments and documents add up to the run's exactly.
    """
    segments = rows("SELECT * EXCLUDE (run_id) FROM reuse_by_segment WHERE run_id = ?", run_id)
    for segment in segments:
        segment["saved_flops"] = int(segment["saved_flops"])
        segment["saved_seconds"] = saved_seconds(segment["saved_flops"], statistics)
    repeated = rows(
        "SELECT " + ", ".join(f"CAST(sum({repeated_sql([cause])}) AS BIGINT) AS {cause}, "
                              f"count_if(({repeated_sql([cause])}) > 0) AS {cause}_rows" for cause in CAUSES)
        + " FROM answers WHERE run_id = ?",
        run_id,
    )[0]  # fmt: skip
    by_document = rows(
        f"SELECT document_hash, sum({SAVED_FLOPS}) AS saved_flops FROM answers "
        "WHERE run_id = ? AND prompt_segments IS NOT NULL GROUP BY 1",
        run_id,
    )
    return {
        "segments": segments,
        "repeated": [
            {"cause": cause, "tokens": repeated[cause] or 0, "rows": repeated[f"{cause}_rows"],
             "within_computed": cause in WITHIN_COMPUTED, "meaning": meaning}
            for cause, meaning in CAUSES.items()
        ],
        "saved": None if statistics is None else _saved(statistics, segments),
        "computed_in_earlier_runs": earlier_tokens(rows, run_id),
        "saved_flops_by_document": {entry["document_hash"]: int(entry["saved_flops"]) for entry in by_document},
    }  # fmt: skip


def run_saved_seconds(rows: Any, run_id: str, statistics: Mapping[str, Any] | None) -> float | None:
    """Seconds saved by what all rows of a run reused; None if unknown."""
    if statistics is None:
        return None
    [found] = rows(f"SELECT sum({SAVED_FLOPS}) AS flops FROM answers WHERE run_id = ?", run_id)
    return saved_seconds(int(found["flops"] or 0), statistics)


def earlier_tokens(rows: Any, run_id: str) -> dict[str, int]:
    """Of the least possible: prompt tokens up to the end of a document that an earlier run had computed too.

    Keys and values are not kept between runs, so a run that goes on after a restart, and a night with new questions
    about known documents, computes them again. Earlier runs count that had the same model and the same prompt texts.
    """
    [found] = rows(
        "SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT) AS tokens, count(DISTINCT document_hash) AS documents FROM ("
        "SELECT document_hash, CAST(prompt_segments->'instructions'->>'minimum_tokens' AS BIGINT) "
        "+ CAST(prompt_segments->'document'->>'minimum_tokens' AS BIGINT) AS tokens "
        "FROM answers WHERE run_id = $1 AND prompt_segments IS NOT NULL) WHERE tokens > 0 AND document_hash IN ("
        "SELECT document_hash FROM answers WHERE answers.prompt_tokens IS NOT NULL AND run_id IN ("
        "SELECT earlier.run_id FROM runs earlier, runs this WHERE this.run_id = $1 "
        "AND earlier.started_at < this.started_at "
        "AND earlier.model_fingerprint IS NOT DISTINCT FROM this.model_fingerprint "
        "AND (earlier.config->'prompt') IS NOT DISTINCT FROM (this.config->'prompt')))",
        run_id,
    )
    return {"tokens": found["tokens"], "documents": found["documents"]}


def _saved(statistics: Mapping[str, Any], segments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    flops = sum(segment["saved_flops"] for segment in segments)
    computed = statistics["prompt_tokens"]
    kv_bytes_per_token = statistics["kv_page_bytes"] // statistics["kv_page_tokens"]
    return {
        "flops": flops,
        "seconds": saved_seconds(flops, statistics),
        "prompt_seconds": statistics["prompt_seconds"],
        "prompt_tokens": computed,
        "prompt_flops": statistics["prompt_flops"],
        "seconds_per_computed_token": statistics["prompt_seconds"] / computed if computed else None,
        "kv_bytes": sum(segment["cached_tokens"] for segment in segments) * kv_bytes_per_token,
        "kv_bytes_per_token": kv_bytes_per_token,
        "copied_tokens": statistics["copied_tokens"],
    }
