"""What became of rows since their attempt before: the same answer, another one, repaired, broken."""

from __future__ import annotations

import duckdb

CHANGES = {
    "first": "asked for the first time",
    "same": "the same answer as before",
    "changed": "another answer than before",
    "repaired": "failed before, ok now",
    "broken": "ok before, failed now",
    "failed_again": "failed before and now",
}
"""What can have become of a row, in words; "before" is its attempt before, of whichever run."""

_PAIRS = """
    SELECT now.doc_id, now.question_id, before.answer AS answer_before, CASE
        WHEN before.status IS NULL THEN 'first'
        WHEN now.status = 'ok' AND before.status <> 'ok' THEN 'repaired'
        WHEN now.status <> 'ok' AND before.status = 'ok' THEN 'broken'
        WHEN now.status <> 'ok' THEN 'failed_again'
        WHEN now.answer::VARCHAR = before.answer::VARCHAR THEN 'same'
        ELSE 'changed' END AS change
    FROM answers now LEFT JOIN (
        SELECT other.doc_id, other.question_id, arg_max(other.status, other.attempt) AS status,
            arg_max(other.answer, other.attempt) FILTER (other.status = 'ok') AS answer
        FROM answers other JOIN answers mine USING (doc_id, question_id)
        WHERE mine.run_id = $1 AND other.attempt < mine.attempt GROUP BY ALL
    ) before USING (doc_id, question_id)
    WHERE now.run_id = $1"""


def changes_since(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, int]:
    """How many rows of a run are of each of CHANGES; they add up to its rows."""
    found = connection.execute(f"SELECT change, count(*) FROM ({_PAIRS}) GROUP BY 1", [run_id]).fetchall()
    return dict.fromkeys(CHANGES, 0) | dict(found)


def changed_rows(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[tuple[str, str], tuple[str, str | None]]:
    """By (doc_id, question_id), for rows that were tried before: which of CHANGES, and the answer before, if other."""
    found = connection.execute(
        "SELECT doc_id, question_id, change, CASE WHEN change IN ('changed', 'broken') THEN answer_before END "
        f"FROM ({_PAIRS}) WHERE change <> 'first'",
        [run_id],
    ).fetchall()
    return {(doc_id, question_id): (change, before) for doc_id, question_id, change, before in found}
