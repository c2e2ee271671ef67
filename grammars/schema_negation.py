"""Schemas without `not`: what a value must be so that a simple schema does not hold."""

import re
from typing import Any

from .keywords import validating

_REPEATED_CLASS = re.compile(r"\^\[(?!\^)((?:[^\]\\]|\\.)+)\][+*]\$")
"""A pattern that says of every character of a string that it is one of a class."""

_ALL_TYPES = ["null", "boolean", "number", "string", "array", "object"]


def negate(schema: Any) -> Any | None:
    """A schema for (some of the) values that `schema` rejects; None if no such schema can be written.

    Values may be missing from it, never be wrongly in it.
    """
    if isinstance(schema, bool):
        return not schema
    keywords = validating(schema)
    # `then` and `else` mean nothing without `if`.
    if "if" not in keywords:
        keywords = {keyword: value for keyword, value in keywords.items() if keyword not in ("then", "else")}
    if not keywords:
        return False
    options = []
    for keyword, value in keywords.items():
        options += _negate_keyword(keyword, value)
    if not options:
        return None
    return options[0] if len(options) == 1 else {"anyOf": options}


def _negate_values(keyword: str, value: Any) -> list[Any]:
    """Of booleans and null, the other ones and all other types; other values are only left to be tested against."""
    listed = value if keyword == "enum" else [value]
    if not all(item is None or isinstance(item, bool) for item in listed):
        return [{"not": {keyword: value}}]
    others = [item for item in (True, False, None) if item not in listed]
    options: list[Any] = [{"type": [name for name in _ALL_TYPES if name not in ("null", "boolean")]}]
    return [*options, {"enum": others}] if others else options


def _negate_keyword(keyword: str, value: Any) -> list[Any]:
    if keyword == "type":
        names = {value} if isinstance(value, str) else set(value)
        if "integer" in names:
            names.add("number")
        others = [name for name in _ALL_TYPES if name not in names]
        return [{"type": others}] if others else []
    if keyword == "required":
        return [{"type": "object", "properties": {name: False}} for name in value]
    if keyword == "properties":
        return [
            {"type": "object", "required": [name], "properties": {name: {"not": subschema}}}
            for name, subschema in value.items()
        ]
    if keyword == "anyOf":
        return [{"allOf": [{"not": option} for option in value]}]
    if keyword == "allOf":
        return [{"not": option} for option in value]
    if keyword == "not":
        return [value]
    if keyword in ("enum", "const"):
        return _negate_values(keyword, value)
    if keyword == "pattern":
        repeated = _REPEATED_CLASS.fullmatch(value)
        # A character outside of the class; no line break, before which Python's `$` matches, too.
        return [{"type": "string", "pattern": f"[^{repeated[1]}\\n]"}] if repeated else []
    single = {
        "minimum": lambda: {"type": "number", "exclusiveMaximum": value},
        "exclusiveMinimum": lambda: {"type": "number", "maximum": value},
        "maximum": lambda: {"type": "number", "exclusiveMinimum": value},
        "exclusiveMaximum": lambda: {"type": "number", "minimum": value},
        "minLength": lambda: {"type": "string", "maxLength": value - 1} if value else False,
        "maxLength": lambda: {"type": "string", "minLength": value + 1},
        "minItems": lambda: {"type": "array", "maxItems": value - 1} if value else False,
        "maxItems": lambda: {"type": "array", "minItems": value + 1},
    }
    return [single[keyword]()] if keyword in single else []
