"""Questions about pattern trees that need an automaton: its size, and whether one language holds or meets another."""

from collections.abc import Iterable
from functools import lru_cache

from .characters import CharacterSet
from .errors import GrammarTooLarge
from .string_patterns import Alternatives, Characters, Node, Sequence

MAX_POSITIONS = 20_000
MAX_STEPS = 400_000


class _Automaton:
    """A nondeterministic automaton with empty moves; state 0 starts, `accepting` ends."""

    def __init__(self, node: Node) -> None:
        self.empty_moves: list[list[int]] = [[]]
        self.moves: list[list[tuple[CharacterSet, int]]] = [[]]
        self.accepting = self._build(node, 0)

    def _new(self) -> int:
        if len(self.moves) >= MAX_POSITIONS:
            raise GrammarTooLarge(f"a pattern needs more than {MAX_POSITIONS:,} positions")
        self.empty_moves.append([])
        self.moves.append([])
        return len(self.moves) - 1

    def _build(self, node: Node, start: int) -> int:
        if isinstance(node, Characters):
            end = self._new()
            self.moves[start].append((node.members, end))
            return end
        if isinstance(node, Sequence):
            for item in node.items:
                start = self._build(item, start)
            return start
        if isinstance(node, Alternatives):
            end = self._new()
            for option in node.options:
                branch = self._new()
                self.empty_moves[start].append(branch)
                self.empty_moves[self._build(option, branch)].append(end)
            return end
        for _ in range(node.low):
            start = self._build(node.item, start)
        if node.high is None:
            loop = self._new()
            self.empty_moves[start].append(loop)
            self.empty_moves[self._build(node.item, loop)].append(loop)
            return loop
        end = self._new()
        self.empty_moves[start].append(end)
        for _ in range(node.high - node.low):
            start = self._build(node.item, start)
            self.empty_moves[start].append(end)
        return end

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        reached = set(states)
        waiting = list(reached)
        while waiting:
            for state in self.empty_moves[waiting.pop()]:
                if state not in reached:
                    reached.add(state)
                    waiting.append(state)
        return frozenset(reached)

    def step(self, states: frozenset[int], character: str) -> frozenset[int]:
        return self.closure(target for state in states for members, target in self.moves[state] if character in members)


def _representatives(automata: Iterable[_Automaton]) -> list[str]:
    """One character for every class of characters that no move tells apart."""
    sets = {members for automaton in automata for moves in automaton.moves for members, _ in moves}
    starts = {0}
    for members in sets:
        for first, last in members.ranges:
            starts |= {first, last + 1}
    by_signature: dict[frozenset[CharacterSet], str] = {}
    for start in sorted(starts):
        if start <= 0x10FFFF:
            character = chr(start)
            signature = frozenset(members for members in sets if character in members)
            by_signature.setdefault(signature, character)
    return list(by_signature.values())


def _reachable_pairs(left: Node, right: Node) -> Iterable[tuple[bool, bool]]:
    """Whether each of the two accepts, for every pair of states that some string leads to."""
    automata = (_Automaton(left), _Automaton(right))
    characters = _representatives(automata)
    start = (automata[0].closure([0]), automata[1].closure([0]))
    seen, waiting = {start}, [start]
    work = 0
    while waiting:
        pair = waiting.pop()
        yield automata[0].accepting in pair[0], automata[1].accepting in pair[1]
        for character in characters:
            work += len(pair[0]) + len(pair[1])
            if work > MAX_STEPS:
                raise GrammarTooLarge("comparing two patterns takes too many steps")
            following = (automata[0].step(pair[0], character), automata[1].step(pair[1], character))
            if following[0] and following not in seen:
                seen.add(following)
                waiting.append(following)


@lru_cache(maxsize=4096)
def includes(outer: Node, inner: Node) -> bool:
    """True if every string of `inner` is one of `outer`; False also if that takes too long to find out."""
    try:
        return all(in_outer or not in_inner for in_inner, in_outer in _reachable_pairs(inner, outer))
    except GrammarTooLarge:
        return False


@lru_cache(maxsize=4096)
def are_disjoint(left: Node, right: Node) -> bool:
    """True if no string is in both; False also if that takes too long to find out."""
    try:
        return not any(in_left and in_right for in_left, in_right in _reachable_pairs(left, right))
    except GrammarTooLarge:
        return False


@lru_cache(maxsize=4096)
def count_states(node: Node) -> int:
    """The states of the tree's deterministic automaton. Raises GrammarTooLarge if there are too many to count."""
    automaton = _Automaton(node)
    characters = _representatives([automaton])
    start = automaton.closure([0])
    seen, waiting = {start}, [start]
    work = 0
    while waiting:
        states = waiting.pop()
        for character in characters:
            work += len(states)
            if work > MAX_STEPS:
                raise GrammarTooLarge("a pattern has too many states")
            following = automaton.step(states, character)
            if following and following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen)
