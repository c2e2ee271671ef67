"""`docqa compact`: keeps the database small over many nights."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from docqa.options import Duration, database_argument, json_option, quiet_option, wait_option
from docqa.wording import bytes_text
from jobs.compact import compact


@click.command("compact")
@database_argument
@click.option(
    "--keep-attempts",
    type=click.IntRange(min=1),
    envvar="DOCQA_KEEP_ATTEMPTS",
    metavar="N",
    help="Of each question keep its newest N attempts.",
)
@click.option(
    "--older-than",
    type=Duration(),
    envvar="DOCQA_OLDER_THAN",
    metavar="DURATION",
    help="Remove superseded attempts that are older, as in 90d.",
)
@wait_option
@quiet_option
@json_option
def command(
    database: Path,
    keep_attempts: int | None,
    older_than: float | None,
    wait: float | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Remove old attempts and write the file anew without the space they took.

    What latest_answers shows is never removed. Without --keep-attempts and --older-than only unused space goes.
    """
    report = compact(
        database,
        keep_attempts=keep_attempts,
        older_than_days=older_than / 86400 if older_than is not None else None,
        command="docqa compact",
        wait_seconds=wait or 0.0,
    )
    if as_json:
        click.echo(json.dumps(asdict(report)))
    if not quiet:
        click.echo(
            f"docqa: {report.rows_removed:,} old attempts removed; "
            f"{bytes_text(report.bytes_before)} before, {bytes_text(report.bytes_after)} now",
            err=True,
        )
