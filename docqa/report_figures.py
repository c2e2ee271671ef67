"""The figures of a run's report, each computed once and here: text, JSON and HTML show what `report_of` returns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import duckdb

from docqa.report_changes import changes_since
from docqa.report_levels import RowTokens, reuse_by_level
from docqa.report_reuse import reuse_figures, run_saved_seconds, saved_seconds
from docqa.report_time import time_figures
from jobs.errors import OutputError
from jobs.store import AnswerStore, RunRecord
from jobs.store_schema import CUT_DOCUMENTS_VERSION, QUOTES_VERSION, STATISTICS_VERSION

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
SLOWEST_ROWS = 10
TIMELINE_INTERVALS = 60
CURVE_SHARES = [share / 100 for share in range(101)]

Rows = Callable[..., list[dict[str, Any]]]


def run_of(store: AnswerStore, run_id: str | None) -> RunRecord:
    """A run by its id (None: the latest). Raises OutputError if there is none."""
    run = store.latest_run() if run_id is None else store.run(run_id)
    if run is None:
        known = ", ".join(found.run_id for found in store.runs()[:10])
        raise OutputError(
            f"{store.path} has no run{f' {run_id}; it has {known}' if run_id else ' yet; run the job first'}"
        )
    return run


def report_of(store: AnswerStore, run_id: str | None) -> dict[str, Any]:
    """The report of a run (None: the latest) as JSON-ready values. Raises OutputError if there is none."""
    run = run_of(store, run_id)
    with store.reading() as connection:
        rows = rows_of(connection)
        statuses = rows(
            "SELECT status, count(*) AS rows FROM answers WHERE run_id = ? GROUP BY ALL ORDER BY 2 DESC, 1", run.run_id
        )
        found = {
            "rows_by_status": {entry["status"]: entry["rows"] for entry in statuses},
            "percentiles": _percentiles(rows, run),
            "latency_curve": _latency_curve(connection, run),
            "slowest_rows": _slowest_rows(rows, run),
            "timeline": _timeline(rows, run),
            **_reuse(rows, run, has_calls=store.version >= STATISTICS_VERSION),
            **(_measured(rows, run) if store.version >= STATISTICS_VERSION else _NOT_MEASURED),
            "quotes": _quotes(rows, run) if store.version >= QUOTES_VERSION else None,
            "cut": _cut(rows, run) if store.version >= CUT_DOCUMENTS_VERSION else None,
            "calls": _calls(rows, run) if store.version >= CUT_DOCUMENTS_VERSION else [],
            "failures": _failures(rows, run),
            "errors": rows(
                "SELECT doc_id, question_id, status, error FROM answers "
                "WHERE run_id = ? AND status <> 'ok' ORDER BY ALL",
                run.run_id,
            ),
            "changes": changes_since(connection, run.run_id),
        }
    _add_saved_seconds(found, statistics_of(run))
    previous = _previous_run(store, run)
    return (
        _figures_with_savings(store, run)
        | found
        | {"previous_run": _figures_with_savings(store, previous) if previous is not None else None}
    )


def _figures_with_savings(store: AnswerStore, run: RunRecord) -> dict[str, Any]:
    with store.reading() as connection:
        saved = run_saved_seconds(rows_of(connection), run.run_id, statistics_of(run))
    return run_figures(run) | {"saved_seconds": saved}


def run_figures(run: RunRecord) -> dict[str, Any]:
    """A run's own record with what follows from it: shares and speeds, None where there is nothing to divide by."""
    return asdict(run) | {
        "config": json.loads(run.config),
        "bad_files": json.loads(run.bad_files or "[]"),
        "statistics": statistics_of(run),
        "started_at": run.started_at.isoformat(),
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
        "rows_pending": run.rows_pending,
        "reused_share": run.cached_tokens / run.prompt_tokens if run.prompt_tokens else None,
        "computed_to_minimum": run.computed_tokens / run.minimum_tokens if run.minimum_tokens else None,
        "rows_per_second": _per_second(run.rows_ok + run.rows_failed, run.seconds),
        "prompt_tokens_per_second": _per_second(run.prompt_tokens, run.seconds),
        "output_tokens_per_second": _per_second(run.output_tokens, run.seconds),
    }


def statistics_of(run: RunRecord) -> dict[str, Any] | None:
    """What the engine measured; None while a run is on, if it was killed, and where an older docqa wrote it."""
    found: dict[str, Any] | None = json.loads(run.statistics) if run.statistics is not None else None
    return found


def rows_of(connection: duckdb.DuckDBPyConnection) -> Rows:
    """rows(query, value, ...) -> the result's rows as dictionaries."""

    def rows(query: str, *values: Any) -> list[dict[str, Any]]:
        result = connection.execute(query, list(values))
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    return rows


_NOT_MEASURED: dict[str, Any] = {
    "segments": [],
    "repeated": [],
    "computed_in_earlier_runs": None,
    "saved": None,
    "saved_flops_by_document": {},
    "time_parts": None,
    "steps": [],
    "kv_memory": None,
}
"""Of a run that an older docqa wrote."""


