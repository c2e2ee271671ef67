"""Strings: length, pattern and format together, as one expression over their JSON spelling."""

from collections.abc import Callable

from .characters import EVERYTHING, CharacterSet
from .errors import GrammarTooLarge, UnsupportedSchema
from .fragment import EMPTY, Fragment, choice, json_character, literal, repeat, sequence
from .pattern_automaton import count_states, includes
from .schema_facts import count_bounds
from .schema_references import Conjunction
from .string_formats import FORMAT_PATTERNS
from .string_patterns import (
    ANYTHING,
    NOTHING,
    Alternatives,
    Characters,
    Node,
    Repeat,
    Sequence,
    UnsupportedPattern,
    at_least,
    at_most,
    length_range,
    parse_pattern,
)

Note = Callable[[str, str], None]
"""Takes the path and what is to be said of it."""


def string_fragment(
    leaves: Conjunction, alphabet: CharacterSet, length_limit: int | None, note: Note
) -> Fragment | None:
    """JSON strings, with their quotes, that satisfy all leaves; None if there are none.

    A maximum above `length_limit` is held to it, which is told to `note`.
    """
    low, high = count_bounds(leaves, "minLength", "maxLength")
    path = leaves[0].path if leaves else ""
    tree = _matching(leaves, note)
    if tree == ANYTHING:
        tree = Repeat(Characters(EVERYTHING), 0, None)
    if high is not None and low > high:
        return None
    shortest, longest = length_range(tree)
    if high is not None and (longest is None or longest > high):
        longest = high
    if length_limit is not None and longest is not None and longest > max(length_limit, low, shortest):
        high = max(length_limit, low, shortest)
        note(path, f"strings end after {high} of {longest} characters")
    plain = isinstance(tree, Repeat) and isinstance(tree.item, Characters)
    if not plain and (shortest < low or (high is not None and (length_range(tree)[1] or high + 1) > high)):
        note(path, "beside limits on the length, not all strings of the pattern can be written")
    tree = at_least(tree, low)
    if tree != NOTHING and high is not None:
        tree = at_most(tree, high)
    if tree == NOTHING:
        return None
    shortest, longest = length_range(tree)
    if shortest < low or (high is not None and (longest is None or longest > high)):
        raise UnsupportedSchema(path, "pattern", "it can't be combined with the limits on the string's length")
    tree, states = _tamed(tree)
    body = _spelled(tree, alphabet)
    if body is None:
        return None
    # What the automaton really has, where ambiguity makes it larger than the sum of its parts.
    body = Fragment(body.regex, body.shortest, max(body.states, states), body.wide, body.positions)
    return sequence([literal('"'), body, literal('"')])


def _matching(leaves: Conjunction, note: Note) -> Node:
    """The strings that match every pattern, and every format where the two can be combined."""
    patterns: dict[str, Node] = {}
    formats: dict[str, Node] = {}
    path = ""
    for leaf in leaves:
        if "pattern" in leaf.schema:
            path = leaf.path
            try:
                patterns[leaf.schema["pattern"]] = parse_pattern(leaf.schema["pattern"])
            except UnsupportedPattern as problem:
                raise UnsupportedSchema(leaf.path, "pattern", str(problem)) from None
        name = leaf.schema.get("format")
        if name in FORMAT_PATTERNS:
            formats[name] = parse_pattern(FORMAT_PATTERNS[name])
    demands = [*formats.values(), *patterns.values()]
    for candidate in demands:
        if all(includes(other, candidate) for other in demands if other is not candidate):
            return candidate
    if not demands:
        return ANYTHING
    for candidate in patterns.values():
        if all(includes(other, candidate) for other in patterns.values() if other is not candidate):
            note(path, "beside its pattern, the format is left to validation")
            return candidate
    raise UnsupportedSchema(path, "pattern" if patterns else "format", "several of them at once can't be combined")


def _tamed(tree: Node) -> tuple[Node, int]:
    """The tree and the size of its automaton; one that explodes is searched for from its first possible character."""
    try:
        return tree, count_states(tree)
    except GrammarTooLarge:
        if not isinstance(tree, Sequence) or len(tree.items) < 2 or tree.items[0] != ANYTHING:
            raise
    rest = Sequence(tree.items[1:])
    before = Repeat(Characters(EVERYTHING - _first_characters(rest)[0]), 0, None)
    tree = Sequence((before, rest))
    return tree, count_states(tree)


def _first_characters(node: Node) -> tuple[CharacterSet, bool]:
    """The characters that a string may begin with, and whether the empty string is one."""
    if isinstance(node, Characters):
        return node.members, False
    if isinstance(node, Repeat):
        members, empty = _first_characters(node.item)
        return members, empty or node.low == 0
    members = CharacterSet(())
    if isinstance(node, Alternatives):
        found = [_first_characters(option) for option in node.options]
        for first, _ in found:
            members |= first
        return members, any(empty for _, empty in found)
    for item in node.items:
        first, empty = _first_characters(item)
        members |= first
        if not empty:
            return members, False
    return members, True


def _spelled(node: Node, alphabet: CharacterSet) -> Fragment | None:
    """The tree over the JSON spelling of its strings; None if no string can be spelled."""
    if isinstance(node, Characters):
        return json_character(node.members, alphabet)
    if isinstance(node, Sequence):
        parts = [_spelled(item, alphabet) for item in node.items]
        return None if None in parts else sequence([part for part in parts if part is not None])
    if isinstance(node, Alternatives):
        options = [_spelled(option, alphabet) for option in node.options]
        return choice([option for option in options if option is not None]) if any(options) else None
    item = _spelled(node.item, alphabet) if node.high != 0 else None
    if item is None:
        return EMPTY if node.low == 0 else None
    return repeat(item, node.low, node.high)
