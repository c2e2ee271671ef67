"""Valid instances as a grammar would write them: keys in schema order, only keys that the schema declares."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from grammars.errors import UnsupportedSchema
from grammars.schema_facts import canonical_value
from grammars.schema_references import Located, SchemaDocument

_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_VALUE_SINGLES = ("if", "then", "else")


class UndeclaredKey(ValueError):
    """The instance has a key that the schema doesn't declare where it declares others."""


def in_schema_order(value: Any, schema: Any) -> Any:
    """The value with its keys in the order of the schema. Raises UndeclaredKey."""
    return _ordered(value, [Located(schema, "")], SchemaDocument(schema))


def _ordered(value: Any, places: list[Located], document: SchemaDocument) -> Any:
    parts = list(_same_value(value, places, document))
    for part in parts:
        for listed in [*part.schema.get("enum", ()), *([part.schema["const"]] if "const" in part.schema else [])]:
            if canonical_value(listed) == canonical_value(value):
                return listed
    if isinstance(value, list):
        return [_ordered(item, list(_items(parts, index)), document) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    names: dict[str, None] = {}
    for part in parts:
        names.update(dict.fromkeys(part.schema.get("properties", {})))
    for part in parts:
        names.update(dict.fromkeys(part.schema.get("required", ())))
    undeclared = [name for name in value if name not in names]
    if names and undeclared:
        raise UndeclaredKey(undeclared[0])
    keys = [name for name in names if name in value] + undeclared
    return {name: _ordered(value[name], list(_property(parts, name)), document) for name in keys}


def _same_value(
    value: Any, places: list[Located], document: SchemaDocument, seen: frozenset[str] = frozenset()
) -> Iterator[Located]:
    """All schemas that speak of the value; of alternatives, those that it satisfies."""
    for place in places:
        if not isinstance(place.schema, dict) or place.path in seen:
            continue
        inside = seen | {place.path}
        yield place
        if "$ref" in place.schema:
            with suppress(UnsupportedSchema):
                yield from _same_value(value, [document.resolve(place.schema["$ref"], place)], document, inside)
        for keyword in _SAME_VALUE_LISTS:
            options = [place.child(keyword, index) for index in range(len(place.schema.get(keyword, ())))]
            if keyword != "allOf":
                options = [option for option in options if document.accepts(value, option)]
            yield from _same_value(value, options, document, inside)
        singles = [place.child(keyword) for keyword in _SAME_VALUE_SINGLES if keyword in place.schema]
        yield from _same_value(value, singles, document, inside)
        named = [place.child("dependentSchemas", name) for name in place.schema.get("dependentSchemas", ())]
        yield from _same_value(value, named, document, inside)


def _items(parts: list[Located], index: int) -> Iterator[Located]:
    for part in parts:
        if index < len(part.schema.get("prefixItems", ())):
            yield part.child("prefixItems", index)
        elif "items" in part.schema:
            yield part.child("items")


def _property(parts: list[Located], name: str) -> Iterator[Located]:
    for part in parts:
        if name in part.schema.get("properties", {}):
            yield part.child("properties", name)
        elif isinstance(part.schema.get("additionalProperties"), dict):
            yield part.child("additionalProperties")
        for source in part.schema.get("patternProperties", {}):
            yield part.child("patternProperties", source)
