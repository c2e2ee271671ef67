"""Places in a schema, and what a `$ref` there points to."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from referencing.exceptions import Unresolvable

from .errors import UnsupportedSchema


@dataclass(frozen=True, slots=True)
class Located:
    """A schema and the JSON pointer to it. `evaluates` is false for schemas made up by negation."""

    schema: Any
    path: str
    evaluates: bool = True

    def child(self, *keys: str | int) -> "Located":
        """The schema below, by the keys and indices that lead to it."""
        schema, path = self.schema, self.path
        for key in keys:
            schema = schema[key]
            path += "/" + str(key).replace("~", "~0").replace("/", "~1")
        return Located(schema, path, self.evaluates)


Conjunction = tuple[Located, ...]
"""Schemas that must all hold; none at all: any value."""


class SchemaDocument:
    """A whole schema: resolves its references and asks jsonschema about single values."""

    def __init__(self, root: Any) -> None:
        self.root = Located(root, "")
        self._validator = Draft202012Validator(root)
        self._embedded = _embedded_document(root, "")

    def resolve(self, reference: str, source: Located) -> Located:
        """The schema a `$ref` in `source` points to. Only pointers into this document are followed."""
        if self._embedded is not None:
            reason = f"{self._embedded} has an $id of its own, which changes what references mean"
            raise UnsupportedSchema(source.path, "$ref", reason)
        identifier = self.root.schema.get("$id") if isinstance(self.root.schema, dict) else None
        address, _, fragment = reference.partition("#")
        if address and (not isinstance(identifier, str) or address != identifier.rstrip("#")):
            raise UnsupportedSchema(source.path, "$ref", f"{reference!r} points outside this schema")
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            raise UnsupportedSchema(source.path, "$ref", f"{reference!r} is no JSON pointer")
        found = self.root
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            try:
                found = found.child(int(key) if isinstance(found.schema, list) else key)
            except (KeyError, IndexError, ValueError, TypeError):
                raise UnsupportedSchema(source.path, "$ref", f"{reference!r} points to nothing") from None
        if not isinstance(found.schema, dict | bool):
            raise UnsupportedSchema(source.path, "$ref", f"{reference!r} doesn't point to a schema")
        return found

    def accepts(self, value: Any, located: Located) -> bool:
        """True if jsonschema finds `value` valid under the schema (formats not asserted)."""
        try:
            return self._validator.evolve(schema=located.schema).is_valid(value)
        except (re.error, Unresolvable, RecursionError, OverflowError) as problem:
            raise UnsupportedSchema(located.path, "", f"jsonschema can't evaluate it ({problem})") from problem


def _embedded_document(part: Any, path: str) -> str | None:
    """The pointer to a part with an `$id` of its own and references inside, or None."""
    if isinstance(part, dict) and path and isinstance(part.get("$id"), str) and _holds_reference(part):
        return path
    entries = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in entries:
        found = _embedded_document(value, f"{path}/{key}")
        if found is not None:
            return found
    return None


def _holds_reference(part: Any) -> bool:
    if isinstance(part, dict):
        return "$ref" in part or any(_holds_reference(value) for value in part.values())
    return isinstance(part, list) and any(_holds_reference(value) for value in part)
