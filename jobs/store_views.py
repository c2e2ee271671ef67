"""The views of typed answers: their names, their columns as SQL, and when they are made anew."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import duckdb

from jobs.quote_answers import quote_columns
from jobs.schema_types import Schema, answer_columns, quote_identifier, quote_literal
from jobs.validate import canonical_schema
from jobs.wide_integers import LONG_NUMBER, is_narrower, widened


def define_views(connection: duckdb.DuckDBPyConnection, schemas: dict[str, Schema]) -> dict[str, str]:
    """Create or renew the view of each schema; returns the view's name by the schema's.

    A schema keeps its view's name for ever (docqa_schemas remembers it). Nothing is written when nothing changed.
    """
    known: dict[str, tuple[str, str]] = {
        name: (view, schema)
        for name, view, schema in connection.execute(
            "SELECT schema_name, view_name, schema FROM docqa_schemas"
        ).fetchall()
    }
    existing = {name.lower() for name in table_columns(connection)}
    taken = existing | {view.lower() for view, _ in known.values()}
    names: dict[str, str] = {}
    connection.execute("BEGIN")
    for schema_name, schema in schemas.items():
        text = canonical_schema(schema)
        view, stored = known.get(schema_name, (None, None))
        if view is None:
            view = _free_name(schema_name, taken)
            taken.add(view.lower())
        names[schema_name] = view
        if stored == text and view.lower() in existing:
            continue
        query = view_query(schema_name, schema, long_answers(connection, schema_name))
        connection.execute(f"CREATE OR REPLACE VIEW {quote_identifier(view)} AS {query}")
        connection.execute("DELETE FROM docqa_schemas WHERE schema_name = ?", [schema_name])
        connection.execute("INSERT INTO docqa_schemas VALUES (?, ?, ?)", [schema_name, view, text])
    connection.execute("COMMIT")
    return names


def widen_views(connection: duckdb.DuckDBPyConnection, answers: Mapping[str, Sequence[str]]) -> None:
    """Renew the views that can't hold a whole number of these valid answers, which were just written.

    `answers` are JSON texts by schema name: those that `has_long_number`, so that most batches have none.
    """
    for schema_name, texts in answers.items():
        known = connection.execute(
            "SELECT view_name, schema FROM docqa_schemas WHERE schema_name = ?", [schema_name]
        ).fetchall()
        if not known:
            continue
        view, schema = known[0][0], json.loads(known[0][1])
        kinds = {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE {quote_identifier(view)}").fetchall()}
        if any(is_narrower(kinds[column.name], column) for column in widened(answer_columns(schema), texts)):
            query = view_query(schema_name, schema, long_answers(connection, schema_name))
            connection.execute(f"CREATE OR REPLACE VIEW {quote_identifier(view)} AS {query}")


def long_answers(connection: duckdb.DuckDBPyConnection, schema_name: str) -> list[str]:
    """The valid answers of a schema that may hold whole numbers beyond 64 bits."""
    rows = connection.execute(
        "SELECT CAST(answer AS VARCHAR) FROM answers WHERE status = 'ok' AND schema_name = ? "
        f"AND regexp_matches(CAST(answer AS VARCHAR), '{LONG_NUMBER}')",
        [schema_name],
    ).fetchall()
    return [text for (text,) in rows]


def typed_columns(schema: Schema, answers: Iterable[str] = ()) -> dict[str, str]:
    """The columns that a schema's answers have, as SQL over `answers` by name, wide enough for `long_answers`.

    Its properties, the places of its quotes, and the confidence of each property. None of the latter takes a property's
    name: it gets a number then.
    """
    properties = widened(answer_columns(schema), answers)
    columns = {column.name: column.expression() for column in properties}
    taken = {name.lower() for name in columns}
    confidences = [(f"{column.name}_confidence", column.confidence_expression()) for column in properties]
    for wanted, expression in quote_columns(schema) + confidences:
        name = _free(wanted, taken)
        taken.add(name.lower())
        columns[name] = expression
    return columns


def view_query(schema_name: str, schema: Schema, answers: Iterable[str]) -> str:
    """What a schema's view selects; `answers` as for `typed_columns`."""
    columns = ["doc_id", "question_id"]
    columns += [
        f"{expression} AS {quote_identifier(name)}" for name, expression in typed_columns(schema, answers).items()
    ]
    return (
        f"SELECT {', '.join(columns)} FROM latest_answers "
        f"WHERE status = 'ok' AND schema_name = {quote_literal(schema_name)}"
    )


def _free_name(schema_name: str, taken: set[str]) -> str:
    """`answers_<schema>`, runs of other than letters, digits and underscores as one underscore; a suffix if taken."""
    return _free("answers_" + (re.sub(r"\W+", "_", schema_name)[:80] or "schema"), taken)


def _free(wanted: str, taken: Collection[str]) -> str:
    """A name that is not among `taken`, which are in lower case: itself, or with the first free number from 2."""
    candidate, number = wanted, 2
    while candidate.lower() in taken:
        candidate, number = f"{wanted}_{number}", number + 1
    return candidate


def table_columns(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """The columns of every table and view of the main schema, in their order."""
    found: dict[str, list[str]] = {}
    rows: list[Any] = connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main' "
        "AND database_name = current_database() ORDER BY table_name, column_index"
    ).fetchall()
    for table, column in rows:
        found.setdefault(table.lower(), []).append(column)
    return found
