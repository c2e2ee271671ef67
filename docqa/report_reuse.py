"""What reuse was worth in a run, by segment of the prompt, and why anything was computed more than once.

Seconds saved are derived from what the run measured. The engine shares out the seconds of each step between prompt
tokens and the rest in the ratio of their arithmetic, so a run has seconds for a known amount of prompt arithmetic.
A reused token would have cost its own arithmetic at that speed: its matrix products, and attention to every token
before it, which grows along the prompt (engine/forward_work.py). KV bytes saved are those of the reused tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from engine.forward_work import ForwardWork
from jobs.repeated_tokens import CAUSES, WITHIN_COMPUTED
from jobs.store_check_reuse import repeated_sql

TOKEN_COUNTS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens")


class Savings:
    """Seconds that reused tokens would have cost in one run; None where the run measured no prompt tokens."""

    def __init__(self, statistics: Mapping[str, Any]) -> None:
        flops = statistics["prompt_flops"]
        self._seconds_per_flop = statistics["prompt_seconds"] / flops if flops else None
        key_flops = {int(window): cost for window, cost in statistics["work"]["key_flops"].items()}
        # Rows of a document reuse the same positions, so few spans are asked for.
        self.flops = cache(ForwardWork(statistics["work"]["token_flops"], key_flops).flops)

    def seconds(self, flops: int) -> float | None:
        """How long so much prompt arithmetic took in this run."""
        return None if self._seconds_per_flop is None else flops * self._seconds_per_flop


def reuse_figures(rows: Any, run_id: str, statistics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Segments, causes and savings of a run, JSON-ready; empty or None where an older docqa wrote it.

    `saved_flops` are whole numbers, so that those of segments and documents add up to the run's exactly.
    """
    savings = Savings(statistics) if statistics is not None else None
    segments = rows("SELECT * EXCLUDE (run_id) FROM reuse_by_segment WHERE run_id = ?", run_id)
    by_segment, by_document = _saved_flops(rows, run_id, savings)
    for segment in segments:
        segment["saved_flops"] = by_segment.get(segment["segment"])
        segment["saved_seconds"] = None if savings is None else savings.seconds(by_segment[segment["segment"]])
    repeated = rows(
        "SELECT " + ", ".join(f"CAST(sum({repeated_sql([cause])}) AS BIGINT) AS {cause}, "
                              f"count_if(({repeated_sql([cause])}) > 0) AS {cause}_rows" for cause in CAUSES)
        + " FROM answers WHERE run_id = ?",
        run_id,
    )[0]  # fmt: skip
    reused = sum(segment["cached_tokens"] for segment in segments)
    return {
        "segments": segments,
        "repeated": [
            {"cause": cause, "tokens": repeated[cause] or 0, "rows": repeated[f"{cause}_rows"],
             "within_computed": cause in WITHIN_COMPUTED, "meaning": meaning}
            for cause, meaning in CAUSES.items()
        ],
        "saved": None if statistics is None or savings is None else _saved(statistics, savings, by_segment, reused),
        "computed_in_earlier_runs": earlier_tokens(rows, run_id),
        "saved_flops_by_document": dict(by_document),
    }  # fmt: skip


def run_saved_seconds(rows: Any, run_id: str, statistics: Mapping[str, Any] | None) -> float | None:
    """Seconds saved by what all rows of a run reused; None if unknown."""
    if statistics is None:
        return None
    savings = Savings(statistics)
    groups = rows(
        "SELECT cached_tokens, count(*) AS rows FROM answers WHERE run_id = ? AND cached_tokens IS NOT NULL GROUP BY 1",
        run_id,
    )
    return savings.seconds(sum(group["rows"] * savings.flops(0, group["cached_tokens"]) for group in groups))


def earlier_tokens(rows: Any, run_id: str) -> dict[str, int]:
    """Of the least possible: prompt tokens up to the end of a document that an earlier run had computed too.

    Keys and values are not kept between runs, so a run that goes on after a restart, and a night with new questions
    about known documents, computes them again. Earlier runs count that had the same model and the same prompt texts.
    """
    [found] = rows(
        "SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT) AS tokens, count(DISTINCT document_hash) AS documents FROM ("
        "SELECT document_hash, CAST(prompt_segments->>'instructions' AS BIGINT) "
        "+ CAST(prompt_segments->>'document' AS BIGINT) - (prompt_tokens - minimum_tokens) AS tokens "
        "FROM answers WHERE run_id = $1 AND prompt_segments IS NOT NULL) WHERE tokens > 0 AND document_hash IN ("
        "SELECT document_hash FROM answers WHERE answers.prompt_tokens IS NOT NULL AND run_id IN ("
        "SELECT earlier.run_id FROM runs earlier, runs this WHERE this.run_id = $1 "
        "AND earlier.started_at < this.started_at "
        "AND earlier.model_fingerprint IS NOT DISTINCT FROM this.model_fingerprint "
        "AND (earlier.config->'prompt') IS NOT DISTINCT FROM (this.config->'prompt')))",
        run_id,
    )
    return {"tokens": found["tokens"], "documents": found["documents"]}


def saved_seconds_of(row: Mapping[str, Any], savings: Savings | None) -> float | None:
    """Seconds saved by what one row reused."""
    if savings is None or row["cached_tokens"] is None:
        return None
    return savings.seconds(savings.flops(0, row["cached_tokens"]))


def _saved_flops(rows: Any, run_id: str, savings: Savings | None) -> tuple[Counter[str], Counter[str | None]]:
    """The arithmetic of what was reused, by segment and by document hash."""
    by_segment: Counter[str] = Counter()
    by_document: Counter[str | None] = Counter()
    if savings is None:
        return by_segment, by_document
    groups = rows(
        "SELECT document_hash, prompt_segments, cached_tokens, count(*) AS rows FROM answers "
        "WHERE run_id = ? AND prompt_segments IS NOT NULL GROUP BY ALL",
        run_id,
    )
    for group in groups:
        start = 0
        for name, tokens in json.loads(group["prompt_segments"]).items():
            reused = min(max(group["cached_tokens"] - start, 0), tokens)
            by_segment[name] += group["rows"] * savings.flops(start, reused)
            start += tokens
        by_document[group["document_hash"]] += group["rows"] * savings.flops(0, group["cached_tokens"])
    return by_segment, by_document


def _saved(statistics: Mapping[str, Any], savings: Savings, by_segment: Counter[str], reused: int) -> dict[str, Any]:
    flops = sum(by_segment.values())
    computed = statistics["prompt_tokens"]
    kv_bytes_per_token = statistics["kv_page_bytes"] // statistics["kv_page_tokens"]
    return {
        "flops": flops,
        "seconds": savings.seconds(flops),
        "prompt_seconds": statistics["prompt_seconds"],
        "prompt_tokens": computed,
        "prompt_flops": statistics["prompt_flops"],
        "seconds_per_computed_token": statistics["prompt_seconds"] / computed if computed else None,
        "kv_bytes": reused * kv_bytes_per_token,
        "kv_bytes_per_token": kv_bytes_per_token,
        "copied_tokens": statistics["copied_tokens"],
    }
