"""`docqa export`: the answers as a file for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from docqa.options import database_argument, json_option, quiet_option
from jobs.export import export
from jobs.store import AnswerStore


@click.command("export")
@database_argument
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path),
    envvar="DOCQA_TO",
    metavar="FILE",
    help="A .parquet, .jsonl or .csv file; it is replaced when the new one is complete.",
)
@click.option(
    "--schema",
    "schema_name",
    envvar="DOCQA_SCHEMA",
    metavar="NAME",
    help="Only the valid answers of this schema, a typed column for each property.",
)
@click.option("--all-attempts", is_flag=True, envvar="DOCQA_ALL_ATTEMPTS", help="Every attempt, not only the latest.")
@quiet_option
@json_option
def command(database: Path, to: Path, schema_name: str | None, all_attempts: bool, quiet: bool, as_json: bool) -> None:
    """Write the answers to a Parquet, JSON Lines or CSV file."""
    report = export(AnswerStore(database, read_only=True), to, schema_name=schema_name, all_attempts=all_attempts)
    if as_json:
        click.echo(json.dumps({"path": str(report.path), "rows": report.rows, "columns": report.columns}))
    if not quiet:
        click.echo(f"docqa: {report.rows:,} rows were written to {report.path}", err=True)
