"""Compiled grammars and the states of answers in them.

An expression R is indexed as `\\x01(?:R)\\x02`, with two made-up tokens for these bytes. The first keeps outlines-core
from building an automaton that searches anywhere, the second from dropping tokens near the end of a text that may end
or go on, such as `1` before `12`. Neither is ever shown to the engine: the first is taken at once, the second means
"may stop".
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from outlines_core import Guide, Index

from .end_distances import EndDistances
from .errors import UnsupportedSchema
from .forced_text import ForcedText
from .token_distances import TokenDistances
from .vocabulary import END_BYTE, START_BYTE, TokenVocabulary

Words = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What any backend says of a compiled schema.

    `notes` says in words where the grammar allows less than the schema; `checked_after` has the JSON
    pointers of the keywords that only the check of the finished answer enforces, each with the reason why (none,
    unless the user was lenient).
    `shortest_tokens` is an upper bound on the tokens of the shortest complete answer: the fewest tokens that spell
    one particular answer, `shortest_text`.
    """

    schema: Any
    backend: str
    notes: tuple[str, ...]
    checked_after: tuple[tuple[str, str], ...]
    shortest_text: str
    shortest_tokens: int
    regex: str = ""  # of the whole answer, where there is one


class DescribedGrammar:
    """What both kinds of grammar are: a compiled schema over a vocabulary."""

    def __init__(self, about: Compiled, vocabulary: TokenVocabulary) -> None:
        self.about = about
        self.schema = about.schema
        self.backend = about.backend
        self.notes = about.notes
        self.checked_after = about.checked_after
        self.shortest_text = about.shortest_text
        self.shortest_tokens = about.shortest_tokens
        self.vocabulary = vocabulary


def build_index(regex: str, vocabulary: TokenVocabulary) -> Index:
    """The index of an expression between the two made-up tokens. Raises UnsupportedSchema if there can be none."""
    try:
        return Index(START_BYTE.decode() + f"(?:{regex})" + END_BYTE.decode(), vocabulary.outlines)
    except ValueError as problem:
        reason = str(problem).splitlines()[0][:200] if str(problem) else "unknown"
        raise UnsupportedSchema("", "", f"no index could be built ({reason})") from None


