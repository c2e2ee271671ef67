"""The schemas inside a schema, and JSON pointers to them."""

from collections.abc import Callable, Iterator
from typing import Any

from .schema_references import Located

SINGLE = (
    "items",
    "additionalProperties",
    "propertyNames",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
)
LISTED = ("prefixItems", "allOf", "anyOf", "oneOf")
NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions", "dependencies")
"""Keywords whose values are a schema, a list of schemas, and an object of schemas."""


def children(located: Located) -> Iterator[tuple[str, Located]]:
    """The schemas directly inside, each with the keyword that holds it."""
    schema = located.schema
    if not isinstance(schema, dict):
        return
    for keyword in schema:
        value = schema[keyword]
        if keyword in SINGLE and isinstance(value, dict | bool):
            yield keyword, located.child(keyword)
        elif keyword in LISTED and isinstance(value, list):
            yield from ((keyword, located.child(keyword, index)) for index in range(len(value)))
        elif keyword in NAMED and isinstance(value, dict):
            for name in value:
                if isinstance(value[name], dict | bool):
                    yield keyword, located.child(keyword, name)


def all_schemas(located: Located) -> Iterator[Located]:
    """The schema and all schemas inside, in the order in which they stand there."""
    yield located
    for _, child in children(located):
        yield from all_schemas(child)


def rewritten(schema: Any, change: Callable[[dict[str, Any], str], dict[str, Any]], path: str = "") -> Any:
    """A copy in which every schema that is an object went through `change`, inner ones first; it also hears the path.

    What is no schema (enum values, defaults, examples) stays as it is.
    """
    if not isinstance(schema, dict):
        return schema
    copy = dict(schema)
    for keyword, value in schema.items():
        below = f"{path}/{_escaped(keyword)}"
        if keyword in SINGLE:
            copy[keyword] = rewritten(value, change, below)
        elif keyword in LISTED and isinstance(value, list):
            copy[keyword] = [rewritten(item, change, f"{below}/{index}") for index, item in enumerate(value)]
        elif keyword in NAMED and isinstance(value, dict):
            copy[keyword] = {name: rewritten(item, change, f"{below}/{_escaped(name)}") for name, item in value.items()}
    return change(copy, path)


def pointer_keys(path: str) -> list[str]:
    """The keys of a JSON pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
