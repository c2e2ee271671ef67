"""`docqa schema`: what of a JSON Schema is enforced while decoding, what is checked after, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.model_config import ModelConfig
from engine.model_source import cache_folder, resolve_model
from engine.tokenizer import load_tokenizer
from grammars import GrammarCache, TokenVocabulary, stock_schema, stock_schema_names
from grammars.lint import ANNOTATION, CHECKED_AFTER, ENFORCED, REFUSED, lint_schema
from jobs.errors import JobFileError

_STYLES = {ENFORCED: "green", CHECKED_AFTER: "yellow", REFUSED: "red", ANNOTATION: "dim"}

_SHORT = {ENFORCED: "enforced", ANNOTATION: "annotation"}


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
        "compile_seconds": round(grammars.compile_seconds, 3),
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
            style = _STYLES[keyword["status"]]
            status = f"[{style}]{_SHORT.get(keyword['status'], keyword['status'])}[/{style}]"
            table.add_row(_plain(keyword["path"] or "/"), _plain(keyword["keyword"]), status, _plain(keyword["note"]))
        console.print(table)
        console.print("enforced: while decoding. annotation: said, but checked by nobody.", style="dim")
    for note in summary["notes"]:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if summary["accepted"]:
        console.print(
            f"Accepted: {summary['backend']} enforces it with the tokens of {summary['model']}; "
            f"the shortest answer found has {summary['shortest_tokens']} tokens.",
            markup=False,
            soft_wrap=True,
        )
        return
    console.print(f"Refused: {summary['reason']}", markup=False, soft_wrap=True)
    if summary["lenient_helps"]:
        console.print("--lenient runs with it, and checks what is refused after each answer.", markup=False)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


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