class JsonGrammar(DescribedGrammar):
    """The tokens that may come next in an answer to one schema. Shared by all rows; made by `compile_schema`.

    `about` says what was compiled; its fields can be read here too. `end_distances` are measured when first needed,
    unless they are given.
    """

    def __init__(
        self, about: Compiled, index: Index, vocabulary: TokenVocabulary, distances: EndDistances | None = None
    ) -> None:
        super().__init__(about, vocabulary)
        self.regex = about.regex
        self.index = index
        first = index.get_next_state(index.get_initial_state(), vocabulary.start_id)
        assert first is not None
        self._first = first
        self._words = -(-vocabulary.size // 32)
        self._rows: dict[int, Words] = {}
        self._next_distances: dict[int, tuple[NDArray[np.int32], NDArray[np.uint16]]] = {}
        self._must_stop: dict[int, bool] = {}
        self._only: dict[int, int | None] = {}
        self._given_distances = distances
        self.forced_text = ForcedText(index, vocabulary)

    @cached_property
    def end_distances(self) -> EndDistances:
        """How far the end is from each state."""
        return self._given_distances or EndDistances.of(self.index, self._first, self.vocabulary)

    @cached_property
    def _token_distances(self) -> TokenDistances:
        return TokenDistances(self.index, self.vocabulary, self.end_distances)

    def start(self) -> "JsonGrammarState":
        """A new state at the beginning of an answer."""
        return JsonGrammarState(self)

    def first_state(self) -> int:
        """The state of the index before an answer's first token."""
        return self._first

    def following(self, state: int, token_id: int) -> int | None:
        """The state after a token, or None if the token isn't allowed."""
        if not 0 <= token_id < self.vocabulary.size:
            return None
        return self.index.get_next_state(state, token_id)

    def may_stop(self, state: int) -> bool:
        """True if the answer is complete in this state."""
        return self.index.get_next_state(state, self.vocabulary.end_id) is not None

    def must_stop(self, state: int) -> bool:
        """True if the answer is complete in this state and nothing may follow."""
        if state not in self._must_stop:
            tokens = self.index.get_allowed_tokens(state) if self.may_stop(state) else None
            self._must_stop[state] = tokens == [self.vocabulary.end_id]
        return self._must_stop[state]

    def only_token(self, state: int, tokens: list[int]) -> int | None:
        """The one token that may follow, or None if there are several or the answer may stop; `tokens` as for `row`."""
        if state not in self._only:
            row = self.row(state, tokens)
            single = int(np.bitwise_count(row.view(np.uint32)).sum()) == 1 and not self.may_stop(state)
            word = int(row.nonzero()[0][0]) if single else 0
            self._only[state] = (
                word * 32 + int(row[word : word + 1].view(np.uint32)[0]).bit_length() - 1 if single else None
            )
        return self._only[state]

    def row(self, state: int, tokens: list[int]) -> Words:
        """The mask of a state, which `tokens` lead to from the start. Built once; callers must not change it."""
        row = self._rows.get(state)
        if row is None:
            guide = Guide(self.index)
            for token_id in (self.vocabulary.start_id, *tokens):
                guide.advance(token_id, return_tokens=False)
            # Wide enough for the made-up tokens too; then cut to the model's own.
            size = self.vocabulary.size
            buffer = np.zeros(-(-(size + 4) // 32), dtype=np.int32)
            guide.write_mask_into(buffer.ctypes.data, buffer.size, buffer.itemsize)
            row = buffer[: self._words].copy()
            if size % 32:
                row[-1] &= np.int32((1 << size % 32) - 1)
            row.setflags(write=False)
            self._rows[state] = row
        return row

    def row_in_time(self, state: int, tokens: list[int], tokens_left: int) -> Words:
        """As `row`, of the tokens after which the answer can still end with `tokens_left` tokens in all from here.

        Where even the shortest way is longer, the answer will be cut whatever comes next, and all tokens are allowed.
        """
        row = self.row(state, tokens)
        distances = self.end_distances
        if tokens_left > distances.most or distances.tokens.get(state, tokens_left + 1) > tokens_left:
            return row
        if state not in self._next_distances:
            self._next_distances[state] = self._token_distances.after(state)
        bits = np.zeros(self._words * 32, dtype=bool)
        allowed, needed = self._next_distances[state]
        bits[allowed[needed < tokens_left]] = True
        return np.packbits(bits, bitorder="little").view(np.int32)


class JsonGrammarState:
    """Where one answer stands; implements the engine's `GrammarState`."""

    __slots__ = ("_grammar", "_states", "_tokens")

    def __init__(self, grammar: JsonGrammar) -> None:
        self._grammar = grammar
        self._states = [grammar.first_state()]
        self._tokens: list[int] = []

    @property
    def may_stop(self) -> bool:
        """True when the text so far is a complete answer."""
        return self._grammar.may_stop(self._states[-1])

    @property
    def must_stop(self) -> bool:
        """True when the answer is complete and no token may follow."""
        return self._grammar.must_stop(self._states[-1])

    @property
    def only_token(self) -> int | None:
        """The token that must come next, if exactly one is allowed and the answer may not stop here."""
        return self._grammar.only_token(self._states[-1], self._tokens)

    def forced_tokens(self) -> list[int]:
        """Tokens that spell the text that must come next; a proposal, since the text may be split otherwise."""
        return self._grammar.forced_text.tokens(self._states[-1])

    def same_text(self) -> dict[int, list[int]]:
        """Tokens allowed next that come to the same text, by each of them."""
        return self._grammar.forced_text.same(self._states[-1])

    def write_mask(self, words: Words, tokens_left: int | None = None) -> None:
        """Write the tokens allowed next into `words`, int32 of at least [ceil(size / 32)], overwritten whole.

        With `tokens_left`, the tokens that this answer may still have, only those after which it can end in time.
        """
        if tokens_left is None:
            row = self._grammar.row(self._states[-1], self._tokens)
        else:
            row = self._grammar.row_in_time(self._states[-1], self._tokens, tokens_left)
        words[: row.size] = row
        words[row.size :] = 0

    def advance(self, token_id: int) -> None:
        """Accept one token. Raises ValueError, with the state unchanged, if it is not allowed here."""
        following = self._grammar.following(self._states[-1], token_id)
        if following is None:
            raise ValueError(f"Token {token_id} is not allowed after {len(self._tokens)} tokens of this answer.")
        self._states.append(following)
        self._tokens.append(token_id)

    def roll_back(self, tokens: int) -> None:
        """Take back the last `tokens` accepted tokens. Raises ValueError if there are fewer."""
        if not 0 <= tokens <= len(self._tokens):
            raise ValueError(f"Can't take back {tokens} of {len(self._tokens)} tokens.")
        if tokens:
            del self._states[-tokens:]
            del self._tokens[-tokens:]
