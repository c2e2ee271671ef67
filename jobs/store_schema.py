"""Tables and views of the output database, their version, and how an older one is brought to it."""

from __future__ import annotations

import json

import duckdb

from jobs.errors import OutputError
from jobs.schema_types import quote_identifier
from jobs.store_calls import CALL_COLUMNS
from jobs.store_views import long_answers, table_columns, view_query

STORE_VERSION = 4
"""What changed: 2 added `answers.request_parts` and `runs.rows_removed`; 3 `answers.quotes` and `runs.bad_files`; 4
`answers.document_tokens`, `used_document_tokens`, `confidence`, `prompt_segments` and `repeated_tokens`,
`runs.statistics`, `run_steps`, `reuse_by_segment` and `calls`."""
QUOTES_VERSION = 3
"""The first that has `answers.quotes`; an older store that is only read has none."""
CUT_DOCUMENTS_VERSION = 4
"""The first that has `answers.document_tokens` and `answers.used_document_tokens`."""
CONFIDENCE_VERSION = 4
"""The first that has `answers.confidence`."""
STATISTICS_VERSION = 4
"""The first that has `runs.statistics` and what came with it."""

# No keys and no indexes: DuckDB's write-ahead log has lost files to them, and a unique key makes a repeated row an
# error in the middle of a night. Uniqueness is kept by the queries that insert.
TABLES = {
    "docqa_meta": {"key": "VARCHAR", "value": "VARCHAR"},
    "docqa_schemas": {"schema_name": "VARCHAR", "view_name": "VARCHAR", "schema": "JSON"},
    "runs": {
        "run_id": "VARCHAR",
        "job_name": "VARCHAR",
        "status": "VARCHAR",
        "started_at": "TIMESTAMP",
        "finished_at": "TIMESTAMP",
        "model": "VARCHAR",
        "model_fingerprint": "VARCHAR",
        "config": "JSON",
        "rows_total": "BIGINT",
        "rows_ok": "BIGINT",
        "rows_failed": "BIGINT",
        "prompt_tokens": "BIGINT",
        "minimum_tokens": "BIGINT",
        "computed_tokens": "BIGINT",
        "cached_tokens": "BIGINT",
        "output_tokens": "BIGINT",
        "forced_tokens": "BIGINT",
        "load_seconds": "DOUBLE",
        "seconds": "DOUBLE",
        "rows_reused": "BIGINT",
        "error": "VARCHAR",
        "rows_removed": "BIGINT",
        "bad_files": "JSON",
        "statistics": "JSON",
    },
    "run_steps": {
        "run_id": "VARCHAR",
        "started_seconds": "DOUBLE",
        "seconds": "DOUBLE",
        "steps": "BIGINT",
        "prompt_tokens": "BIGINT",
        "output_tokens": "BIGINT",
        "prompt_seconds": "DOUBLE",
        "output_seconds": "DOUBLE",
        "mask_seconds": "DOUBLE",
        "running_rows": "BIGINT",
        "kv_pages": "BIGINT",
    },
    "documents": {"document_hash": "VARCHAR", "characters": "BIGINT", "tokens": "BIGINT"},
    "answers": {
        "run_id": "VARCHAR",
        "attempt": "BIGINT",
        "doc_id": "VARCHAR",
        "question_id": "VARCHAR",
        "document_hash": "VARCHAR",
        "question": "VARCHAR",
        "schema_name": "VARCHAR",
        "status": "VARCHAR",
        "answer": "JSON",
        "raw_text": "VARCHAR",
        "error": "VARCHAR",
        "finish_reason": "VARCHAR",
        "prompt_tokens": "BIGINT",
        "cached_tokens": "BIGINT",
        "computed_tokens": "BIGINT",
        "output_tokens": "BIGINT",
        "ttft_seconds": "DOUBLE",
        "latency_seconds": "DOUBLE",
        "answered_at": "TIMESTAMP",
        "extra": "JSON",
        "request_digest": "VARCHAR",
        "minimum_tokens": "BIGINT",
        "request_parts": "JSON",
        "quotes": "JSON",
        "document_tokens": "BIGINT",
        "used_document_tokens": "BIGINT",
        "confidence": "JSON",
        "prompt_segments": "JSON",
        "repeated_tokens": "JSON",
    },
    "calls": dict(CALL_COLUMNS),
}

