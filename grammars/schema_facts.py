"""What a list of plain schemas, all of which must hold, says about each kind of value."""

import re
from dataclasses import dataclass
from typing import Any

from .errors import UnsupportedSchema
from .keywords import ALL_KINDS, kinds_of_keyword, kinds_of_type
from .number_bounds import Bounds, as_decimal
from .schema_references import Conjunction, Located


def kinds_of(leaves: Conjunction) -> frozenset[str]:
    """The kinds of values that the `type` keywords leave."""
    kinds = ALL_KINDS
    for leaf in leaves:
        if "type" in leaf.schema:
            kinds &= kinds_of_type(leaf.schema["type"])
    # Non-integers alone can't be asked for, but `integer` and `number` together mean integers.
    return kinds


def intended_kinds(leaves: Conjunction) -> frozenset[str]:
    """The kinds of values to write: where no type is given, those that the other keywords speak of.

    `{"properties": …}` also holds for every string; whoever wrote it wants objects.
    """
    kinds = kinds_of(leaves)
    if any("type" in leaf.schema for leaf in leaves):
        return kinds
    spoken_of = frozenset(kind for leaf in leaves for keyword in leaf.schema for kind in kinds_of_keyword(keyword))
    return kinds & spoken_of or kinds


def number_bounds(leaves: Conjunction) -> Bounds:
    """The tightest bounds of all leaves."""
    bounds = Bounds()
    for leaf in leaves:
        schema = leaf.schema
        if "minimum" in schema:
            bounds = bounds.tightened(low=as_decimal(schema["minimum"]))
        if "exclusiveMinimum" in schema:
            bounds = bounds.tightened(low=as_decimal(schema["exclusiveMinimum"]), is_open=True)
        if "maximum" in schema:
            bounds = bounds.tightened(high=as_decimal(schema["maximum"]))
        if "exclusiveMaximum" in schema:
            bounds = bounds.tightened(high=as_decimal(schema["exclusiveMaximum"]), is_open=True)
    return bounds


def count_bounds(leaves: Conjunction, least: str, most: str) -> tuple[int, int | None]:
    """The largest of the `least` keywords (0 if none) and the smallest of the `most` keywords (None if none)."""
    low = max((int(leaf.schema[least]) for leaf in leaves if least in leaf.schema), default=0)
    highs = [int(leaf.schema[most]) for leaf in leaves if most in leaf.schema]
    return low, min(highs) if highs else None


def matches(source: str, name: str, path: str) -> bool:
    """True if a `patternProperties` pattern applies to a property name."""
    try:
        return re.search(source, name) is not None
    except re.error as problem:
        raise UnsupportedSchema(path, "patternProperties", f"{source!r} is no regular expression: {problem}") from None


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """Property names in the order to write them, which of them must be there, and how many in all."""

    names: tuple[str, ...]
    required: frozenset[str]
    low: int
    high: int | None


def object_facts(leaves: Conjunction) -> ObjectFacts:
    """The facts that don't depend on a single property."""
    names: dict[str, None] = {}
    required: dict[str, None] = {}
    for leaf in leaves:
        names.update(dict.fromkeys(leaf.schema.get("properties", {})))
        required.update(dict.fromkeys(leaf.schema.get("required", [])))
    names.update(required)
    low, high = count_bounds(leaves, "minProperties", "maxProperties")
    return ObjectFacts(tuple(names), frozenset(required), low, high)


def property_schemas(leaves: Conjunction, name: str) -> Conjunction:
    """Everything that the value of property `name` must satisfy."""
    found: list[Located] = []
    evaluated = False
    for leaf in leaves:
        schema = leaf.schema
        here = []
        if name in schema.get("properties", {}):
            here.append(leaf.child("properties", name))
        for source in schema.get("patternProperties", {}):
            if matches(source, name, leaf.path):
                here.append(leaf.child("patternProperties", source))
        if not here and "additionalProperties" in schema:
            here.append(leaf.child("additionalProperties"))
        evaluated |= bool(here) and leaf.evaluates
        found += here
    if not evaluated:
        found += [leaf.child("unevaluatedProperties") for leaf in leaves if "unevaluatedProperties" in leaf.schema]
    return tuple(found)


def undeclared_schemas(leaves: Conjunction, source: str | None) -> Conjunction:
    """What the value of a property must satisfy that isn't declared and matches only the pattern `source`, if any."""
    found: list[Located] = []
    evaluated = False
    for leaf in leaves:
        if source is not None and source in leaf.schema.get("patternProperties", {}):
            found.append(leaf.child("patternProperties", source))
        elif "additionalProperties" in leaf.schema:
            found.append(leaf.child("additionalProperties"))
        else:
            continue
        evaluated |= leaf.evaluates
    if not evaluated:
        found += [leaf.child("unevaluatedProperties") for leaf in leaves if "unevaluatedProperties" in leaf.schema]
    return tuple(found)


def item_schemas(leaves: Conjunction, index: int) -> Conjunction:
    """Everything that the array item at `index` must satisfy."""
    found: list[Located] = []
    evaluated = False
    for leaf in leaves:
        if index < len(leaf.schema.get("prefixItems", ())):
            found.append(leaf.child("prefixItems", index))
        elif "items" in leaf.schema:
            found.append(leaf.child("items"))
        else:
            continue
        evaluated |= leaf.evaluates
    if not evaluated:
        found += [leaf.child("unevaluatedItems") for leaf in leaves if "unevaluatedItems" in leaf.schema]
    return tuple(found)


def prefix_length(leaves: Conjunction) -> int:
    """From this index on, all items must satisfy the same."""
    return max((len(leaf.schema.get("prefixItems", ())) for leaf in leaves), default=0)


def canonical_value(value: Any) -> Any:
    """A hashable stand-in, equal for values that JSON Schema calls equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, list):
        return ("array", tuple(canonical_value(item) for item in value))
    if isinstance(value, dict):
        return ("object", frozenset((name, canonical_value(item)) for name, item in value.items()))
    return ("plain", value)


def listed_values(leaves: Conjunction) -> list[Any] | None:
    """The values that every `enum` and `const` lists, in the order of the first; None if there is no such keyword."""
    values: list[Any] | None = None
    for leaf in leaves:
        for keyword in ("enum", "const"):
            if keyword not in leaf.schema:
                continue
            listed = leaf.schema[keyword] if keyword == "enum" else [leaf.schema[keyword]]
            if values is None:
                values = list(listed)
            else:
                allowed = {canonical_value(value) for value in listed}
                values = [value for value in values if canonical_value(value) in allowed]
    return values
