"""The quotes of an answer: which of its strings the schema marks with `"x-docqa": "quote"`, and where they stand."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.quotes import QuoteFinder, QuotePlace
from jobs.schema_types import Schema, answer_columns, json_pointer, quote_literal, resolve_reference
from jobs.source import Document

MARK = "x-docqa"
QUOTE = "quote"


@dataclass(frozen=True, slots=True)
class LocatedQuote:
    """A quote of an answer: the JSON pointer (RFC 6901) to it, its text, and its place in the document."""

    pointer: str
    text: str
    place: QuotePlace


def locate_quotes(schema: Schema, answer: Any, finder: QuoteFinder) -> list[LocatedQuote]:
    """Every marked string of an answer, in the answer's order. `answer` is valid by `schema`."""
    quotes = dict(_marked_strings(schema, answer, schema, "", set()))
    return [LocatedQuote(pointer, text, finder.find(text)) for pointer, text in quotes.items()]


class QuoteLocator:
    """Locates the quotes of a run's answers, and keeps the finders of the last documents, whose rows come together."""

    KEPT_DOCUMENTS = 8

    def __init__(self, documents: Mapping[str, Document]) -> None:
        """`documents` by their hashes."""
        self._documents = documents
        self._finders: OrderedDict[str, QuoteFinder] = OrderedDict()

    def places(self, schema: Schema, answer: Any, document_hash: str) -> str | None:
        """The places of a valid answer's quotes as a JSON object by JSON pointer; None if the schema marks no quote.

        A place is `{"start": 120, "end": 180, "found": true, "exact": true}`, in code points of the document.
        """
        if not has_quotes(schema):
            return None
        finder = self._finders.pop(document_hash, None) or QuoteFinder(self._documents[document_hash].text)
        self._finders[document_hash] = finder
        if len(self._finders) > self.KEPT_DOCUMENTS:
            self._finders.popitem(last=False)
        places = {quote.pointer: quote.place for quote in locate_quotes(schema, answer, finder)}
        return json.dumps(
            {
                pointer: {"start": place.start, "end": place.end, "found": place.found, "exact": place.exact}
                for pointer, place in places.items()
            },
            ensure_ascii=False,
        )


def quote_properties(schema: Schema) -> list[str]:
    """The top-level properties that are quotes wherever they are a text: those that a view can have columns for."""
    return list(_quote_column_names(schema))


def quote_columns(schema: Schema) -> list[tuple[str, str]]:
    """For each of `quote_properties` its `_start`, `_end` and `_found`: the wanted name, and SQL over `answers`."""
    return [
        (f"{name}_{member}", _member_expression(property_name, member, duckdb_type))
        for property_name, name in _quote_column_names(schema).items()
        for member, duckdb_type in (("start", "BIGINT"), ("end", "BIGINT"), ("found", "BOOLEAN"))
    ]


def _quote_column_names(schema: Schema) -> dict[str, str]:
    """The columns of the properties that are quotes, by the properties."""
    if not has_quotes(schema):
        return {}
    probe = "x"
    return {
        column.property_name: column.name
        for column in answer_columns(schema)
        if column.property_name is not None
        and dict(_marked_strings(schema, {column.property_name: probe}, schema, "", set()))
    }


def _member_expression(property_name: str, member: str, duckdb_type: str) -> str:
    # The key is itself a pointer, so it is escaped once more.
    pointer = json_pointer(json_pointer(property_name)) + f"/{member}"
    return f"TRY_CAST(json_extract_string(quotes, {quote_literal(pointer)}) AS {duckdb_type})"


def has_quotes(schema: Schema) -> bool:
    """Whether a schema marks any string as a quote."""
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if part.get(MARK) == QUOTE:
                return True
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return False


def _marked_strings(
    schema: Schema, value: Any, root: Schema, pointer: str, visited: set[tuple[int, str]]
) -> Iterator[tuple[str, str]]:
    """Pointer and text of each string that a subschema which applies to it marks; with unions, any of them.

    `visited` has what was looked at, so that a reference to itself ends.
    """
    if not isinstance(schema, dict) or (id(schema), pointer) in visited:
        return
    visited.add((id(schema), pointer))
    if isinstance(value, str) and schema.get(MARK) == QUOTE:
        yield pointer, value
    for part in _same_place(schema, root):
        yield from _marked_strings(part, value, root, pointer, visited)
    if isinstance(value, dict):
        described = schema.get("properties") or {}
        for name, member in value.items():
            inner = described.get(name, schema.get("additionalProperties"))
            escaped = name.replace("~", "~0").replace("/", "~1")
            if isinstance(inner, dict):
                yield from _marked_strings(inner, member, root, f"{pointer}/{escaped}", visited)
    elif isinstance(value, list):
        first = schema.get("prefixItems") or []
        for index, item in enumerate(value):
            inner = first[index] if index < len(first) else schema.get("items")
            if isinstance(inner, dict):
                yield from _marked_strings(inner, item, root, f"{pointer}/{index}", visited)


def _same_place(schema: dict[str, Any], root: Schema) -> Iterator[Schema]:
    """The subschemas that apply to the same value."""
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from schema.get(keyword) or []
    if isinstance(schema.get("$ref"), str):
        yield resolve_reference(schema["$ref"], root)