def _measured(rows: Rows, run: RunRecord) -> dict[str, Any]:
    statistics = statistics_of(run)
    values = asdict(run) | {"statistics": statistics}
    return reuse_figures(rows, run.run_id, statistics) | time_figures(rows, values)


def _add_saved_seconds(found: dict[str, Any], statistics: dict[str, Any] | None) -> None:
    """Give each document what its reuse saved."""
    by_document = found.pop("saved_flops_by_document")
    for document in found["documents"]:
        document["saved_flops"] = by_document.get(document["document_hash"])
        document["saved_seconds"] = saved_seconds(document["saved_flops"], statistics)


def _quotes(rows: Rows, run: RunRecord) -> dict[str, int] | None:
    """How many quotes the answers have, and how many of them stand in their documents; None if no schema marks any.

    `empty` ones quote nothing: the answer says so that there is nothing to quote.
    """
    found = rows(
        "SELECT count(*) AS quotes, count_if(is_found = 'true') AS found, "
        "count_if(trim(CASE WHEN pointer = '' THEN answer ->> '$' ELSE json_extract_string(answer, pointer) END, "
        "chr(9) || chr(10) || chr(13) || ' ') = '') AS empty "
        "FROM (SELECT answer, unnest(json_keys(quotes)) AS pointer, "
        "unnest(json_extract_string(quotes, '$.*.found')) AS is_found FROM answers WHERE run_id = ?)",
        run.run_id,
    )[0]
    return found if found["quotes"] else None


def _percentiles(rows: Rows, run: RunRecord) -> dict[str, float | None]:
    """`<column>_<percentile>` in seconds over the rows that reached the model; None if none did."""
    selected = ", ".join(
        f"quantile_cont({column}, {share}) AS {column}_{name}"
        for column in ("ttft_seconds", "latency_seconds")
        for name, share in PERCENTILES.items()
    )
    query = f"SELECT {selected} FROM answers WHERE run_id = ? AND prompt_tokens IS NOT NULL"
    return rows(query, run.run_id)[0]


def _latency_curve(connection: duckdb.DuckDBPyConnection, run: RunRecord) -> dict[str, list[float]]:
    """Seconds at each percent of the rows from 0 to 100, by column; empty lists if no row reached the model."""
    columns = ("ttft_seconds", "latency_seconds")
    selected = ", ".join(f"quantile_cont({column}, {CURVE_SHARES})" for column in columns)
    query = f"SELECT {selected} FROM answers WHERE run_id = ? AND prompt_tokens IS NOT NULL"
    found = connection.execute(query, [run.run_id]).fetchall()[0]
    return {column: list(values or []) for column, values in zip(columns, found, strict=True)}


def _slowest_rows(rows: Rows, run: RunRecord) -> list[dict[str, Any]]:
    return rows(
        "SELECT doc_id, question_id, status, ttft_seconds, latency_seconds, prompt_tokens, computed_tokens, "
        "output_tokens FROM answers WHERE run_id = ? AND latency_seconds IS NOT NULL "
        f"ORDER BY latency_seconds DESC, doc_id, question_id LIMIT {SLOWEST_ROWS}",
        run.run_id,
    )


def _timeline(rows: Rows, run: RunRecord) -> dict[str, Any]:
    """What ended in each of equal intervals of the run, the last up to its end; no intervals if nothing has."""
    started = "(SELECT started_at FROM runs WHERE run_id = $1)"
    span = rows(
        f"SELECT epoch(greatest(max(answered_at), (SELECT finished_at FROM runs WHERE run_id = $1)) - {started}) "
        f"AS seconds, epoch(min(answered_at) FILTER (prompt_tokens IS NOT NULL) - {started}) AS first "
        "FROM answers WHERE run_id = $1",
        run.run_id,
    )[0]
    seconds = span["seconds"] or 0.0
    if seconds <= 0:
        return {"seconds": seconds, "first_answer_seconds": span["first"], "interval_seconds": None, "intervals": []}
    width = seconds / TIMELINE_INTERVALS
    sums = rows(
        f"SELECT CAST(greatest(0, least({TIMELINE_INTERVALS - 1}, floor(epoch(answered_at - {started}) / $2))) AS INT) "
        "AS interval, count(*) FILTER (status = 'ok') AS rows_ok, count(*) FILTER (status <> 'ok') AS rows_failed, "
        "CAST(coalesce(sum(computed_tokens), 0) AS BIGINT) AS computed_tokens, "
        "CAST(coalesce(sum(output_tokens), 0) AS BIGINT) AS output_tokens "
        "FROM answers WHERE run_id = $1 GROUP BY 1",
        run.run_id,
        width,
    )
    by_interval = {entry.pop("interval"): entry for entry in sums}
    nothing = {"rows_ok": 0, "rows_failed": 0, "computed_tokens": 0, "output_tokens": 0}
    return {
        "seconds": seconds,
        "first_answer_seconds": span["first"],
        "interval_seconds": width,
        "intervals": [by_interval.get(number, nothing) for number in range(TIMELINE_INTERVALS)],
    }


