"""A schema as llguidance should see it: formats it doesn't know left out, objects closed where that is sound."""

from typing import Any

from .errors import UnsupportedSchema
from .number_ranges import as_divisor
from .schema_references import Located
from .schema_walk import all_schemas, children, rewritten

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
    closed = closable(schema)

    def change(part: dict[str, Any], path: str) -> dict[str, Any]:
        if "format" in part and part["format"] not in KNOWN_FORMATS:
            part = {keyword: value for keyword, value in part.items() if keyword != "format"}
        return part | {"additionalProperties": False} if path in closed else part

    return rewritten(schema, change)


def refuse_unsure(schema: Any) -> None:
    """Raises UnsupportedSchema for what llguidance takes on but jsonschema may judge otherwise."""
    for located in all_schemas(Located(schema, "")):
        part = located.schema
        if not isinstance(part, dict):
            continue
        if "multipleOf" in part and as_divisor(part["multipleOf"]) is None:
            raise UnsupportedSchema(located.path, "multipleOf", "only whole numbers can be told by their digits")
        if part.get("minProperties", 0) > max(1, len(set(part.get("required", ())))):
            raise UnsupportedSchema(located.path, "minProperties", "keys that aren't declared could repeat")


def closable(schema: Any) -> frozenset[str]:
    """Paths of the object schemas that alone describe a value: closing them leaves out values, and adds none.

    A schema that an `allOf`, a `oneOf` or a `not` has a say in, or that a `$ref` there leads to, stays open.
    """
    root = Located(schema, "")
    alone: set[str] = set()
    open_places = [root]
    while open_places:
        located = open_places.pop()
        part = located.schema
        if not isinstance(part, dict) or located.path in alone or "$ref" in part:
            continue
        combined = any(keyword in part for keyword in ("allOf", "oneOf", "not", "if", "dependentSchemas"))
        if (
            "properties" in part
            and not _OPENS & part.keys()
            and set(part.get("required", ())) <= set(part["properties"])
        ):
            alone.add(located.path)
        if not combined and "anyOf" not in part and "patternProperties" not in part:
            open_places += [child for keyword, child in children(located) if keyword in _VALUE_KEYWORDS]
    return frozenset(alone)
