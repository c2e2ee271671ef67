"""The `pattern` keyword: from Python's `re` syntax to a tree of the strings that match.

A tree describes whole strings, so an unanchored pattern becomes "anything, a match, anything". Where Python's `re` and
ECMA-262 differ (`\\d` beyond ASCII, `.` at line ends, `$` before a last newline), the tree keeps to what both accept;
with `widest=True` it takes all that either accepts instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from re import error as PatternError
from typing import Any

from .characters import (
    ASCII_DIGITS,
    ASCII_SPACES,
    ASCII_WORD,
    EVERYTHING,
    LINE_ENDS,
    NON_ASCII,
    WIDEST_SPACES,
    CharacterSet,
    widest_digits,
)

MAX_ALTERNATIVES = 64


class UnsupportedPattern(ValueError):
    """A pattern that is no regular expression, or one that isn't read the same way everywhere."""


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set."""

    members: CharacterSet


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; without items, the empty string."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of them; without options, no string at all."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `low` to `high` times (None: without end)."""

    item: "Node"
    low: int
    high: int | None


Node = Characters | Sequence | Alternatives | Repeat

ANYTHING = Repeat(Characters(EVERYTHING), 0, None)
NOTHING = Alternatives(())


@lru_cache(maxsize=4096)
def parse_pattern(source: str, *, widest: bool = False) -> Node:
    """The strings that `re.search(source, …)` finds a match in. Raises UnsupportedPattern with the reason."""
    try:
        parsed = _parser.parse(source)
    except (PatternError, OverflowError, RecursionError) as problem:
        raise UnsupportedPattern(f"it isn't a regular expression of Python's re: {problem}") from problem
    reader = _Reader(widest)
    reader.check_flags(parsed.state.flags)
    options = [reader.unanchored(items) for items in _spread_anchors(parsed)]
    return options[0] if len(options) == 1 else Alternatives(tuple(options))


def _spread_anchors(items: Iterable[Any]) -> list[list[Any]]:
    """Multiply out groups that hold an anchor, so that anchors stand only in the outermost sequences."""
    spread: list[list[Any]] = [[]]
    for operator, argument in items:
        if operator is op.BRANCH and _has_anchor(argument[1]):
            options = [option for branch in argument[1] for option in _spread_anchors(branch)]
        elif operator is op.SUBPATTERN and _has_anchor(argument[3]):
            _Reader.check_group(argument)
            options = _spread_anchors(argument[3])
        else:
            options = [[(operator, argument)]]
        spread = [start + option for start in spread for option in options]
        if len(spread) > MAX_ALTERNATIVES:
            raise UnsupportedPattern("it has too many alternatives around anchors")
    return spread


def _has_anchor(part: Any) -> bool:
    if isinstance(part, tuple) and len(part) == 2 and part[0] is op.AT:
        return True
    if isinstance(part, _parser.SubPattern | list | tuple):
        return any(_has_anchor(item) for item in part)
    return False


class _Reader:
    """Turns Python's parse tree into ours."""

    def __init__(self, widest: bool) -> None:
        self.widest = widest

    @staticmethod
    def check_flags(flags: int) -> None:
        if flags & ~op.SRE_FLAG_UNICODE:
            raise UnsupportedPattern("it sets flags")

    @staticmethod
    def check_group(argument: Any) -> None:
        if argument[1] or argument[2]:
            raise UnsupportedPattern("it sets flags")

    def unanchored(self, items: list[Any]) -> Node:
        open_left, open_right = True, True
        while items and items[0][0] is op.AT and items[0][1] is op.AT_BEGINNING:
            open_left, items = False, items[1:]
        while items and items[-1][0] is op.AT and items[-1][1] is op.AT_END:
            open_right, items = False, items[:-1]
        parts: list[Node] = [ANYTHING] if open_left else []
        parts += [self.node(item) for item in items]
        if open_right:
            parts.append(ANYTHING)
        elif self.widest:
            parts.append(Repeat(Characters(CharacterSet.from_text("\n")), 0, 1))
        return Sequence(tuple(parts))

    def node(self, item: Any) -> Node:
        operator, argument = item
        if operator in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return Characters(self.characters(item, self.widest))
        if operator is op.BRANCH:
            return Alternatives(tuple(self.sequence(branch) for branch in argument[1]))
        if operator is op.SUBPATTERN:
            self.check_group(argument)
            return self.sequence(argument[3])
        if operator in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, body = argument
            return Repeat(self.sequence(body), low, None if high is op.MAXREPEAT else high)
        if operator in (op.ASSERT, op.ASSERT_NOT):
            raise UnsupportedPattern("look-around can't be a grammar")
        if operator in (op.GROUPREF, op.GROUPREF_EXISTS):
            raise UnsupportedPattern("back-references can't be a grammar")
        if operator is op.AT:
            raise UnsupportedPattern("it has an anchor or a word boundary inside")
        raise UnsupportedPattern(f"{operator} isn't read the same way everywhere")

    def sequence(self, items: Iterable[Any]) -> Node:
        nodes = tuple(self.node(item) for item in items)
        return nodes[0] if len(nodes) == 1 else Sequence(nodes)

    def characters(self, item: Any, widest: bool) -> CharacterSet:
        operator, argument = item
        if operator is op.LITERAL:
            return CharacterSet.of([(argument, argument)])
        if operator is op.NOT_LITERAL:
            return ~CharacterSet.of([(argument, argument)])
        if operator is op.RANGE:
            return CharacterSet.of([argument])
        if operator is op.ANY:
            return ~CharacterSet.from_text("\n") if widest else ~LINE_ENDS
        if operator is op.CATEGORY:
            return _category(argument, widest)
        assert operator is op.IN
        negated = argument[0][0] is op.NEGATE
        members = CharacterSet(())
        for member in argument[1:] if negated else argument:
            # What is left out of a negated class must be taken at its widest, and the other way round.
            members |= self.characters(member, widest is not negated)
        return ~members if negated else members


