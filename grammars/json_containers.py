"""Arrays and objects: their items and properties, in order and in number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import GrammarTooLarge, UnsupportedSchema
from .fragment import EMPTY, Fragment, choice, counted_subsequence, literal, optional, repeat, separated, sequence
from .json_values import value_text
from .pattern_automaton import are_disjoint
from .schema_branches import branches_of
from .schema_facts import (
    ObjectFacts,
    canonical_value,
    count_bounds,
    item_schemas,
    listed_values,
    object_facts,
    prefix_length,
    property_schemas,
    undeclared_schemas,
)
from .schema_references import Conjunction, Located
from .string_patterns import UnsupportedPattern, parse_pattern

if TYPE_CHECKING:
    from .schema_regex import SchemaCompiler, Trail


class ContainerWriter:
    """Writes the arrays and objects that satisfy `leaves`; nested values are the compiler's business."""

    def __init__(self, compiler: SchemaCompiler, leaves: Conjunction, trail: Trail, depth: int) -> None:
        self.compiler = compiler
        self.leaves = leaves
        self.trail = trail
        self.depth = depth
        self.path = leaves[0].path

    def _nested(self, conjunction: Conjunction) -> Fragment | None:
        return self.compiler.value(conjunction, self.trail, self.depth)

    def _free(self, conjunction: Conjunction) -> Fragment | None:
        """A value inside a container that isn't described any further: one level of free nesting is used up."""
        if conjunction:
            return self._nested(conjunction)
        return self.compiler.free(self.path, self.depth - 1) if self.depth > 0 else None

    def array(self) -> Fragment | None:
        """Arrays that satisfy all leaves; None if there are none."""
        low, high = count_bounds(self.leaves, "minItems", "maxItems")
        self._refuse_contains()
        if high is not None and low > high:
            return None
        if any(leaf.schema.get("uniqueItems") for leaf in self.leaves) and (high is None or high > 1):
            return self._unique(low, high)
        prefix: list[Fragment] = []
        for index in range(prefix_length(self.leaves)):
            if high is not None and index >= high:
                break
            item = self._nested(item_schemas(self.leaves, index))
            if item is None:
                high = index
                break
            prefix.append(item)
        rest = None
        if high is None or high > len(prefix):
            rest = self._free(item_schemas(self.leaves, prefix_length(self.leaves)))
        if rest is None:
            high = len(prefix) if high is None else min(high, len(prefix))
        if high is not None and low > high:
            return None
        limit = self.compiler.limits.items
        if rest is not None and limit is not None and high is not None and high > max(limit, low, len(prefix)):
            self.compiler.note_cut(self.path, f"arrays end after {max(limit, low)} of {high} items")
            high = max(limit, low, len(prefix))
        return sequence([literal("["), _items(prefix, rest, low, high), literal("]")])

    def _refuse_contains(self) -> None:
        for leaf in self.leaves:
            if "contains" not in leaf.schema:
                continue
            if leaf.schema.get("minContains", 1) > 0 or "maxContains" in leaf.schema:
                raise UnsupportedSchema(leaf.path, "contains", "which items must match isn't tracked")

    def _unique(self, low: int, high: int | None) -> Fragment | None:
        """Unique items: from a list of values, in the order of that list."""
        path = next(leaf.path for leaf in self.leaves if leaf.schema.get("uniqueItems"))
        items = item_schemas(self.leaves, 0)
        branches = branches_of(items, self.compiler.document, strict=True)
        listed = [listed_values(branch.leaves) for branch in branches]
        if prefix_length(self.leaves) or len(branches) != 1 or listed[0] is None or len(listed[0]) > 64:
            raise UnsupportedSchema(path, "uniqueItems", "items can only be told apart if they come from a short enum")
        document, alphabet = self.compiler.document, self.compiler.alphabet
        values: list[Fragment] = []
        for index, value in enumerate(listed[0]):
            valid = all(document.accepts(value, item) for item in items)
            if valid and not any(canonical_value(value) == canonical_value(earlier) for earlier in listed[0][:index]):
                values.append(literal(value_text(value, alphabet, path)))
        try:
            body = counted_subsequence(values, [False] * len(values), low, len(values) if high is None else high)
        except GrammarTooLarge as problem:
            raise UnsupportedSchema(path, "uniqueItems", problem.reason) from None
        return None if body is None else sequence([literal("["), body, literal("]")])

    def object(self) -> Fragment | None:
        """Objects that satisfy all leaves, with only declared properties, or maps if none is declared."""
        facts = object_facts(self.leaves)
        if facts.high is not None and facts.low > facts.high:
            return None
        body = self._declared(facts) if facts.names else self._map(facts)
        return None if body is None else sequence([literal("{"), body, literal("}")])

    def _declared(self, facts: ObjectFacts) -> Fragment | None:
        parts: list[Fragment] = []
        needed: list[bool] = []
        for name in facts.names:
            value = None
            if self._name_is_valid(name):
                value = self._nested(property_schemas(self.leaves, name))
            if value is not None:
                key = literal(value_text(name, self.compiler.alphabet, f"{self.path}/properties") + ":")
                parts.append(sequence([key, value]))
                needed.append(name in facts.required)
            elif name in facts.required:
                return None
        high = len(parts) if facts.high is None else facts.high
        try:
            return counted_subsequence(parts, needed, facts.low, high)
        except GrammarTooLarge as problem:
            keyword = "minProperties" if facts.low > 1 else "maxProperties"
            path = next((leaf.path for leaf in self.leaves if keyword in leaf.schema), self.path)
            if "combinations" in problem.reason:
                raise UnsupportedSchema(path, keyword, problem.reason) from None
            raise

    def _name_is_valid(self, name: str) -> bool:
        return all(self.compiler.document.accepts(name, rule) for rule in self._name_rules())

    def _name_rules(self) -> list[Located]:
        return [leaf.child("propertyNames") for leaf in self.leaves if "propertyNames" in leaf.schema]

    def _map(self, facts: ObjectFacts) -> Fragment | None:
        """Objects with free keys. A key may be written twice; readers take the last, which is as valid."""
        if facts.low > 1:
            path = next(leaf.path for leaf in self.leaves if "minProperties" in leaf.schema)
            raise UnsupportedSchema(path, "minProperties", "keys that aren't declared could repeat")
        entries = []
        if facts.high != 0:
            for source in self._key_patterns():
                rule = {"type": "string"} | ({} if source is None else {"pattern": source})
                keys = self.compiler.value((*self._name_rules(), Located(rule, self.path)), self.trail, 0)
                value = self._free(undeclared_schemas(self.leaves, source))
                if keys is not None and value is not None:
                    entries.append(sequence([keys, literal(":"), value]))
        if not entries:
            return None if facts.low else EMPTY
        limit, high = self.compiler.limits.items, facts.high
        if limit is not None and high is not None:
            high = min(high, limit)
        return separated(choice(entries), facts.low, high)

    def _key_patterns(self) -> list[str | None]:
        """The `patternProperties` whose keys can be written; [None] if there are none: any key."""
        sources: dict[str, str] = {}
        for leaf in self.leaves:
            for source in leaf.schema.get("patternProperties", {}):
                sources.setdefault(source, leaf.path)
        if not sources:
            return [None]
        self.compiler.note_habit(self.path, "only keys that match one of its patterns")
        for source, path in sources.items():
            for other in sources:
                try:
                    apart = other == source or are_disjoint(parse_pattern(source), parse_pattern(other, widest=True))
                except UnsupportedPattern as problem:
                    raise UnsupportedSchema(path, "patternProperties", str(problem)) from None
                if not apart:
                    raise UnsupportedSchema(
                        path, "patternProperties", f"{source!r} and {other!r} can match the same key"
                    )
        return list(sources)


def _items(prefix: list[Fragment], rest: Fragment | None, low: int, high: int | None) -> Fragment:
    if not prefix:
        return EMPTY if rest is None else separated(rest, low, high)
    body = EMPTY
    if rest is not None and (high is None or high > len(prefix)):
        more = None if high is None else high - len(prefix)
        body = repeat(sequence([literal(","), rest]), max(low - len(prefix), 0), more)
    for index in range(len(prefix) - 1, -1, -1):
        body = sequence([literal(",") if index else EMPTY, prefix[index], body])
        if index >= low:
            body = optional(body)
    return body
