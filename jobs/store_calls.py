"""The table `calls`: what the model answered each time it was asked for one row, where it was asked several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import duckdb
import pyarrow as pa

from jobs.store_records import CallRecord, clean_json, clean_text

CALL_SUMS = ("prompt_tokens", "cached_tokens", "computed_tokens", "minimum_tokens", "output_tokens")
"""Columns of a row's calls that add up to those of its row in `answers`."""

CALL_COLUMNS = {
    "run_id": "VARCHAR",
    "attempt": "BIGINT",
    "doc_id": "VARCHAR",
    "question_id": "VARCHAR",
    "call": "BIGINT",
    "kind": "VARCHAR",
    "seed": "UBIGINT",
    "status": "VARCHAR",
    "answer": "JSON",
    "raw_text": "VARCHAR",
    "error": "VARCHAR",
    "finish_reason": "VARCHAR",
    "chosen": "BOOLEAN",
    "prompt_tokens": "BIGINT",
    "cached_tokens": "BIGINT",
    "computed_tokens": "BIGINT",
    "minimum_tokens": "BIGINT",
    "output_tokens": "BIGINT",
    "ttft_seconds": "DOUBLE",
    "latency_seconds": "DOUBLE",
    "piece_start": "BIGINT",
    "piece_end": "BIGINT",
    "uses": "JSON",
}
"""The columns of the table, with their types."""

_TYPES = {"BIGINT": pa.int64(), "UBIGINT": pa.uint64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_()}
_MOST_EXAMPLES = 5


OwnedCalls = tuple[str, int, str, str, Sequence[CallRecord]]
"""A row's run_id, attempt, doc_id and question_id, and its calls."""


def calls_table(owned: Sequence[OwnedCalls]) -> pa.Table:
    """Calls as an Arrow table in the columns of `calls`."""
    rows: list[dict[str, Any]] = []
    for run_id, attempt, doc_id, question_id, calls in owned:
        key = {"run_id": run_id, "attempt": attempt, "doc_id": doc_id, "question_id": question_id}
        rows += [{**key, **{column.name: getattr(call, column.name) for column in fields(call)}} for call in calls]
    columns = {}
    for name, kind in CALL_COLUMNS.items():
        values = [row[name] for row in rows]
        if kind in ("VARCHAR", "JSON"):
            values = [clean_json(value) if kind == "JSON" else clean_text(value) for value in values]
        columns[name] = pa.array(values, type=_TYPES.get(kind, pa.large_string()))
    return pa.table(columns)


def wrong_calls(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """A sentence for each row whose calls do not add up to it; none for a store of before there were any."""
    tables = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
    if "calls" not in tables:
        return []
    sums = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in CALL_SUMS)
    differ = " OR ".join(f"a.{name} IS DISTINCT FROM c.{name}" for name in CALL_SUMS)
    rows = connection.execute(
        "SELECT c.run_id, c.doc_id, c.question_id, c.calls, a.run_id IS NULL, "
        "c.first <> 0 OR c.last <> c.calls - 1 OR c.numbers <> c.calls, c.chosen, a.status, "
        f"coalesce({differ}, true), a.status = 'ok' AND a.answer IS DISTINCT FROM c.answer, c.wrong FROM ("
        f"SELECT run_id, attempt, doc_id, question_id, {sums}, count(*) AS calls, min(call) AS first, "
        "max(call) AS last, count(DISTINCT call) AS numbers, count(*) FILTER (chosen) AS chosen, "
        "any_value(answer) FILTER (chosen) AS answer, "
        "count(*) FILTER (cached_tokens + computed_tokens <> prompt_tokens) AS wrong "
        "FROM calls GROUP BY ALL) c LEFT JOIN answers a USING (run_id, attempt, doc_id, question_id) ORDER BY ALL"
    ).fetchall()
    found = []
    for run_id, doc_id, question_id, calls, orphan, misnumbered, chosen, status, differs, other, wrong in rows:
        where = f"run {run_id}, row ({doc_id}, {question_id})"
        if orphan:
            found.append(f"{where}: {calls} calls belong to no row of answers")
            continue
        if misnumbered:
            found.append(f"{where}: its calls are not numbered from 0 to {calls - 1}")
        if differs:
            found.append(f"{where}: the tokens of its {calls} calls do not add up to those of the row")
        if chosen != (status == "ok") or other:
            found.append(f"{where}: its status is {status}, but the answers of {chosen} calls were chosen for it")
        if wrong:
            found.append(f"{where}: of {wrong} calls, cached and computed tokens are not those of the prompt")
    more = len(found) - _MOST_EXAMPLES
    return found[:_MOST_EXAMPLES] + ([f"… and {more} more like the last"] if more > 0 else [])
