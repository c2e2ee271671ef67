"""`docqa eval`: answers against gold, and two runs or databases side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from docqa.eval_view import print_evaluation
from docqa.options import database_argument, json_option
from docqa.plain_console import plain_console
from jobs.errors import OutputError
from jobs.evaluate import AnswerSet, evaluate, own_gold, read_answers
from jobs.evaluate_compare import comparison
from jobs.evaluate_gold import read_gold
from jobs.evaluate_scores import Tolerance
from jobs.evaluate_summary import summary
from jobs.store import AnswerStore


@click.command("eval")
@database_argument
@click.option(
    "--gold",
    type=click.Path(path_type=Path),
    envvar="DOCQA_GOLD",
    metavar="FILE",
    help="Parquet with doc_id, question_id and gold; without it, the gold that the input had.",
)
@click.option("--run", "run_id", envvar="DOCQA_RUN", metavar="ID", help="The answers of one run; else the latest.")
@click.option("--against", envvar="DOCQA_AGAINST", metavar="RUN|DB", help="Compare with another run or database.")
@click.option(
    "--property", "name", envvar="DOCQA_PROPERTY", metavar="NAME", help="Which property a gold of one value is of."
)
@click.option(
    "--tolerance",
    default="0",
    envvar="DOCQA_TOLERANCE",
    metavar="NUMBER",
    help="How far a number may be off: 0.5, or 1% of gold.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    envvar="DOCQA_COLUMN",
    metavar="NAME=COLUMN",
    help="Read NAME from another column of the gold file, as in gold=label.",
)
@json_option
def command(
    database: Path,
    gold: Path | None,
    run_id: str | None,
    against: str | None,
    name: str | None,
    tolerance: str,
    columns: tuple[str, ...],
    as_json: bool,
) -> None:
    """Hold answers against gold: accuracy, exact match, F1, and where they fail.

    Gold is an object with the answer's properties, or the value of one; a list of texts holds several right ones. A
    row without a valid answer counts as wrong.
    """
    found = evaluation_of(database, gold, run_id, against, name, tolerance, columns)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
    else:
        print_evaluation(found, plain_console())


def evaluation_of(
    database: Path,
    gold_file: Path | None = None,
    run_id: str | None = None,
    against: str | None = None,
    name: str | None = None,
    tolerance: str = "0",
    columns: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What `docqa eval` shows, ready for JSON. Raises JobError and click.UsageError."""
    try:
        allowed = Tolerance.from_text(tolerance)
    except ValueError:
        raise click.UsageError(f"--tolerance {tolerance} is neither a number, as 0.5, nor a share, as 1%.") from None
    for column in columns:
        if not all(column.partition("=")):
            raise click.UsageError(f"--column {column}: write it as NAME=COLUMN, as in gold=label.")
    store = AnswerStore(database, read_only=True)
    answers = read_answers(store, run_id)
    if gold_file is None:
        gold = own_gold(answers)
    else:
        gold = read_gold(gold_file, dict(column.split("=", 1) for column in columns))
    this = evaluate(answers, gold, property_name=name, tolerance=allowed)
    if against is None:
        return summary(this)
    other = evaluate(_read_against(store, against), gold, property_name=name, tolerance=allowed)
    return summary(this) | {"comparison": comparison(this, other)}


def _read_against(store: AnswerStore, against: str) -> AnswerSet:
    """A run of the same database, or another database."""
    if store.run(against) is not None:
        return read_answers(store, against)
    if not Path(against).exists():
        known = ", ".join(run.run_id for run in store.runs()[:10])
        raise OutputError(
            f"--against {against}: {store.path} has no such run (it has {known}), and there is no such file"
        )
    return read_answers(AnswerStore(against, read_only=True))