def _category(category: Any, widest: bool) -> CharacterSet:
    narrow = {op.CATEGORY_DIGIT: ASCII_DIGITS, op.CATEGORY_SPACE: ASCII_SPACES, op.CATEGORY_WORD: ASCII_WORD}
    opposite = {
        op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
        op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
        op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
    }
    if category in opposite:
        return ~_category(opposite[category], not widest)
    if not widest:
        return narrow[category]
    if category is op.CATEGORY_DIGIT:
        return widest_digits()
    if category is op.CATEGORY_SPACE:
        return WIDEST_SPACES
    return ASCII_WORD | NON_ASCII


def length_range(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters (None: no limit) of the tree's strings, which must not be empty of strings."""
    if isinstance(node, Characters):
        return 1, 1
    if isinstance(node, Sequence):
        ranges = [length_range(item) for item in node.items]
        return sum(low for low, _ in ranges), _total(high for _, high in ranges)
    if isinstance(node, Alternatives):
        ranges = [length_range(option) for option in node.options if option != NOTHING]
        highs = [high for _, high in ranges]
        return min((low for low, _ in ranges), default=0), None if None in highs else max(
            (high for high in highs if high is not None), default=0
        )
    low, high = length_range(node.item)
    if node.high == 0 or high == 0:
        return 0, 0
    return low * node.low, None if node.high is None or high is None else high * node.high


def _total(amounts: Iterable[int | None]) -> int | None:
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def at_most(node: Node, length: int) -> Node:
    """Some of the tree's strings of at most `length` characters: all of them if only one part varies in length."""
    low, _ = length_range(node)
    return NOTHING if low > length else _within(node, length - low)


def _within(node: Node, extra: int) -> Node:
    """Limit the tree to strings at most `extra` characters longer than its shortest."""
    low, high = length_range(node)
    if high is not None and high - low <= extra:
        return node
    if isinstance(node, Alternatives):
        options = (at_most(option, low + extra) for option in node.options)
        return Alternatives(tuple(option for option in options if option != NOTHING))
    if isinstance(node, Sequence):
        needs = [(_variation(item), index) for index, item in enumerate(node.items)]
        items = list(node.items)
        varying = sorted((need, index) for need, index in needs if need)
        for place, (need, index) in enumerate(varying):
            # Later parts get what the smaller ones before them left over.
            share = min(need, extra // (len(varying) - place))
            items[index] = _within(items[index], int(share))
            extra -= int(share)
        return Sequence(tuple(items))
    assert isinstance(node, Repeat)
    item_low = length_range(node.item)[0]
    item_extra = int(min(_variation(node.item), extra // (node.low + 1)))
    item = _within(node.item, item_extra)
    room = extra - item_extra * node.low
    more = room // max(item_low + item_extra, 1)
    return Repeat(item, node.low, node.low + more if node.high is None else min(node.high, node.low + more))


def _variation(node: Node) -> float:
    low, high = length_range(node)
    return float("inf") if high is None else high - low


def at_least(node: Node, length: int) -> Node:
    """Some of the tree's strings of at least `length` characters: all of them if only one part varies in length.

    The result may still hold shorter strings, if no part could be lengthened; callers check.
    """
    low, _ = length_range(node)
    if low >= length:
        return node
    if isinstance(node, Alternatives):
        options = (at_least(option, length) for option in node.options if option != NOTHING)
        return Alternatives(tuple(option for option in options if length_range(option)[0] >= length))
    if isinstance(node, Sequence):
        items = list(node.items)
        for index in sorted(range(len(items)), key=lambda index: -_variation(items[index])):
            others = low - length_range(items[index])[0]
            items[index] = at_least(items[index], length - others)
            low = others + length_range(items[index])[0]
        return Sequence(tuple(items))
    if isinstance(node, Repeat):
        item_low, _ = length_range(node.item)
        if item_low:
            copies = -(-length // item_low)
            return Repeat(node.item, copies if node.high is None else min(copies, node.high), node.high)
    return node
