"""Guesses at the next output tokens: text that the grammar forces, and what followed the same words before.

A draft is checked against the model in one step, under the grammar's mask, so it changes how many tokens a step
yields and never which. Answers quote documents, and models repeat themselves: where the last words of an answer stand
in the prompt or earlier in the answer, the words after them there are good guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from engine.grammar import GrammarState
from engine.radix_cache import Node
from engine.sequence import Sequence

KEY_TOKENS = 3
"""A guess is what followed the last place where the same three tokens stand. Two were right too seldom to pay."""

FIRST_LENGTH = 3
MOST_LENGTH = 8
"""How many tokens are guessed at first, and at most after guesses that were right to the end."""

FORCED_TRIES = 4
"""A forced text is drafted whole this many times, and then as far as it proved right."""


class NodeIndex:
    """Where each key of tokens stands last in a node's tokens, which are kept: a node may be split later."""

    def __init__(self, tokens: np.ndarray) -> None:
        self._tokens = tokens
        keys = max(len(tokens) - KEY_TOKENS + 1, 0)
        columns = (tokens[offset : offset + keys].tolist() for offset in range(KEY_TOKENS))
        self._places = {key: place + KEY_TOKENS for place, key in enumerate(zip(*columns, strict=True))}

    def after(self, key: tuple[int, ...], length: int) -> list[int]:
        """Up to `length` tokens that follow the last place of `key`."""
        place = self._places.get(key)
        return [] if place is None else self._tokens[place : place + length].tolist()


@dataclass
class _Habit:
    """How guesses of repeated words have fared for one sequence."""

    indexes: list[NodeIndex] = field(default_factory=list)  # of its prompt, the longest part first
    length: int = FIRST_LENGTH
    failures: int = 0  # in a row
    pause: int = 0  # draws to let pass before the next guess
    forced: tuple[int, ...] = ()  # the forced text that the draft being checked is of; empty if it is repeated words


@dataclass
class _ForcedRecord:
    """How often each token of one forced text was right. The text is certain, how the model splits it is not."""

    tries: int = 0
    right: list[int] = field(default_factory=list)

    def worth_trying(self) -> int:
        """Leading tokens that were right at least half of the time."""
        if self.tries < FORCED_TRIES:
            return len(self.right)
        return next((i for i, right in enumerate(self.right) if 2 * right < self.tries), len(self.right))


class Drafter:
    """Proposes drafts for sequences, and stops where they do not come true.

    A sequence whose guess of repeated words was wrong at once sits out as many draws as it has failed in a row, so that
    guessing switches itself off where the answer does not quote. Forced text is remembered over all sequences.
    """

    def __init__(self) -> None:
        self._indexes: WeakKeyDictionary[Node, NodeIndex] = WeakKeyDictionary()
        self._habits: WeakKeyDictionary[Sequence, _Habit] = WeakKeyDictionary()
        self._forced: dict[tuple[int, ...], _ForcedRecord] = {}

    def propose(self, sequence: Sequence) -> list[int]:
        """Tokens that may come next, each allowed by the grammar after the ones before; often none.

        At least one token is left to be drawn after the draft, so the row's longest output is never passed.
        """
        most = sequence.max_output_tokens - len(sequence.output) - 1
        if most <= 0:
            return []
        habit = self._habits.get(sequence)
        if habit is None:
            habit = self._habits[sequence] = _Habit(self._indexes_of(sequence.leaf))
        habit.forced = tuple(sequence.grammar.forced_tokens()) if sequence.grammar is not None else ()
        if habit.forced:
            record = self._forced.setdefault(habit.forced, _ForcedRecord(right=[0] * len(habit.forced)))
            guesses = list(habit.forced[: record.worth_trying()])
        else:
            guesses = _repeat(sequence.output, habit)
        return _allowed_part(sequence.grammar, guesses[:most])

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """Hear how many of the `proposed` tokens of the last draft were right."""
        habit = self._habits.get(sequence)
        if habit is None or proposed == 0:
            return
        if habit.forced:
            record = self._forced[habit.forced]
            record.tries += 1
            for place in range(accepted):
                record.right[place] += 1
        elif accepted == proposed:
            habit.length = min(2 * habit.length, MOST_LENGTH)
            habit.failures = 0
        elif accepted == 0:
            habit.length = FIRST_LENGTH
            habit.failures += 1
            habit.pause = habit.failures

    def _indexes_of(self, leaf: Node) -> list[NodeIndex]:
        """An index a node, made once and shared by all sequences of a document."""
        indexes = []
        for node in sorted(leaf.path(), key=lambda node: len(node.tokens), reverse=True):
            if node not in self._indexes:
                self._indexes[node] = NodeIndex(node.tokens)
            indexes.append(self._indexes[node])
        return indexes


def _repeat(output: list[int], habit: _Habit) -> list[int]:
    if len(output) < KEY_TOKENS:
        return []
    if habit.pause > 0:
        habit.pause -= 1
        return []
    for index in habit.indexes:
        guesses = index.after(tuple(output[-KEY_TOKENS:]), habit.length)
        if guesses:
            return guesses
    key = output[-KEY_TOKENS:]
    for place in range(len(output) - 1, KEY_TOKENS - 1, -1):
        if output[place - KEY_TOKENS : place] == key:
            return output[place : place + habit.length]
    return []


def _allowed_part(grammar: GrammarState | None, guesses: list[int]) -> list[int]:
    """The leading guesses that the grammar allows; the grammar is left as it was."""
    if grammar is None or not guesses:
        return guesses
    allowed = 0
    for token in guesses:
        try:
            grammar.advance(token)
        except ValueError:
            break
        allowed += 1
    grammar.roll_back(allowed)
    return guesses[:allowed]
