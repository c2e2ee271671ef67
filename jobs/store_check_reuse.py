"""What must always be true of reuse and time in an output database: segments, causes, steps and what they sum up to."""

from __future__ import annotations

import json
from collections.abc import Iterable

import duckdb

from jobs.repeated_tokens import CAUSES, ON_TOP, WITHIN_COMPUTED
from jobs.segment_figures import SEGMENT_COUNTS

_CLOCK_ERROR_SECONDS = 0.01

STEP_SUMS = ("steps", "prompt_tokens", "output_tokens")
"""What `runs.statistics` and the run's steps both count."""


def repeated_sql(causes: Iterable[str]) -> str:
    """SQL over `answers`: a row's tokens of these causes, added up."""
    return " + ".join(f"CAST(coalesce(repeated_tokens->>'{cause}', '0') AS BIGINT)" for cause in causes)


def wrong_reuse(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """A sentence for each row and run of which these do not agree; none for a store of before there were any."""
    tables = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
    if "run_steps" not in tables:
        return []
    return [*_wrong_rows(connection), *_wrong_runs(connection)]


def _wrong_rows(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Segments add up to the prompt; what was computed is the minimum and what was evicted, to the token."""
    within = repeated_sql(WITHIN_COMPUTED)
    sums = ", ".join(
        f"list_sum([CAST(part AS BIGINT) FOR part IN json_extract_string(prompt_segments, '$.*.{name}')]) AS of_{name}"
        for name in SEGMENT_COUNTS
    )
    rows = connection.execute(
        f"SELECT run_id, doc_id, question_id, {', '.join(SEGMENT_COUNTS)}, computed_tokens, {sums}, {within} AS within "
        "FROM answers WHERE prompt_tokens IS NOT NULL AND repeated_tokens IS NOT NULL "
        f"AND ({' OR '.join(f'of_{name} IS DISTINCT FROM {name}' for name in SEGMENT_COUNTS)} "
        "OR computed_tokens - minimum_tokens IS DISTINCT FROM within "
        "OR len([cause FOR cause IN json_keys(repeated_tokens) IF NOT list_contains($1, cause)]) > 0) ORDER BY ALL",
        [list(CAUSES)],
    ).fetchall()
    found = []
    for run_id, doc_id, question_id, prompt, minimum, cached, computed, *segments, repeated in rows[:5]:
        found.append(
            f"run {run_id}, row ({doc_id}, {question_id}): its segments sum up to {segments} of {prompt} prompt, "
            f"{minimum} least and {cached} cached tokens; {computed} computed are not the least and {repeated} by a "
            "known cause"
        )
    if len(rows) > len(found):
        found.append(f"… and {len(rows) - len(found)} more like the last")
    return found


def _wrong_runs(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """A run's steps sum up to its statistics, and those to its rows, if none was removed and none is left out."""
    sums = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in STEP_SUMS)
    parts = "prompt_seconds + output_seconds + mask_seconds"
    runs = connection.execute(
        f"SELECT runs.run_id, status, rows_total - rows_reused - rows_ok - rows_failed AS pending, rows_removed, "
        f"statistics, computed_tokens, runs.seconds, {', '.join(f'steps.{name}' for name in STEP_SUMS)}, parts, "
        "step_seconds, kv_pages, overrun, on_top FROM runs LEFT JOIN ("
        f"SELECT run_id, {sums}, sum({parts}) AS parts, sum(seconds) AS step_seconds, max(kv_pages) AS kv_pages, "
        f"max({parts} - seconds) AS overrun FROM run_steps GROUP BY 1) steps USING (run_id) LEFT JOIN ("
        f"SELECT run_id, CAST(sum({repeated_sql(ON_TOP)}) AS BIGINT) AS on_top FROM answers GROUP BY 1"
        ") repeated USING (run_id) WHERE statistics IS NOT NULL ORDER BY 1"
    )
    names = [column[0] for column in runs.description or ()]
    found = []
    for values in runs.fetchall():
        run = dict(zip(names, values, strict=True))
        statistics = json.loads(run["statistics"])
        pairs = [(f"the steps' {name}", run[name] or 0, "the statistics'", statistics[name]) for name in STEP_SUMS]
        whole = run["pending"] == 0 and run["rows_removed"] == 0 and run["status"] == "finished"
        if whole:
            expected = run["computed_tokens"] + (run["on_top"] or 0)
            pairs.append(("the steps' prompt_tokens", statistics["prompt_tokens"], "its rows' computed", expected))
        found += [
            f"run {run['run_id']}: {left} are {value:,}, but {right} {other:,}"
            for left, value, right, other in pairs
            if value != other
        ]
        if (run["overrun"] or 0) > _CLOCK_ERROR_SECONDS:
            found.append(f"run {run['run_id']}: the parts of a step's seconds are more than its seconds")
        if (run["step_seconds"] or 0) > (run["seconds"] or 0) + _CLOCK_ERROR_SECONDS:
            found.append(f"run {run['run_id']}: its steps took {run['step_seconds']:.2f} s, it {run['seconds']:.2f} s")
        if not max(run["kv_pages"] or 0, 0) <= statistics["kv_pages_at_peak"] <= statistics["kv_pages"]:
            found.append(f"run {run['run_id']}: its steps had more KV pages than its peak, or it more than its pool")
    return found
