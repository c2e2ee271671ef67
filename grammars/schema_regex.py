"""The compiler: from a JSON Schema to one expression whose every text is a valid, compact JSON value."""

from collections.abc import Callable
from functools import lru_cache
from math import lcm
from typing import Any

from .characters import CharacterSet
from .errors import GrammarTooLarge, UnsupportedSchema
from .fragment import Fragment, any_literal, choice
from .integer_ranges import integers
from .json_containers import ContainerWriter
from .json_strings import string_fragment
from .json_values import any_value, value_text
from .keywords import ARRAY, BOOLEAN, FRACTION, INTEGER, NULL, OBJECT, STRING, validating
from .limits import MAX_SCHEMAS_VISITED, Limits
from .number_bounds import as_divisor
from .number_ranges import numbers
from .schema_branches import Branch, branches_of
from .schema_disjoint import DisjointnessProver
from .schema_facts import intended_kinds, kinds_of, listed_values, number_bounds
from .schema_references import Conjunction, Located, SchemaDocument

Trail = tuple[str, ...]
"""The paths of the schemas, entered through `$ref`, that the present one is inside of."""


class SchemaCompiler:
    """Writes the values of one document's schemas, under given limits, with given characters."""

    def __init__(self, document: SchemaDocument, alphabet: CharacterSet, limits: Limits) -> None:
        self.document = document
        self.alphabet = alphabet
        self.limits = limits
        self.cuts: dict[str, None] = {}
        self.habits: dict[str, None] = {}
        self._prover = DisjointnessProver(document)
        self._visited = 0
        self._any_value: Callable[[int], Fragment] = lru_cache(maxsize=None)(lambda depth: any_value(depth, alphabet))

    def note_cut(self, path: str, text: str) -> None:
        """Remember where the grammar stops short of the schema, and another backend might not."""
        self.cuts[f"{path or 'the root'}: {text}"] = None

    def note_habit(self, path: str, text: str) -> None:
        """Remember where less than the schema allows is written on purpose."""
        self.habits[f"{path or 'the root'}: {text}"] = None

    def value(self, conjunction: Conjunction, trail: Trail, depth: int) -> Fragment | None:
        """Values that satisfy all schemas of `conjunction`; None if there are none.

        `depth` is how deep values that may be anything can still nest.
        """
        self._visited += 1
        if self._visited > MAX_SCHEMAS_VISITED:
            raise GrammarTooLarge(f"it has more than {MAX_SCHEMAS_VISITED:,} places once its references are followed")
        stated = tuple(located for located in conjunction if not _is_trivial(located.schema))
        if not stated:
            return self.free(conjunction[0].path if conjunction else "", depth)
        conjunction = stated
        options: dict[str, Fragment] = {}
        for branch in branches_of(conjunction, self.document, strict=True):
            option = self._branch(branch, conjunction, trail, depth)
            if option is not None:
                options.setdefault(option.regex, option)
        return choice(list(options.values())) if options else None

    def free(self, path: str, depth: int) -> Fragment:
        """Values that may be anything, nested at most `depth` deep."""
        depth = max(depth, 0)
        self.note_habit(path, f"any value, its arrays and objects nested at most {depth} deep")
        return self._any_value(depth)

    def _branch(self, branch: Branch, conjunction: Conjunction, trail: Trail, depth: int) -> Fragment | None:
        for path in branch.references:
            if trail.count(path) > self.limits.recursion:
                self.note_cut(path, f"contains itself at most {self.limits.recursion} times")
                return None
        trail += branch.references
        if not branch.leaves:
            if branch.excluded:
                raise UnsupportedSchema(branch.excluded[0].path, "oneOf", "one of its options accepts everything")
            return self.free(conjunction[0].path, depth)
        values = listed_values(branch.leaves)
        if values is not None:
            return self._listed(values, branch)
        self._refuse_unsupported(branch.leaves, conjunction)
        kinds = self._exclusive_kinds(branch)
        if kinds_of(branch.leaves) - intended_kinds(branch.leaves):
            spoken_of = " or ".join(sorted(kind for kind in intended_kinds(branch.leaves) if kind != FRACTION))
            self.note_habit(branch.leaves[0].path, f"no type is given; only what its keywords speak of: {spoken_of}")
        options: list[Fragment | None] = []
        if NULL in kinds:
            options.append(any_literal(["null"]))
        if BOOLEAN in kinds:
            options.append(any_literal(["true", "false"]))
        if INTEGER in kinds:
            options.append(self._number(branch.leaves, FRACTION in kinds))
        if STRING in kinds:
            options.append(string_fragment(branch.leaves, self.alphabet, self.limits.length, self.note_cut))
        containers = ContainerWriter(self, branch.leaves, trail, depth)
        if ARRAY in kinds:
            options.append(containers.array())
        if OBJECT in kinds:
            options.append(containers.object())
        written = [option for option in options if option is not None]
        return choice(written) if written else None

    def _listed(self, values: list[Any], branch: Branch) -> Fragment | None:
        path = branch.leaves[0].path
        kept = [value for value in values if self._is_valid(value, branch)]
        return any_literal([value_text(value, self.alphabet, path) for value in kept]) if kept else None

    def _is_valid(self, value: Any, branch: Branch) -> bool:
        # `listed_values` has intersected the lists; asking again would take quadratic time.
        return all(
            self.document.accepts(value, Located(_without_lists(leaf.schema), leaf.path)) for leaf in branch.leaves
        ) and not any(self.document.accepts(value, other) for other in branch.excluded)

    def _exclusive_kinds(self, branch: Branch) -> frozenset[str]:
        """The kinds to write such that no value also satisfies another option of a `oneOf`."""
        kinds = intended_kinds(branch.leaves)
        for other in branch.excluded:
            common = self._prover.kinds_in_common(branch, other) & kinds
            overlapping = {kind for kind in common if self._prover.accepts_all(kind, other)}
            kinds -= overlapping
            if common - overlapping:
                path, _, option = other.path.rpartition("/oneOf/")
                raise UnsupportedSchema(path, "oneOf", f"nothing shows that its option {option} excludes the others")
        return kinds

    def _refuse_unsupported(self, leaves: Conjunction, conjunction: Conjunction) -> None:
        for index, leaf in enumerate(leaves):
            if "not" in leaf.schema:
                raise UnsupportedSchema(leaf.path, "not", "the values that it leaves can't be written down")
            for keyword in ("unevaluatedProperties", "unevaluatedItems"):
                if keyword not in leaf.schema or len(leaves) == 1 or leaf.schema[keyword] is True:
                    continue
                if index or len(conjunction) > 1 or leaf.path != conjunction[0].path:
                    raise UnsupportedSchema(leaf.path, keyword, "it stands beside schemas that it doesn't see")

    def _number(self, leaves: Conjunction, with_fractions: bool) -> Fragment | None:
        bounds = number_bounds(leaves)
        step = 1
        for leaf in leaves:
            if "multipleOf" not in leaf.schema:
                continue
            divisor = as_divisor(leaf.schema["multipleOf"])
            if divisor is None:
                raise UnsupportedSchema(leaf.path, "multipleOf", "only whole numbers can be told by their digits")
            step = lcm(step, divisor)
            with_fractions = False
        if with_fractions:
            return numbers(bounds)
        try:
            return integers(bounds, step)
        except GrammarTooLarge as problem:
            path = next(leaf.path for leaf in leaves if "multipleOf" in leaf.schema)
            raise UnsupportedSchema(path, "multipleOf", problem.reason) from None


def _without_lists(schema: dict[str, Any]) -> dict[str, Any]:
    return {keyword: value for keyword, value in schema.items() if keyword not in ("enum", "const")}


def _is_trivial(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and not validating(schema))
