"""The vocabulary of JSON Schema, sorted by what the compiler has to do about it."""

from typing import Any

NULL, BOOLEAN, INTEGER, FRACTION, STRING, ARRAY, OBJECT = (
    "null",
    "boolean",
    "integer",
    "fraction",
    "string",
    "array",
    "object",
)
ALL_KINDS = frozenset({NULL, BOOLEAN, INTEGER, FRACTION, STRING, ARRAY, OBJECT})
"""The kinds of values. A JSON `number` is an INTEGER or a FRACTION."""

NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
STRING_KEYWORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
ARRAY_KEYWORDS = frozenset(
    {"prefixItems", "items", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"}
    | {"unevaluatedItems"}
)
OBJECT_KEYWORDS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"}
    | {"propertyNames", "unevaluatedProperties"}
)
COMBINING_KEYWORDS = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"}
    | {"dependencies"}
)
"""Keywords that put other schemas on the same value; they are multiplied out before anything else."""
GENERAL_KEYWORDS = frozenset({"type", "enum", "const"})
REFUSED_KEYWORDS = frozenset({"$dynamicRef", "$recursiveRef"})

VALIDATING_KEYWORDS = (
    NUMBER_KEYWORDS
    | STRING_KEYWORDS
    | ARRAY_KEYWORDS
    | OBJECT_KEYWORDS
    | COMBINING_KEYWORDS
    | GENERAL_KEYWORDS
    | REFUSED_KEYWORDS
)
"""Everything else is an annotation and ignored."""

_KINDS_OF_TYPE = {
    "null": {NULL},
    "boolean": {BOOLEAN},
    "integer": {INTEGER},
    "number": {INTEGER, FRACTION},
    "string": {STRING},
    "array": {ARRAY},
    "object": {OBJECT},
}


def kinds_of_type(name: str | list[str]) -> frozenset[str]:
    """The kinds of values that a `type` keyword lets through."""
    names = [name] if isinstance(name, str) else name
    return frozenset(kind for each in names for kind in _KINDS_OF_TYPE[each])


def kinds_of_keyword(keyword: str) -> frozenset[str]:
    """The kinds of values a keyword says something about; empty if it isn't about certain kinds."""
    for keywords, kinds in (
        (NUMBER_KEYWORDS, {INTEGER, FRACTION}),
        (STRING_KEYWORDS, {STRING}),
        (ARRAY_KEYWORDS, {ARRAY}),
        (OBJECT_KEYWORDS, {OBJECT}),
    ):
        if keyword in keywords:
            return frozenset(kinds)
    return frozenset()


def validating(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without its annotations."""
    return {keyword: value for keyword, value in schema.items() if keyword in VALIDATING_KEYWORDS}