# Columns that a version added at the end of a table, with what rows of before have in them.
_ADDED = {
    2: (("runs", "rows_removed", "0"), ("answers", "request_parts", "NULL")),
    3: (("runs", "bad_files", "NULL"), ("answers", "quotes", "NULL")),
    4: (
        ("answers", "document_tokens", "NULL"),
        ("answers", "used_document_tokens", "NULL"),
        ("answers", "confidence", "NULL"),
        ("runs", "statistics", "NULL"),
        ("answers", "prompt_segments", "NULL"),
        ("answers", "repeated_tokens", "NULL"),
    ),
}
# Whole tables and views that a version added.
_ADDED_NAMES = {4: ("run_steps", "reuse_by_segment", "calls")}

_ANSWER_COLUMNS = ", ".join(TABLES["answers"])

LATEST = "attempt + CASE WHEN status = 'ok' THEN 1000000000000 ELSE 0 END"
"""The key of the order of a key's attempts, as one number: they count up, and an `ok` one outranks all others."""

VIEWS = {
    # Finding row ids first keeps the long texts out of the aggregation.
    "latest_answers": f"""
        SELECT {_ANSWER_COLUMNS} FROM answers WHERE rowid IN (
            SELECT arg_max(rowid, {LATEST})
            FROM answers GROUP BY doc_id, question_id)""",
    "errors": """
        SELECT doc_id, question_id, status, error, run_id, attempt, finish_reason, answered_at
        FROM latest_answers WHERE status <> 'ok'""",
    "reuse_by_document": """
        SELECT run_id, document_hash, count(*) AS "rows",
            CAST(coalesce(sum(prompt_tokens), 0) AS BIGINT) AS prompt_tokens,
            CAST(coalesce(sum(minimum_tokens), 0) AS BIGINT) AS minimum_tokens,
            CAST(coalesce(sum(computed_tokens), 0) AS BIGINT) AS computed_tokens,
            CAST(coalesce(sum(cached_tokens), 0) AS BIGINT) AS cached_tokens
        FROM answers WHERE document_hash IS NOT NULL GROUP BY run_id, document_hash""",
    "reuse_by_segment": """
        WITH placed AS (
            SELECT run_id, unnest(json_keys(prompt_segments)) AS segment,
                unnest(range(len(json_keys(prompt_segments)))) AS place,
                unnest(json_extract(prompt_segments, '$.*')) AS figures
            FROM answers WHERE prompt_segments IS NOT NULL)
        SELECT run_id, segment, count(*) AS "rows",
            CAST(sum(CAST(figures->>'prompt_tokens' AS BIGINT)) AS BIGINT) AS prompt_tokens,
            CAST(sum(CAST(figures->>'minimum_tokens' AS BIGINT)) AS BIGINT) AS minimum_tokens,
            CAST(sum(CAST(figures->>'prompt_tokens' AS BIGINT) - CAST(figures->>'cached_tokens' AS BIGINT)) AS BIGINT)
                AS computed_tokens,
            CAST(sum(CAST(figures->>'cached_tokens' AS BIGINT)) AS BIGINT) AS cached_tokens,
            sum(CAST(figures->>'saved_flops' AS BIGINT)) AS saved_flops
        FROM placed GROUP BY run_id, segment ORDER BY run_id, min(place), segment""",
}


