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

MOST_LENGTH = 12
"""How many tokens are guessed at most."""

PRIOR_SHARE, PRIOR_TRIES = 0.7, 2
"""A guess that was never tried is taken to be right this often; the belief weighs as much as so many tries."""

TRY_EVERY = 32
"""Of chances that do not seem worth it one in so many is taken all the same, to find out."""


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
class _Record:
    """How often guesses of one kind were right, token by token: `right[i]` of `tries[i]` that were right before i."""

    chances: int = 0
    tries: list[int] = field(default_factory=lambda: [0] * MOST_LENGTH)
    right: list[int] = field(default_factory=lambda: [0] * MOST_LENGTH)

    def worthwhile(self, length: int, least_share: float) -> int:
        """How many of `length` guessed tokens to check, if each must be right with a probability of `least_share`."""
        self.chances += 1
        probability, share = 1.0, PRIOR_SHARE
        for place in range(min(length, MOST_LENGTH)):
            share = (self.right[place] + share * PRIOR_TRIES) / (self.tries[place] + PRIOR_TRIES)
            probability *= share
            if probability < least_share:
                return place if place or self.tries[0] > self.chances // TRY_EVERY else 1
        return min(length, MOST_LENGTH)

    def learn(self, proposed: int, accepted: int) -> None:
        """Of `proposed` tokens the first `accepted` were right, and the next (if there is one) wrong."""
        for place in range(min(accepted + 1, proposed)):
            self.tries[place] += 1
            self.right[place] += place < accepted


@dataclass
class _Habit:
    """What is known about one sequence: where to look words up, and which record its last draft belongs to."""

    indexes: list[NodeIndex]  # of its prompt, the longest part first
    last_repeat: str = "none"  # or "right" to the end, "partly", "wrong" at once
    record: _Record | None = None  # of the draft that is being checked
    is_repeat: bool = False


class Drafter:
    """Proposes drafts for sequences, where they are likely enough to be right.

    A token that is right saves its sequence a step, so the sequence's share of a step's fixed cost; every drafted token
    costs a row. With `fixed_cost_rows` the rows that cost as much as a step without any, and n sequences running, a
    token pays if it is right with a probability of at least n / (n + fixed_cost_rows).

    What is known is kept for each forced text, and for repeated words by how the sequence's last guess fared.
    """

    def __init__(self, fixed_cost_rows: int) -> None:
        self._fixed_cost_rows = fixed_cost_rows
        self._indexes: WeakKeyDictionary[Node, NodeIndex] = WeakKeyDictionary()
        self._habits: WeakKeyDictionary[Sequence, _Habit] = WeakKeyDictionary()
        self._forced: dict[tuple[int, ...], _Record] = {}
        self._repeated: dict[str, _Record] = {}

    def propose(self, sequence: Sequence, running: int) -> list[int]:
        """Tokens that may come next, each allowed by the grammar after the ones before; often none.

        `running` sequences share the step. At least one token is left to be drawn after the draft, so the row's
        longest output is never passed.
        """
        most = sequence.max_output_tokens - len(sequence.output) - 1
        if most <= 0:
            return []
        habit = self._habits.get(sequence)
        if habit is None:
            habit = self._habits[sequence] = _Habit(self._indexes_of(sequence.leaf))
        forced = tuple(sequence.grammar.forced_tokens()) if sequence.grammar is not None else ()
        if forced:
            guesses, record = list(forced), self._forced.setdefault(forced, _Record())
        else:
            guesses = _repeat(sequence.output, habit.indexes)
            record = self._repeated.setdefault(habit.last_repeat, _Record())
        guesses = _allowed_part(sequence.grammar, guesses[:most])
        habit.record, habit.is_repeat = record, not forced
        return guesses[: record.worthwhile(len(guesses), running / (running + self._fixed_cost_rows))]

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """Hear how many of the `proposed` tokens of the last draft were right."""
        habit = self._habits.get(sequence)
        if habit is None or habit.record is None or proposed == 0:
            return
        habit.record.learn(proposed, accepted)
        if habit.is_repeat:
            habit.last_repeat = "right" if accepted == proposed else "partly" if accepted else "wrong"

    def _indexes_of(self, leaf: Node) -> list[NodeIndex]:
        """An index a node, made once and shared by all sequences of a document."""
        indexes = []
        for node in sorted(leaf.path(), key=lambda node: len(node.tokens), reverse=True):
            if node not in self._indexes:
                self._indexes[node] = NodeIndex(node.tokens)
            indexes.append(self._indexes[node])
        return indexes


def _repeat(output: list[int], indexes: list[NodeIndex]) -> list[int]:
    """What followed the output's last tokens where they stand in the prompt, or else earlier in the output."""
    if len(output) < KEY_TOKENS:
        return []
    key = output[-KEY_TOKENS:]
    for index in indexes:
        guesses = index.after(tuple(key), MOST_LENGTH)
        if guesses:
            return guesses
    for place in range(len(output) - 1, KEY_TOKENS - 1, -1):
        if output[place - KEY_TOKENS : place] == key:
            return output[place : place + MOST_LENGTH]
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
