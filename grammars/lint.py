"""What of a schema holds while decoding, what is checked after, and what is refused: keyword by keyword."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .compile import AUTO, AnswerGrammar
from .errors import InvalidSchema, UnsupportedSchema
from .grammar import JsonGrammar
from .grammar_cache import Compilation, GrammarCache
from .guidance_schema import KNOWN_FORMATS, closable
from .keywords import VALIDATING_KEYWORDS
from .schema_references import Located
from .schema_walk import all_schemas
from .string_formats import FORMAT_PATTERNS

ENFORCED, CHECKED_AFTER, REFUSED, ANNOTATION = (
    "enforced while decoding",
    "checked after",
    "refused",
    "annotation, not checked",
)

_SILENT = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "$vocabulary", "title", "description", "default"}
    | {"examples", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "id"}
)
"""Annotations that nobody takes for a demand; they are left out of the report."""


@dataclass(frozen=True, slots=True)
class KeywordReport:
    """One keyword of the schema at the JSON pointer `path`: its status, and what else there is to know."""

    path: str
    keyword: str
    status: str
    note: str = ""


@dataclass(frozen=True)
class SchemaReport:
    """What becomes of a schema. `grammar` is None if it is refused, and `reason` says why.

    `notes` say, each with a path, where the grammar allows less than the schema. `lenient_helps`: it is refused as it
    is, and would be accepted with `lenient`. `compilation`: what it took; None for what is no schema.
    """

    keywords: list[KeywordReport]
    notes: list[str]
    grammar: AnswerGrammar | None = None
    reason: str | None = None
    lenient_helps: bool = False
    compilation: Compilation | None = None


def lint_schema(schema: Any, grammars: GrammarCache, *, backend: str = AUTO, lenient: bool = False) -> SchemaReport:
    """Compile a schema and report on each of its keywords. Never raises for a bad schema."""
    reason = None
    grammar: AnswerGrammar | None = None
    left_out: dict[str, str] = {}
    try:
        grammar = grammars.get(schema, backend=backend)
    except InvalidSchema as problem:
        return SchemaReport([], [], reason=str(problem), compilation=_taken(schema, grammars, backend, False))
    except UnsupportedSchema as problem:
        reason = str(problem)
        left_out = {f"{problem.path}/{problem.keyword}" if problem.keyword else problem.path: problem.reason}
    lenient_helps = False
    if grammar is None:
        try:
            weaker = grammars.get(schema, backend=backend, lenient=True)
            left_out = dict(weaker.checked_after)
            lenient_helps = not lenient
            if lenient:
                grammar, reason = weaker, None
        except UnsupportedSchema:
            pass
    keywords = list(_keywords(schema, grammar, left_out, CHECKED_AFTER if lenient and grammar else REFUSED))
    taken = _taken(schema, grammars, backend, lenient and grammar is not None and bool(grammar.checked_after))
    return SchemaReport(keywords, list(grammar.notes) if grammar else [], grammar, reason, lenient_helps, taken)


def _taken(schema: Any, grammars: GrammarCache, backend: str, lenient: bool) -> Compilation | None:
    try:
        return grammars.compilation(schema, backend=backend, lenient=lenient)
    except (TypeError, ValueError, RecursionError):
        return None  # not JSON at all


def _keywords(
    schema: Any, grammar: AnswerGrammar | None, left_out: dict[str, str], status_of_left_out: str
) -> Iterator[KeywordReport]:
    closed = closable(schema)
    formats = FORMAT_PATTERNS.keys() if grammar is None or isinstance(grammar, JsonGrammar) else KNOWN_FORMATS
    for located in all_schemas(Located(schema, "")):
        part = located.schema
        if not isinstance(part, dict):
            continue
        for keyword in part:
            pointer = f"{located.path}/{keyword}"
            above = next((out for out in left_out if out and _is_inside(pointer, out)), None)
            if keyword in _SILENT or (keyword in ("then", "else") and "if" not in part):
                continue
            if keyword not in VALIDATING_KEYWORDS or (keyword == "format" and part[keyword] not in formats):
                yield KeywordReport(located.path, keyword, ANNOTATION, _annotation_note(keyword, part[keyword]))
            elif above is not None:
                note = left_out[above] if above == pointer else f"as {above}"
                yield KeywordReport(located.path, keyword, status_of_left_out, note)
            else:
                note = _note(located, keyword, closed, grammar)
                yield KeywordReport(located.path, keyword, ENFORCED, note)


def _is_inside(pointer: str, place: str) -> bool:
    return pointer == place or pointer.startswith(place + "/")


def _annotation_note(keyword: str, value: Any) -> str:
    if keyword == "format":
        return f"{value!r} is not a format that can be written to"
    if keyword == "x-docqa" and value == "quote":
        return "docqa locates this quote"
    if keyword == "nullable":
        return "OpenAPI's word; JSON Schema wants null among the types"
    near = difflib.get_close_matches(keyword, sorted(VALIDATING_KEYWORDS), n=1, cutoff=0.75)
    return f"no keyword of Draft 2020-12; is {near[0]} meant?" if near else "no keyword of Draft 2020-12"


def _note(located: Located, keyword: str, closed: frozenset[str], grammar: AnswerGrammar | None) -> str:
    part = located.schema
    if keyword == "properties" and part.get("additionalProperties") is not False:
        if grammar is None or isinstance(grammar, JsonGrammar) or located.path in closed:
            return "closed: an answer has only these keys"
        return "open: an answer may have other keys; one that repeats is found by the check after"
    is_map = "properties" not in part and part.get(keyword) is not False
    if keyword in ("additionalProperties", "patternProperties") and is_map:
        return "a key that repeats is found by the check after"
    if keyword == "dependencies":
        return "of older drafts; obeyed here, not by the check after"
    if keyword == "format":
        return "written so, although Draft 2020-12 asks nobody to check it"
    return ""
