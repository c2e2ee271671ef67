"""Multiplying out `$ref`, `allOf`, `anyOf`, `oneOf`, `if`, `not` and dependencies.

A conjunction of schemas becomes a list of branches; a value is valid if it satisfies one of them. A branch is a list
of plain schemas that must all hold, and of schemas that must not (the other options of a `oneOf`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod

from .errors import UnsupportedSchema
from .keywords import COMBINING_KEYWORDS, REFUSED_KEYWORDS, validating
from .schema_negation import negate
from .schema_references import Conjunction, Located, SchemaDocument

MAX_BRANCHES = 512
MAX_OPPOSITES = 64


@dataclass(frozen=True, slots=True)
class Branch:
    """One way to satisfy a conjunction.

    `leaves` hold no combining keywords (but for a `not` that can't be rewritten); none of `excluded` may hold.
    `references` are the paths of the schemas entered through `$ref` on the way.
    """

    leaves: Conjunction = ()
    excluded: tuple[Located, ...] = ()
    references: tuple[str, ...] = ()


def branches_of(conjunction: Conjunction, document: SchemaDocument, *, strict: bool) -> list[Branch]:
    """All branches of a conjunction.

    With `strict`, they stand for no value that the conjunction rejects, and what can't be multiplied out is refused.
    Without, they stand for every value that it accepts, and maybe more: what can't be multiplied out is ignored.
    """
    spreader = _Spreader(document, strict)
    return spreader.combine([spreader.spread(located, ()) for located in conjunction], "")


class _Spreader:
    def __init__(self, document: SchemaDocument, strict: bool) -> None:
        self.document = document
        self.strict = strict

    def combine(self, factors: Iterable[list[Branch]], path: str) -> list[Branch]:
        result = [Branch()]
        for factor in factors:
            if len(result) * len(factor) > MAX_BRANCHES:
                raise UnsupportedSchema(path, "", f"its alternatives multiply to more than {MAX_BRANCHES}")
            result = [
                Branch(left.leaves + right.leaves, left.excluded + right.excluded, left.references + right.references)
                for left, right in product(result, factor)
            ]
        return result

    def spread(self, located: Located, trail: tuple[str, ...]) -> list[Branch]:
        if isinstance(located.schema, bool):
            return [Branch()] if located.schema else []
        keywords = validating(located.schema)
        for keyword in REFUSED_KEYWORDS & keywords.keys():
            if self.strict:
                raise UnsupportedSchema(located.path, keyword, "references that depend on the caller can't be resolved")
        leaf = {keyword: value for keyword, value in keywords.items() if keyword not in COMBINING_KEYWORDS}
        factors: list[list[Branch]] = []
        if "not" in keywords:
            negated = negate(keywords["not"]) if self.strict else None
            if negated is None or negated == {"not": keywords["not"]}:
                # Kept: finite sets of values are tested against it, anything else refuses it.
                leaf["not"] = keywords["not"]
            else:
                factors.append(self.spread(Located(negated, f"{located.path}/not", False), trail))
        if leaf:
            factors.insert(0, [Branch((Located(leaf, located.path, located.evaluates),))])
        if "$ref" in keywords:
            factors.append(self._reference(located, trail))
        for index in range(len(keywords.get("allOf", ()))):
            factors.append(self.spread(located.child("allOf", index), trail))
        if "anyOf" in keywords:
            options = (located.child("anyOf", index) for index in range(len(keywords["anyOf"])))
            factors.append([branch for option in options for branch in self.spread(option, trail)])
        if "oneOf" in keywords:
            factors.append(self._one_of(located, trail))
        if "if" in keywords:
            factors.append(self._condition(located, trail))
        factors += self._dependencies(located, trail)
        return self.combine(factors, located.path)

    def _reference(self, located: Located, trail: tuple[str, ...]) -> list[Branch]:
        target = self.document.resolve(located.schema["$ref"], located)
        if target.path in trail:
            raise UnsupportedSchema(located.path, "$ref", "it refers to itself without anything in between")
        target = Located(target.schema, target.path, located.evaluates)
        return [
            Branch(branch.leaves, branch.excluded, (target.path, *branch.references))
            for branch in self.spread(target, (*trail, target.path))
        ]

    def _one_of(self, located: Located, trail: tuple[str, ...]) -> list[Branch]:
        options = [located.child("oneOf", index) for index in range(len(located.schema["oneOf"]))]
        opposites = self._opposites(options, trail)
        branches: list[Branch] = []
        for index, option in enumerate(options):
            others = [other for other in range(len(options)) if other != index]
            absent = [opposites[other] for other in others if other in opposites]
            excluded = tuple(options[other] for other in others if other not in opposites)
            branches += [
                Branch(branch.leaves, branch.excluded + excluded, branch.references)
                for branch in self.combine([self.spread(option, trail), *absent], located.path)
            ]
        return branches

    def _opposites(self, options: list[Located], trail: tuple[str, ...]) -> dict[int, list[Branch]]:
        """By index, how to break each option that only requires properties: one of them is absent."""
        if not self.strict:
            return {}
        required = [
            index
            for index, option in enumerate(options)
            if isinstance(option.schema, dict) and validating(option.schema).keys() == {"required"}
        ]
        if prod(max(1, len(options[index].schema["required"])) for index in required) > MAX_OPPOSITES:
            return {}
        return {
            index: self.spread(Located(negate(options[index].schema) or False, options[index].path, False), trail)
            for index in required
        }

    def _condition(self, located: Located, trail: tuple[str, ...]) -> list[Branch]:
        schema = located.schema
        if "then" not in schema and "else" not in schema:
            return [Branch()]
        condition = located.child("if")
        held = [self.spread(condition, trail)]
        if "then" in schema:
            held.append(self.spread(located.child("then"), trail))
        failed = []
        if self.strict:
            negated = negate(condition.schema)
            if negated is None:
                raise UnsupportedSchema(located.path, "if", "the opposite of its condition can't be written down")
            failed.append(self.spread(Located(negated, condition.path, False), trail))
        if "else" in schema:
            failed.append(self.spread(located.child("else"), trail))
        return self.combine(held, located.path) + self.combine(failed, located.path)

    def _dependencies(self, located: Located, trail: tuple[str, ...]) -> list[list[Branch]]:
        """Every dependency holds if its property is absent, or if the property is present and its demand is met."""
        factors = []
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            # The older keyword `dependencies` is no part of Draft 2020-12; obeying it can only be stricter.
            if keyword == "dependencies" and not self.strict:
                continue
            for name in located.schema.get(keyword, {}):
                demand = located.child(keyword, name)
                # jsonschema, which doesn't know `dependencies`, takes nothing there for evaluated.
                demand = Located(demand.schema, demand.path, demand.evaluates and keyword != "dependencies")
                if isinstance(demand.schema, list):
                    demand = Located({"required": demand.schema}, demand.path)
                absent = Located({"properties": {name: False}}, f"{located.path}/{keyword}", False)
                present = Located({"required": [name]}, f"{located.path}/{keyword}", False)
                met = [self.spread(present, trail), self.spread(demand, trail)]
                factors.append(self.spread(absent, trail) + self.combine(met, located.path))
        return factors
