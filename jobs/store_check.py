"""What must always be true of an output database, checked from its rows."""

from __future__ import annotations

from typing import Any

import duckdb

from jobs.store_calls import wrong_calls
from jobs.store_check_reuse import wrong_reuse
from jobs.store_records import ANSWER_STATUSES, RUN_STATUSES
from jobs.store_schema import TOTALS

_MOST_EXAMPLES = 5


def violations(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """A sentence for each broken rule, with the run and the rows it concerns."""
    return [
        *_wrong_totals(connection),
        *_wrong_row_counts(connection),
        *_wrong_tokens(connection),
        *_wrong_rows(connection),
        *_wrong_references(connection),
        *wrong_reuse(connection),
        *wrong_calls(connection),
    ]


def _wrong_totals(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """A run's totals are the sums of its rows, those that were removed since left out of account."""
    sums = ", ".join(f"CAST({expression} AS BIGINT) AS {name}" for name, expression in TOTALS.items())
    pairs = ", ".join(f"runs.{name}, coalesce(sums.{name}, 0)" for name in TOTALS)
    columns = connection.execute("SELECT * FROM runs LIMIT 0").description or ()
    removed = "rows_removed" if "rows_removed" in [column[0] for column in columns] else "0"  # version 1 has none
    rows = connection.execute(
        f"SELECT runs.run_id, {pairs} FROM runs "
        f"LEFT JOIN (SELECT run_id, {sums} FROM answers GROUP BY run_id) sums USING (run_id) "
        f"WHERE {removed} = 0 ORDER BY 1"
    ).fetchall()
    found = []
    for run_id, *values in rows:
        for name, total, summed in zip(TOTALS, values[0::2], values[1::2], strict=True):
            if total != summed:
                found.append(f"run {run_id}: {name} is {total}, but its rows sum up to {summed}")
    compacted = connection.execute(
        f"SELECT run_id, rows_ok + rows_failed AS total, {removed} AS removed, count(answers.run_id) AS rows "
        "FROM runs LEFT JOIN answers USING (run_id) GROUP BY ALL "
        "HAVING removed IS NULL OR (removed <> 0 AND total <> removed + rows) ORDER BY 1"
    ).fetchall()
    for run_id, total, rows_removed, rows in compacted:
        found.append(f"run {run_id}: {rows} of its rows are left and {rows_removed} were removed, but it had {total}")
    return found


def _wrong_row_counts(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """rows_total = rows_reused + rows_ok + rows_failed + pending, with none pending after a finished run."""
    rows = connection.execute(
        "SELECT run_id, status, rows_total, rows_reused, rows_ok, rows_failed, "
        "rows_total - rows_reused - rows_ok - rows_failed AS pending FROM runs ORDER BY 1"
    ).fetchall()
    found = []
    for run_id, status, total, reused, ok, failed, pending in rows:
        if status not in RUN_STATUSES:
            found.append(f"run {run_id}: unknown status {status!r}")
        parts = f"{reused} reused + {ok} ok + {failed} failed"
        if pending is None or pending < 0:
            found.append(f"run {run_id}: rows_total is {total}, less than {parts}")
        elif pending > 0 and status == "finished":
            found.append(f"run {run_id}: it finished, but of {total} rows only {parts} are accounted for")
    return found


def _wrong_tokens(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """cached + computed = prompt for a row that reached the model; no counts at all for one that did not."""
    rows = connection.execute(
        "SELECT run_id, doc_id, question_id, prompt_tokens, cached_tokens, computed_tokens FROM answers "
        "WHERE coalesce(prompt_tokens, cached_tokens, computed_tokens) IS NOT NULL "
        "AND cached_tokens + computed_tokens IS DISTINCT FROM prompt_tokens"
    ).fetchall()
    return _listed(
        rows,
        lambda row: (
            f"run {row[0]}, row ({row[1]}, {row[2]}): cached {row[4]} + computed {row[5]} tokens "
            f"are not the prompt's {row[3]}"
        ),
    )


def _wrong_rows(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """A known status for every row, an answer for every ok one, one row for a key in a run, attempts all different."""
    statuses = ", ".join(f"'{status}'" for status in ANSWER_STATUSES)
    unknown = connection.execute(
        f"SELECT run_id, doc_id, question_id, status FROM answers WHERE status IS NULL OR status NOT IN ({statuses})"
    ).fetchall()
    empty = connection.execute(
        "SELECT run_id, doc_id, question_id FROM answers WHERE status = 'ok' AND answer IS NULL"
    ).fetchall()
    invalid = connection.execute(
        "SELECT run_id, doc_id, question_id FROM answers "
        "WHERE NOT coalesce(json_valid(answer), true) OR NOT coalesce(json_valid(extra), true)"
    ).fetchall()
    twice = connection.execute(
        "SELECT run_id, doc_id, question_id, count(*) FROM answers GROUP BY ALL HAVING count(*) > 1"
    ).fetchall()
    attempts = connection.execute(
        "SELECT doc_id, question_id, attempt FROM answers GROUP BY ALL HAVING count(*) > 1"
    ).fetchall()
    return [
        *_listed(unknown, lambda row: f"run {row[0]}, row ({row[1]}, {row[2]}): unknown status {row[3]!r}"),
        *_listed(empty, lambda row: f"run {row[0]}, row ({row[1]}, {row[2]}): status ok without an answer"),
        *_listed(invalid, lambda row: f"run {row[0]}, row ({row[1]}, {row[2]}): answer or extra is not valid JSON"),
        *_listed(twice, lambda row: f"run {row[0]}, row ({row[1]}, {row[2]}): {row[3]} rows instead of one"),
        *_listed(attempts, lambda row: f"row ({row[0]}, {row[1]}): attempt {row[2]} stands twice"),
    ]


def _wrong_references(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Every row's run and document are there, and no run or document is there twice."""
    orphans = connection.execute(
        "SELECT DISTINCT run_id FROM answers WHERE run_id IS NULL OR run_id NOT IN (SELECT run_id FROM runs)"
    ).fetchall()
    missing = connection.execute(
        "SELECT DISTINCT document_hash FROM answers ANTI JOIN documents USING (document_hash) "
        "WHERE document_hash IS NOT NULL"
    ).fetchall()
    runs = connection.execute("SELECT run_id FROM runs GROUP BY 1 HAVING count(*) > 1").fetchall()
    documents = connection.execute("SELECT document_hash FROM documents GROUP BY 1 HAVING count(*) > 1").fetchall()
    return [
        *_listed(orphans, lambda row: f"answers belong to run {row[0]}, which is not in runs"),
        *_listed(missing, lambda row: f"answers belong to document {row[0]}, which is not in documents"),
        *_listed(runs, lambda row: f"run {row[0]} stands twice in runs"),
        *_listed(documents, lambda row: f"document {row[0]} stands twice in documents"),
    ]


def _listed(rows: list[Any], sentence: Any) -> list[str]:
    sentences = [sentence(row) for row in rows[:_MOST_EXAMPLES]]
    if len(rows) > _MOST_EXAMPLES:
        sentences.append(f"… and {len(rows) - _MOST_EXAMPLES} more like the last")
    return sentences
