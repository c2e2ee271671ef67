"""Guesses at the next output tokens: what followed the same words before, and how forced text was split before.

A draft is checked against the model in one step, under the grammar's mask, so it changes how many tokens a step
yields and never which. Answers quote documents, and models repeat themselves: where the last words of an answer stand
in the prompt or earlier in the answer, the words after them there are good guesses. Text that the grammar forces can be
split into tokens in several ways, but a model mostly splits a text as it did before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from engine.radix_node import Node
from engine.repeats import MOST_SAME, TokenIndex
from engine.sequence import Sequence

MOST_LENGTH = 12
"""How many tokens are guessed at most."""

PRIOR_SHARE, PRIOR_TRIES = 0.7, 2
"""A guess that was never tried is taken to be right this often; the belief weighs as much as so many tries."""

TRY_EVERY = 32
"""Of first guesses that do not seem worth it one in so many is tried all the same, to find out."""

Forced = tuple[int, ...]
"""A forced text, by the longest tokens that spell it."""


@dataclass
class _Record:
    """How often guesses of one kind were right."""

    right: int = 0
    tries: int = 0
    passed_over: int = 0

    @property
    def share(self) -> float:
        """How often such a guess is right, as far as is known."""
        return (self.right + PRIOR_SHARE * PRIOR_TRIES) / (self.tries + PRIOR_TRIES)

    def is_to_be_tried(self) -> bool:
        """Asked where a guess does not seem worth its row: True once in TRY_EVERY times."""
        self.passed_over += 1
        return self.passed_over % TRY_EVERY == 0


class _Splits:
    """Which tokens were drawn where a text was forced."""

    def __init__(self) -> None:
        self._drawn: defaultdict[Forced, Counter[int]] = defaultdict(Counter)

    def learn(self, forced: Forced, token: int) -> None:
        self._drawn[forced][token] += 1

    def guess(self, forced: Forced) -> tuple[int, float]:
        """The likeliest next token and how sure that is; one draw of the longest token is taken as seen."""
        drawn = self._drawn[forced]
        token, count = drawn.most_common(1)[0] if drawn else (forced[0], 0)
        return token, (count + PRIOR_SHARE) / (drawn.total() + 1)


@dataclass
class _Habit:
    """Where to look up one sequence's words, and what its last draft was made of."""

    indexes: list[TokenIndex]  # of its output, and of its prompt, the longest part first
    start: int = 0  # the place in the output where its last draft began
    records: list[_Record | None] = field(default_factory=list)  # of each drafted token, None where text was forced
    forced: list[Forced] = field(default_factory=list)  # the text forced at each place of the draft and behind it


class Drafter:
    """Proposes drafts for sequences, where they are likely enough to be right.

    A token that is right saves its sequence a step, so the sequence's share of a step's fixed cost; every drafted token
    costs a row. With `fixed_cost_rows` the rows that cost as much as a step without any, and n sequences running, a
    token pays if it is right with a probability of at least n / (n + fixed_cost_rows).

    How often a repeat goes on is known by how many tokens it has gone on for, those that were guessed included.
    """

    def __init__(self, fixed_cost_rows: int) -> None:
        self._fixed_cost_rows = fixed_cost_rows
        self._indexes: WeakKeyDictionary[Node, TokenIndex] = WeakKeyDictionary()
        self._habits: WeakKeyDictionary[Sequence, _Habit] = WeakKeyDictionary()
        self._repeats = [_Record() for _ in range(MOST_SAME + 1)]  # by how many tokens before are the same
        self._splits = _Splits()

    def propose(self, sequence: Sequence, running: int) -> list[int]:
        """Tokens that may come next, each allowed by the grammar after the ones before; often none.

        `running` sequences share the step. At least one token is left to be drawn after the draft, so the row's
        longest output is never passed.
        """
        habit = self._habits.get(sequence)
        if habit is None:
            habit = self._habits[sequence] = _Habit(self._indexes_of(sequence))
        habit.start, habit.records, habit.forced = len(sequence.output), [], []
        most = min(sequence.max_output_tokens - len(sequence.output) - 1, MOST_LENGTH)
        same, repeat = _longest_repeat(habit.indexes, sequence.output)
        grammar = sequence.grammar
        guesses: list[int] = []
        probability, least = 1.0, running / (running + self._fixed_cost_rows)
        while probability >= least:
            forced = tuple(grammar.forced_tokens()) if grammar is not None else ()
            habit.forced.append(forced)
            place = len(guesses)
            if place >= most or (not forced and place >= len(repeat)):
                break
            record = None
            if forced:
                token, share = self._splits.guess(forced)
                if repeat[place : place + 1] != [token]:
                    repeat = []
            else:
                record = self._repeats[min(same + place, MOST_SAME)]
                token, share = repeat[place], record.share
            probability *= share
            if probability < least and not (place == 0 and record is not None and record.is_to_be_tried()):
                break
            if grammar is not None:
                try:
                    grammar.advance(token)
                except ValueError:
                    break
            guesses.append(token)
            habit.records.append(record)
        if grammar is not None:
            grammar.roll_back(len(guesses))
        return guesses

    def learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """Hear that `proposed` tokens of the last draft were checked and `accepted` right, and see what was drawn."""
        habit = self._habits.get(sequence)
        if habit is None:
            return
        for forced, token in zip(habit.forced, sequence.output[habit.start : habit.start + accepted + 1], strict=False):
            if forced:
                self._splits.learn(forced, token)
        for place, record in enumerate(habit.records[: min(accepted + 1, proposed)]):
            if record is not None:
                record.tries += 1
                record.right += place < accepted

    def _indexes_of(self, sequence: Sequence) -> list[TokenIndex]:
        """An index a node, made once and shared by all sequences of a document, behind the output's own."""
        indexes = [TokenIndex(sequence.output)]
        for node in sorted(sequence.leaf.path(), key=lambda node: len(node.tokens), reverse=True):
            if node not in self._indexes:
                self._indexes[node] = TokenIndex(node.tokens.tolist())  # kept: a node may be split later
            indexes.append(self._indexes[node])
        return indexes


def _longest_repeat(indexes: list[TokenIndex], output: list[int]) -> tuple[int, list[int]]:
    """How many last tokens of the output stand before the best place, of the first such index, and what follows."""
    longest: tuple[int, list[int]] = 0, []
    for index in indexes:
        found = index.longest_repeat(output, MOST_LENGTH)
        if found[0] > longest[0]:
            longest = found
        if longest[0] == MOST_SAME:
            break
    return longest
