"""Proofs that what the compiler writes for one option of a `oneOf` is invalid under another option.

The two sides differ: on the left stands a branch as it is *written* (closed objects, only declared properties), on
the right stand all values that the other schema accepts. "False" only means that no proof was found.
"""

from .keywords import (
    ARRAY,
    BOOLEAN,
    FRACTION,
    INTEGER,
    NULL,
    OBJECT,
    STRING,
    kinds_of_keyword,
    kinds_of_type,
    validating,
)
from .pattern_automaton import are_disjoint
from .schema_branches import Branch, branches_of
from .schema_facts import (
    count_bounds,
    intended_kinds,
    item_schemas,
    kinds_of,
    listed_values,
    number_bounds,
    object_facts,
    prefix_length,
    property_schemas,
    undeclared_schemas,
)
from .schema_references import Conjunction, Located, SchemaDocument
from .string_formats import FORMAT_PATTERNS
from .string_patterns import UnsupportedPattern, parse_pattern

MAX_DEPTH = 4


class DisjointnessProver:
    """Compares written branches with schemas of one document."""

    def __init__(self, document: SchemaDocument) -> None:
        self.document = document

    def kinds_in_common(self, branch: Branch, other: Located) -> frozenset[str]:
        """The kinds of values for which no proof was found that `branch`, as written, breaks `other`."""
        common: frozenset[str] = frozenset()
        for right in branches_of((other,), self.document, strict=False):
            common |= self._common(branch.leaves, right.leaves, 0)
        return common

    def accepts_all(self, kind: str, other: Located) -> bool:
        """True if `other` surely accepts every value of a kind: none of its keywords speaks of that kind."""
        if kind in (NULL, BOOLEAN):
            values: list[bool | None] = [None] if kind == NULL else [True, False]
            return all(self.document.accepts(value, other) for value in values)
        for _ in range(MAX_DEPTH):
            if isinstance(other.schema, dict) and validating(other.schema).keys() == {"$ref"}:
                other = self.document.resolve(other.schema["$ref"], other)
        if isinstance(other.schema, bool):
            return other.schema
        return all(
            (keyword == "type" and kind in kinds_of_type(value))
            or keyword == "format"  # an annotation to jsonschema
            or (kinds_of_keyword(keyword) and kind not in kinds_of_keyword(keyword))
            for keyword, value in validating(other.schema).items()
        )

    def _never_both(self, left: Conjunction, right: Conjunction, depth: int) -> bool:
        if depth > MAX_DEPTH:
            return False
        lefts = branches_of(left, self.document, strict=True)
        rights = branches_of(right, self.document, strict=False)
        return not any(self._common(one.leaves, other.leaves, depth) for one in lefts for other in rights)

    def _common(self, left: Conjunction, right: Conjunction, depth: int) -> frozenset[str]:
        left_values, right_values = listed_values(left), listed_values(right)
        if left_values is not None:
            remaining = [value for value in left_values if self._all_accept(value, left + right)]
            return kinds_of(left) if remaining else frozenset()
        if right_values is not None:
            remaining = [value for value in right_values if self._all_accept(value, left + right)]
            return kinds_of(left) if remaining else frozenset()
        kinds = intended_kinds(left) & kinds_of(right)
        return frozenset(kind for kind in kinds if not self._kind_disjoint(kind, left, right, depth))

    def _all_accept(self, value: object, leaves: Conjunction) -> bool:
        return all(self.document.accepts(value, leaf) for leaf in leaves)

    def _kind_disjoint(self, kind: str, left: Conjunction, right: Conjunction, depth: int) -> bool:
        if kind in (INTEGER, FRACTION):
            return number_bounds(left).apart_from(number_bounds(right))
        if kind == STRING:
            return _counts_apart(left, right, "minLength", "maxLength") or _patterns_apart(left, right)
        if kind == ARRAY:
            return self._arrays_apart(left, right, depth)
        if kind == OBJECT:
            return self._objects_apart(left, right, depth)
        return False

    def _arrays_apart(self, left: Conjunction, right: Conjunction, depth: int) -> bool:
        if _counts_apart(left, right, "minItems", "maxItems"):
            return True
        always_there = max(
            count_bounds(left, "minItems", "maxItems")[0], count_bounds(right, "minItems", "maxItems")[0]
        )
        looked_at = min(always_there, max(prefix_length(left), prefix_length(right)) + 1)
        return any(
            self._never_both(item_schemas(left, index), item_schemas(right, index), depth + 1)
            for index in range(looked_at)
        )

    def _objects_apart(self, left: Conjunction, right: Conjunction, depth: int) -> bool:
        mine, theirs = object_facts(left), object_facts(right)
        if not mine.names:
            # A map: its keys are free, so only what its values must be can tell the two apart.
            if any("patternProperties" in leaf.schema for leaf in left):
                return False
            values = undeclared_schemas(left, None)
            return any(
                self._never_both(values, property_schemas(right, name), depth + 1) for name in sorted(theirs.required)
            )
        if not theirs.required <= set(mine.names):
            return True
        if theirs.high is not None and len(mine.required) > theirs.high:
            return True
        if min(len(mine.names), mine.high if mine.high is not None else len(mine.names)) < theirs.low:
            return True
        return any(
            self._never_both(property_schemas(left, name), property_schemas(right, name), depth + 1)
            for name in mine.names
            if name in mine.required or name in theirs.required
        )


def _counts_apart(left: Conjunction, right: Conjunction, least: str, most: str) -> bool:
    left_low, left_high = count_bounds(left, least, most)
    right_low, right_high = count_bounds(right, least, most)
    return (left_high is not None and left_high < right_low) or (right_high is not None and right_high < left_low)


def _patterns_apart(left: Conjunction, right: Conjunction) -> bool:
    try:
        mine = [parse_pattern(leaf.schema["pattern"]) for leaf in left if "pattern" in leaf.schema]
        if not mine:  # beside a pattern, a format need not be written to
            formats = {leaf.schema.get("format") for leaf in left} & FORMAT_PATTERNS.keys()
            mine = [parse_pattern(FORMAT_PATTERNS[name]) for name in sorted(formats)]
        theirs = [parse_pattern(leaf.schema["pattern"], widest=True) for leaf in right if "pattern" in leaf.schema]
    except UnsupportedPattern:
        return False
    return any(are_disjoint(one, other) for one in mine for other in theirs)
