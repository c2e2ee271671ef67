"""Answers as a Parquet, JSON Lines or CSV file, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from jobs.errors import OutputError
from jobs.schema_types import quote_identifier, quote_literal
from jobs.store import AnswerStore
from jobs.store_connection import free_space_note
from jobs.store_schema import TABLES
from jobs.store_views import long_answers, typed_columns

FORMATS = {".parquet": "FORMAT parquet, COMPRESSION zstd", ".jsonl": "FORMAT json", ".csv": "FORMAT csv, HEADER"}
"""How DuckDB writes a file, by the end of its name."""

_LONGEST_DECIMAL = "DECIMAL(38, 0)"

_OWN_COLUMNS = ("request_digest", "request_parts")
"""By which docqa knows what changed; nobody else can read them."""


@dataclass(frozen=True)
class ExportReport:
    """What was written."""

    path: Path
    rows: int
    columns: list[str]


@dataclass(frozen=True)
class _Query:
    """What to write: SQL, and the columns by which it is sorted."""

    sql: str
    order: tuple[str, ...]


def export(
    store: AnswerStore, path: Path, *, schema_name: str | None = None, all_attempts: bool = False
) -> ExportReport:
    """Write the latest answers, failed rows too; with `all_attempts` every attempt.

    `schema_name`: only the valid answers of that schema, a typed column for each property. Rows are sorted by key and
    attempt. Times are UTC; in JSON Lines and CSV, which have no such type, ISO 8601 ending in Z. In CSV, lists, objects
    and JSON are JSON texts, and NULL is empty where an empty text is `""`. In Parquet, which has no wider integers,
    columns beyond 64 bits are decimals, or text if 38 digits are not enough. What is at `path` is replaced when the new
    file is complete. Raises OutputError.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise OutputError(f"{path}: the name must end in {', '.join(FORMATS)}, which says what is written")
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file")
    if path.exists() and os.path.samefile(path, store.path):
        raise OutputError(f"{path} is the database itself; name another file")
    with store.reading() as connection, _replacing(path) as staging:
        query = _query(connection, store, schema_name, all_attempts)
        described = connection.execute(f"DESCRIBE {query.sql}").fetchall()
        columns = [_expression(connection, query.sql, name, kind, suffix) for name, kind, *_ in described]
        order = ", ".join(f"rows.{quote_identifier(name)}" for name in query.order)
        try:
            copied = connection.execute(
                f"COPY (SELECT {', '.join(columns)} FROM ({query.sql}) AS rows ORDER BY {order}) "
                f"TO {quote_literal(str(staging))} ({FORMATS[suffix]}, USE_TMP_FILE false)"
            ).fetchall()
        except duckdb.IOException as error:
            cause = str(error).splitlines()[0]
            free = free_space_note(staging.parent)
            raise OutputError(f"{path} can't be written: {cause}{free}; make room, or name another file") from None
    return ExportReport(path, int(copied[0][0]), [name for name, *_ in described])


def _query(
    connection: duckdb.DuckDBPyConnection, store: AnswerStore, schema_name: str | None, all_attempts: bool
) -> _Query:
    if schema_name is None:
        table = "answers" if all_attempts else "latest_answers"
        names = [name for name, *_ in connection.execute(f"DESCRIBE {table}").fetchall() if name not in _OWN_COLUMNS]
        return _Query(f"SELECT {', '.join(names)} FROM {table}", ("doc_id", "question_id", "attempt"))
    schemas = {
        name: (view, schema)
        for name, view, schema in connection.execute(
            "SELECT schema_name, view_name, schema FROM docqa_schemas ORDER BY 1"
        ).fetchall()
    }
    if schema_name not in schemas:
        known = ", ".join(schemas) or "none"
        raise OutputError(f"{store.path} has no answers of a schema named {schema_name!r}; its schemas: {known}")
    view, schema = schemas[schema_name]
    if not all_attempts:
        return _Query(f"SELECT * FROM {quote_identifier(view)}", ("doc_id", "question_id"))
    typed = typed_columns(json.loads(schema), long_answers(connection, schema_name))
    taken = {name.lower() for name in typed}
    run_id, attempt = (f"docqa_{name}" if name in taken else name for name in ("run_id", "attempt"))
    columns = ["doc_id", "question_id", f"run_id AS {run_id}", f"attempt AS {attempt}"]
    columns += [f"{expression} AS {quote_identifier(name)}" for name, expression in typed.items()]
    sql = (
        f"SELECT {', '.join(columns)} FROM {_whole_answers(connection)} "
        f"WHERE status = 'ok' AND schema_name = {quote_literal(schema_name)}"
    )
    return _Query(sql, ("doc_id", "question_id", attempt))


def _whole_answers(connection: duckdb.DuckDBPyConnection) -> str:
    """The table of answers with all columns of today, NULL in those that an older store lacks."""
    present = {name for name, *_ in connection.execute("DESCRIBE answers").fetchall()}
    missing = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in TABLES["answers"].items() if name not in present]
    return f"(SELECT {', '.join(['*', *missing])} FROM answers)"


def _expression(connection: duckdb.DuckDBPyConnection, sql: str, name: str, kind: str, suffix: str) -> str:
    """A column as the format can hold it."""
    column = quote_identifier(name)
    if suffix == ".parquet":
        if kind != "HUGEINT":  # within a list or a struct, COPY would make it a double
            return f"to_json({column}) AS {column}" if "HUGEINT" in kind else column
        too_long = f"FROM ({sql}) WHERE {column} IS NOT NULL AND TRY_CAST({column} AS {_LONGEST_DECIMAL}) IS NULL"
        held = not connection.execute(f"SELECT 1 {too_long} LIMIT 1").fetchall()
        return f"CAST({column} AS {_LONGEST_DECIMAL if held else 'VARCHAR'}) AS {column}"
    if kind == "TIMESTAMP":
        return f"strftime({column}, '%Y-%m-%dT%H:%M:%S.%fZ') AS {column}"
    if suffix == ".csv" and (kind.endswith("[]") or kind.startswith("STRUCT")):
        return f"CAST(to_json({column}) AS VARCHAR) AS {column}"
    return column


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name beside a file, to write to; it takes the file's place at the end, durably, or is removed on failure."""
    real = Path(os.path.realpath(path))
    staging = real.with_name(f".{real.name}.{os.getpid()}.partial")
    try:
        with open(staging, "wb"):
            pass
        yield staging
        with open(staging, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(staging, real)
    except OSError as error:
        raise OutputError(f"{path} can't be written ({error.strerror}); correct the path, or make room") from None
    finally:
        with suppress(OSError):
            staging.unlink(missing_ok=True)
