"""The schemas of a job: where each comes from, its validator, and its grammar, compiled once per distinct schema."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any

from grammars import AnswerGrammar, Compilation, GrammarCache, UnsupportedSchema, stock_schema, stock_schema_names
from jobs.errors import JobFileError
from jobs.job_file import resolve_path
from jobs.job_settings import Job
from jobs.validate import AnswerValidator, BadSchemaError, canonical_schema

UNNAMED = "inline"
"""Name of a schema that a row carries as text."""


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """A schema ready for use: `text` is its compact JSON, keys in their order; `compilation` says what it took."""

    name: str
    schema: dict[str, Any] | bool
    text: str
    validator: AnswerValidator
    grammar: AnswerGrammar
    compilation: Compilation


class RowSchemaError(ValueError):
    """The row's own schema can't be used; the message says why."""


def start_compiling(job: Job, grammars: GrammarCache) -> None:
    """Begin to compile the job's own schemas, in another process. What is wrong with them `AnswerSchemas` will say."""
    for place in [*job.answer.schemas.values(), *([job.answer.schema] if job.answer.schema else [])]:
        path = resolve_path(job, place)
        with contextlib.suppress(OSError, ValueError, KeyError):
            schema = json.loads(path.read_text(encoding="utf-8-sig")) if path.is_file() else stock_schema(place)
            grammars.start(schema, backend=job.answer.backend, lenient=job.answer.lenient)


class AnswerSchemas:
    """Finds the schema of each row. The job's own schemas are read and compiled at once: JobFileError if one is bad."""

    def __init__(self, job: Job, grammars: GrammarCache) -> None:
        self._grammars = grammars
        self._settings = job.answer
        self._by_text: dict[tuple[str, str], AnswerSchema] = {}
        self._named = {
            name: self._from_job(job, f"answer.schemas.{name}", name, place)
            for name, place in job.answer.schemas.items()
        }
        self._default: AnswerSchema | None = None
        if job.answer.schema is not None:
            name = job.answer.schema
            is_file = name.endswith(".json") or "/" in name
            self._default = self._from_job(
                job, "answer.schema", resolve_path(job, name).stem if is_file else name, name
            )

    def of_row(self, schema: str | None) -> AnswerSchema:
        """The schema for what a row's `schema` column says. Raises RowSchemaError, or JobFileError if there is none."""
        if schema is None or not schema.strip():
            if self._default is None:
                raise JobFileError(
                    "answer.schema is missing, and a row has no schema of its own; set answer.schema to a JSON Schema "
                    f"file or to one of {', '.join(stock_schema_names())}"
                )
            return self._default
        if schema in self._named:
            return self._named[schema]
        if schema.lstrip()[:1] != "{" and schema.strip() not in ("true", "false"):
            known = ", ".join([*self._named, *stock_schema_names()])
            if schema not in stock_schema_names():
                raise RowSchemaError(f"schema {schema!r} is neither a JSON Schema nor one of {known}")
            return self._compiled(schema, stock_schema(schema))
        try:
            return self._compiled(UNNAMED, json.loads(schema))
        except ValueError as error:
            raise RowSchemaError(f"the row's schema can't be used: {error}") from None

    def used(self) -> dict[str, dict[str, Any] | bool]:
        """Schemas with a name, for the typed views."""
        return {schema.name: schema.schema for schema in self._by_text.values() if schema.name != UNNAMED}

    def compiled(self) -> list[dict[str, Any]]:
        """For each distinct schema so far, ready for JSON: its name, its backend, and what compiling it took.

        `seconds` are of a process in the background; with `from_disk` true, the grammar was only read.
        """
        distinct: dict[str, AnswerSchema] = {}
        for schema in self._by_text.values():
            distinct.setdefault(schema.text, schema)
        return [
            {
                "schema": schema.name,
                "backend": schema.grammar.backend,
                "seconds": round(schema.compilation.seconds, 3),
                "from_disk": schema.compilation.from_disk,
            }
            for schema in distinct.values()
        ]

    def _from_job(self, job: Job, setting: str, name: str, place: str) -> AnswerSchema:
        path = resolve_path(job, place)
        if path.is_file():
            try:
                schema = json.loads(path.read_text(encoding="utf-8-sig"))
            except (OSError, ValueError) as error:
                raise JobFileError(f"{setting}: {path} can't be read as JSON ({error}); mend the file") from None
        elif place in stock_schema_names():
            schema = stock_schema(place)
        else:
            raise JobFileError(
                f"{setting}: {path} does not exist; give a JSON Schema file or one of {', '.join(stock_schema_names())}"
            )
        try:
            return self._compiled(name, schema)
        except UnsupportedSchema as error:
            hint = " answer.lenient = true (--lenient) runs with it and checks that after;" if error.keyword else ""
            raise JobFileError(
                f"{setting}: {place} can't be used: {error}{hint} `docqa schema {place}` says more"
            ) from None
        except ValueError as error:
            raise JobFileError(f"{setting}: {place} can't be used: {error}") from None

    def _compiled(self, name: str, schema: dict[str, Any] | bool) -> AnswerSchema:
        """Raises ValueError (UnsupportedSchema, InvalidSchema, BadSchemaError) with one sentence."""
        if not isinstance(schema, dict | bool):
            raise BadSchemaError("a JSON Schema is an object, true or false")
        text = canonical_schema(schema)
        key = (name, text)
        if key not in self._by_text:
            validator = AnswerValidator(schema)
            settings = self._settings
            grammar = self._grammars.get(schema, backend=settings.backend, lenient=settings.lenient)
            compilation = self._grammars.compilation(schema, backend=settings.backend, lenient=settings.lenient)
            assert compilation is not None
            self._by_text[key] = AnswerSchema(name, schema, text, validator, grammar, compilation)
        return self._by_text[key]
