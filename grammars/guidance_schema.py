"""A schema as llguidance should see it: formats it doesn't know left out, types given and objects closed where
that is sound.
"""

from collections.abc import Iterator
from typing import Any

from .errors import UnsupportedSchema
from .guidance_patterns import is_unsure, written_out
from .keywords import COMBINING_KEYWORDS, FRACTION, INTEGER, kinds_of_keyword
from .number_bounds import as_divisor
from .schema_references import Located
from .schema_walk import all_schemas, children, rewritten
from .string_patterns import UnsupportedPattern

KNOWN_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
"""Other formats are annotations in Draft 2020-12, but llguidance refuses a schema that has them."""

_OPENS = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties", "$ref"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "dependentRequired", "enum", "const"}
)
_VALUE_KEYWORDS = frozenset({"properties", "items", "prefixItems", "additionalProperties", "patternProperties"})
"""Behind these keywords, a schema is all that is said of a value, unless its own schema says otherwise."""


def for_guidance(schema: Any) -> Any:
    """The schema to give to llguidance. It allows no value that `schema` (formats aside) rejects."""
    closed, types = closable(schema), given_types(schema)

    def change(part: dict[str, Any], path: str) -> dict[str, Any]:
        if path in types:
            part = {"type": types[path], **part}
        if "format" in part and part["format"] not in KNOWN_FORMATS:
            part = {keyword: value for keyword, value in part.items() if keyword != "format"}
        if is_unsure(part.get("pattern", "")):
            part = part | {"pattern": written_out(part["pattern"])}
        return part | {"additionalProperties": False} if path in closed else part

    return rewritten(schema, change)


def refuse_unsure(schema: Any) -> None:
    """Raises UnsupportedSchema for what llguidance takes on but jsonschema may judge otherwise."""
    parts = [located for located in all_schemas(Located(schema, "")) if isinstance(located.schema, dict)]
    # Where an option excludes others, fewer strings in it would mean more elsewhere.
    excludes = any(located.schema.keys() & {"oneOf", "not", "if"} for located in parts)
    for located in parts:
        part = located.schema
        for keyword, patterns in (
            ("pattern", [part["pattern"]] if "pattern" in part else []),
            ("patternProperties", part.get("patternProperties", ())),
        ):
            for pattern in patterns:
                if is_unsure(pattern) and (excludes or keyword != "pattern"):
                    raise UnsupportedSchema(located.path, keyword, f"readers differ about the classes in {pattern!r}")
                _refuse_unreadable(pattern, located.path, keyword)
        if "multipleOf" in part and as_divisor(part["multipleOf"]) is None:
            raise UnsupportedSchema(located.path, "multipleOf", "only whole numbers can be told by their digits")
        if part.get("minProperties", 0) > max(1, len(set(part.get("required", ())))):
            raise UnsupportedSchema(located.path, "minProperties", "keys that aren't declared could repeat")


def _refuse_unreadable(pattern: str, path: str, keyword: str) -> None:
    if is_unsure(pattern):
        try:
            written_out(pattern)
        except UnsupportedPattern as problem:
            raise UnsupportedSchema(path, keyword, str(problem)) from None


def closable(schema: Any) -> frozenset[str]:
    """Paths of the object schemas that alone describe a value: closing them leaves out values, and adds none.

    A schema that an `allOf`, a `oneOf` or a `not` has a say in, or that a `$ref` there leads to, stays open.
    """
    return frozenset(
        located.path
        for located in _describing_alone(schema)
        if "properties" in located.schema
        and not _OPENS & located.schema.keys()
        and set(located.schema.get("required", ())) <= set(located.schema["properties"])
    )


def given_types(schema: Any) -> dict[str, list[str]]:
    """By path, the types to write where a schema that alone describes a value gives none: those its keywords speak of.

    As the index has it: `{"properties": …}` also holds for every string; whoever wrote it wants objects.
    """
    found = {}
    for located in _describing_alone(schema):
        spoken_of = {kind for keyword in located.schema for kind in kinds_of_keyword(keyword)}
        if spoken_of and not located.schema.keys() & ({"type", "enum", "const"} | COMBINING_KEYWORDS):
            types = spoken_of - {INTEGER, FRACTION} | ({"number"} if INTEGER in spoken_of else set())
            found[located.path] = sorted(types)
    return found


def _describing_alone(schema: Any) -> Iterator[Located]:
    """The schemas (objects, not booleans) that are all that is said of a value."""
    open_places = [Located(schema, "")]
    while open_places:
        located = open_places.pop()
        part = located.schema
        if not isinstance(part, dict) or "$ref" in part:
            continue
        yield located
        combined = any(keyword in part for keyword in ("allOf", "oneOf", "not", "if", "dependentSchemas"))
        if not combined and "anyOf" not in part and "patternProperties" not in part:
            open_places += [child for keyword, child in children(located) if keyword in _VALUE_KEYWORDS]
