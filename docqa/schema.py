"""`docqa schema`: what of a JSON Schema is enforced while decoding, what is checked after, and what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from docqa.options import json_option
from docqa.plain_console import plain_console
from engine.model_config import ModelConfig
from engine.model_source import cache_folder, resolve_model
from engine.tokenizer import load_tokenizer
from grammars import BACKENDS, GrammarCache, TokenVocabulary, stock_schema, stock_schema_names
from grammars.lint import ANNOTATION, CHECKED_AFTER, ENFORCED, REFUSED, lint_schema
from jobs.errors import JobFileError
from jobs.job_settings import DEFAULT_MODEL

_STYLES = {ENFORCED: "green", CHECKED_AFTER: "yellow", REFUSED: "red", ANNOTATION: "dim"}

MOST_NOTES = 20
"""More are only counted for people; `--json` has them all."""

_SHORT = {ENFORCED: "enforced", ANNOTATION: "annotation"}


@click.command("schema")
@click.argument("schema", metavar="FILE")
@click.option("--model", default=DEFAULT_MODEL, envvar="DOCQA_MODEL", metavar="M", help="Whose tokens to use.")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    envvar="DOCQA_BACKEND",
    help="What enforces the schema; auto chooses.",
)
@click.option(
    "--lenient",
    is_flag=True,
    envvar="DOCQA_LENIENT",
    help="Accept a schema that can't be enforced whole; the rest is checked after.",
)
@json_option
def command(schema: str, model: str, backend: str, lenient: bool, as_json: bool) -> None:
    """Say what of a JSON Schema is enforced while decoding, what is checked after, and what is refused.

    FILE is a JSON Schema, or the name of one that comes with docqa. Exit status 2: it is refused.
    """
    summary = schema_summary(schema, model, backend=backend, lenient=lenient)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
    else:
        print_schema(summary, plain_console())
    sys.exit(0 if summary["accepted"] else 2)


def schema_summary(place: str, model: str, *, backend: str, lenient: bool) -> dict[str, Any]:
    """Everything `docqa schema` shows, ready for JSON. Raises JobFileError for an unreadable file, and ModelError."""
    schema = _read(place)
    source = resolve_model(model)
    size = ModelConfig.from_folder(source.folder).vocabulary_size
    vocabulary = TokenVocabulary.from_tokenizer(load_tokenizer(source.folder), size)
    grammars = GrammarCache(vocabulary, cache_folder() / "grammars")
    try:
        report = lint_schema(schema, grammars, backend=backend, lenient=lenient)
    finally:
        grammars.close()
    grammar = report.grammar
    compilation = report.compilation
    return {
        "schema": place,
        "model": source.name,
        "accepted": grammar is not None,
        "lenient": lenient,
        "lenient_helps": report.lenient_helps,
        "reason": report.reason,
        "backend": grammar.backend if grammar is not None else None,
        "shortest_answer": grammar.shortest_text if grammar is not None else None,
        "shortest_tokens": grammar.shortest_tokens if grammar is not None else None,
        "compile_seconds": None if compilation is None else round(compilation.seconds, 3),
        "from_disk": compilation is not None and compilation.from_disk,
        "notes": report.notes,
        "keywords": [asdict(keyword) for keyword in report.keywords],
    }


def print_schema(summary: dict[str, Any], console: Console) -> None:
    """The same for people."""
    if summary["keywords"]:
        table = Table(box=None, pad_edge=False)
        for heading in ("path", "keyword", "status", "note"):
            table.add_column(heading, overflow="fold", no_wrap=heading in ("keyword", "status"))
        for keyword in summary["keywords"]:
            status = Text(_SHORT.get(keyword["status"], keyword["status"]), style=_STYLES[keyword["status"]])
            table.add_row(keyword["path"] or "/", keyword["keyword"], status, keyword["note"])
        console.print(table)
        console.print("enforced: while decoding. annotation: said, but checked by nobody.", style="dim")
    for note in summary["notes"][:MOST_NOTES]:
        console.print(f"note: {note}", soft_wrap=True)
    if len(summary["notes"]) > MOST_NOTES:
        console.print(f"note: {len(summary['notes']) - MOST_NOTES} more; --json lists them all")
    if summary["accepted"]:
        verb = "Read from the cache" if summary["from_disk"] else "Compiled"
        console.print(
            f"Accepted: {summary['backend']} enforces it with the tokens of {summary['model']}; "
            f"the shortest answer found has {summary['shortest_tokens']} tokens. "
            f"{verb} in {summary['compile_seconds']:.2f} s.",
            soft_wrap=True,
        )
        return
    console.print(f"Refused: {summary['reason']}", soft_wrap=True)
    if summary["lenient_helps"]:
        console.print("--lenient runs with it, and checks what is refused after each answer.")


def _read(place: str) -> Any:
    path = Path(place)
    if not path.is_file() and place in stock_schema_names():
        return stock_schema(place)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        known = ", ".join(stock_schema_names())
        raise JobFileError(
            f"{place} can't be read ({error.strerror}); give a JSON Schema file or one of {known}"
        ) from None
    except ValueError as error:
        raise JobFileError(f"{place} is not JSON ({error}); mend the file") from None