def create_or_check(connection: duckdb.DuckDBPyConnection, path: object) -> None:
    """Make what is missing, and migrate an older store, each in one transaction.

    Raises OutputError for a newer store and for tables of others.
    """
    version = store_version(connection, path)
    if version == STORE_VERSION and is_complete(connection, version):
        return
    existing = table_columns(connection)
    if version is None:
        foreign = sorted(name for name in (*TABLES, *VIEWS) if name in existing)
        if foreign:
            raise OutputError(
                f"{path} has a table named {foreign[0]} that docqa did not make; name another file as output.database"
            )
    connection.execute("BEGIN")
    if version is not None and version < STORE_VERSION:
        _migrate(connection, version)
    for name, columns in TABLES.items():
        declared = ", ".join(f"{quote_identifier(column)} {kind}" for column, kind in columns.items())
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({declared})")
    for name, query in VIEWS.items():
        connection.execute(f"CREATE VIEW IF NOT EXISTS {name} AS {query}")
    if version is None:
        connection.execute("INSERT INTO docqa_meta VALUES ('store_version', ?)", [str(STORE_VERSION)])
    connection.execute("COMMIT")


def _migrate(connection: duckdb.DuckDBPyConnection, version: int) -> None:
    """From an older version to that of today, within the caller's transaction."""
    for added in range(version + 1, STORE_VERSION + 1):
        for table, column, value in _ADDED[added]:
            kind = TABLES[table][column]
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind} DEFAULT {value}")
            connection.execute(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT")
    # Views name their columns; they are made anew from the definitions of today.
    for name, query in VIEWS.items():
        connection.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")
    for name, view, text in connection.execute("SELECT schema_name, view_name, schema FROM docqa_schemas").fetchall():
        query = view_query(name, json.loads(text), long_answers(connection, name))
        connection.execute(f"CREATE OR REPLACE VIEW {quote_identifier(view)} AS {query}")
    connection.execute("UPDATE docqa_meta SET value = ? WHERE key = 'store_version'", [str(STORE_VERSION)])


def is_complete(connection: duckdb.DuckDBPyConnection, version: int) -> bool:
    """Whether every table and view of a version is there."""
    existing = table_columns(connection)
    later = {name for added, names in _ADDED_NAMES.items() if added > version for name in names}
    return all(name in existing for name in (*TABLES, *VIEWS) if name not in later)


def store_version(connection: duckdb.DuckDBPyConnection, path: object) -> int | None:
    """The version of a docqa store that this docqa can read; None if it is no store.

    Raises OutputError for a newer store, and for one whose tables were changed.
    """
    existing = table_columns(connection)
    if "docqa_meta" not in existing:
        return None
    if existing["docqa_meta"] != list(TABLES["docqa_meta"]):
        raise OutputError(f"{path} has a table docqa_meta that docqa did not make; name another output.database")
    rows = connection.execute("SELECT max(value) FROM docqa_meta WHERE key = 'store_version'").fetchall()
    text = rows[0][0]
    if text not in [str(known) for known in range(1, STORE_VERSION + 1)]:
        raise OutputError(
            f"{path} is a docqa store of version {text}, and this docqa knows versions up to {STORE_VERSION}; "
            "use the docqa that wrote it, or name another output.database"
        )
    version = int(text)
    later = {(table, column) for added, new in _ADDED.items() if added > version for table, column, _ in new}
    for name, columns in TABLES.items():
        expected = [column for column in columns if (name, column) not in later]
        if name in existing and existing[name] != expected:
            raise OutputError(f"{path}: the columns of the table {name} were changed; name another output.database")
    return version


TOTALS = {
    "rows_ok": "count(*) FILTER (status = 'ok')",
    "rows_failed": "count(*) FILTER (status <> 'ok')",
    "prompt_tokens": "coalesce(sum(prompt_tokens), 0)",
    "minimum_tokens": "coalesce(sum(minimum_tokens), 0)",
    "computed_tokens": "coalesce(sum(computed_tokens), 0)",
    "cached_tokens": "coalesce(sum(cached_tokens), 0)",
    "output_tokens": "coalesce(sum(output_tokens), 0)",
}
"""The totals of a run that are sums of its rows, as SQL over `answers`."""