def _reuse(rows: Rows, run: RunRecord, *, has_calls: bool) -> dict[str, Any]:
    """Reuse by document, the most prompt tokens first, and by level of the prefix tree.

    A document's `seconds` run from the start of its first row to the end of its last; documents overlap in time.
    """
    documents = rows(
        "SELECT reuse.* EXCLUDE (run_id), characters, tokens, doc_ids, doc_id_count, rows_ok, seconds "
        "FROM reuse_by_document reuse LEFT JOIN documents USING (document_hash) "
        "JOIN (SELECT document_hash, list_sort(list(DISTINCT coalesce(doc_id, '')))[:3] AS doc_ids, "
        "count(DISTINCT doc_id) AS doc_id_count, count(*) FILTER (status = 'ok') AS rows_ok, "
        "epoch(max(answered_at) FILTER (latency_seconds IS NOT NULL)) "
        "- min(epoch(answered_at) - latency_seconds) AS seconds "
        "FROM answers WHERE run_id = $1 AND document_hash IS NOT NULL GROUP BY 1) USING (document_hash) "
        "WHERE run_id = $1 ORDER BY prompt_tokens DESC, document_hash",
        run.run_id,
    )
    once, several = "WHERE run_id = $1 AND prompt_tokens IS NOT NULL", ""
    if has_calls:  # of a row that was asked several times, each call went through its prompt
        once += " AND (doc_id, question_id) NOT IN (SELECT (doc_id, question_id) FROM calls WHERE run_id = $1)"
        several = (
            "UNION ALL SELECT coalesce(schema_name, ''), coalesce(document_hash, ''), calls.prompt_tokens, "
            "calls.cached_tokens, calls.minimum_tokens FROM calls JOIN answers USING (run_id, doc_id, question_id) "
            "WHERE run_id = $1"
        )
    reached = rows(
        "SELECT coalesce(schema_name, '') AS schema_name, coalesce(document_hash, '') AS document_hash, prompt_tokens, "
        f"coalesce(cached_tokens, 0) AS cached_tokens, minimum_tokens FROM answers {once} {several}",
        run.run_id,
    )
    levels, by_document = reuse_by_level([RowTokens(**row) for row in reached])
    for document in documents:
        document["levels"] = by_document.get(document["document_hash"], [])
    return {"levels": levels, "documents": documents}


def _cut(rows: Rows, run: RunRecord) -> dict[str, int] | None:
    """Rows whose document was cut to fit the model's context, and what they had of it; None if there are none."""
    [cut] = rows(
        "SELECT count(*) AS rows, count(DISTINCT document_hash) AS documents, "
        "CAST(coalesce(sum(document_tokens), 0) AS BIGINT) AS document_tokens, "
        "CAST(coalesce(sum(used_document_tokens), 0) AS BIGINT) AS used_document_tokens "
        "FROM answers WHERE run_id = ? AND used_document_tokens < document_tokens",
        run.run_id,
    )
    return cut if cut["rows"] else None


def _calls(rows: Rows, run: RunRecord) -> list[dict[str, Any]]:
    """Of rows that took several calls, how many did by kind: `piece` and `combine` of long documents, `sample`."""
    return rows(
        "SELECT kind, count(*) AS calls, count(DISTINCT (doc_id, question_id)) AS rows FROM calls WHERE run_id = ? "
        "GROUP BY kind ORDER BY kind DESC",
        run.run_id,
    )


def _failures(rows: Rows, run: RunRecord) -> list[dict[str, Any]]:
    """Failed rows by cause, the most frequent first, each with the first row it struck.

    A cause is a status and an error without its numbers and quoted texts, which differ from row to row.
    """
    varying = r"""'[^']*'|"[^"]*"|[0-9][0-9,.]*"""
    return rows(
        "SELECT status, count(*) AS rows, first(error ORDER BY doc_id, question_id) AS error, "
        "first(doc_id ORDER BY doc_id, question_id) AS doc_id, "
        "first(question_id ORDER BY doc_id, question_id) AS question_id "
        "FROM answers WHERE run_id = ? AND status <> 'ok' "
        "GROUP BY status, regexp_replace(coalesce(error, ''), ?, '…', 'g') ORDER BY rows DESC, status, error",
        run.run_id,
        varying,
    )


def _previous_run(store: AnswerStore, run: RunRecord) -> RunRecord | None:
    """The last run of the same job before this one that took on rows."""
    earlier = (
        other
        for other in store.runs()
        if other.job_name == run.job_name
        and (other.started_at, other.run_id) < (run.started_at, run.run_id)
        and other.rows_ok + other.rows_failed > 0
    )
    return next(earlier, None)


def _per_second(count: int, seconds: float | None) -> float | None:
    return count / seconds if seconds else None
