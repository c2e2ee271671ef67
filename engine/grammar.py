"""What the engine needs of a grammar, and nothing more: any object with these methods constrains a row."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np


class GrammarState(Protocol):
    """Where one answer stands in its grammar. Not shared between rows."""

    @property
    def may_stop(self) -> bool:
        """True when the text so far is a complete answer: the engine then also allows its stop ids."""

    @property
    def must_stop(self) -> bool:
        """True when the answer is complete and no token may follow: the engine ends the row without a forward pass."""

    def write_mask(self, words: np.ndarray, tokens_left: int | None = None) -> None:
        """Write the tokens allowed next into `words`, one bit a token id, least significant bit first.

        `words` is int32 of shape [ceil(vocabulary_size / 32)], overwritten whole. Stop ids are never set here.
        `tokens_left` is how many tokens the answer may still have: with it, a grammar leaves out tokens after which
        the answer could not end in time, as long as it can end in time at all.
        """

    def advance(self, token_id: int) -> None:
        """Accept one token. Raises ValueError, with the state unchanged, if it is not allowed here."""

    def roll_back(self, tokens: int) -> None:
        """Take back the last `tokens` accepted tokens."""

    @property
    def only_token(self) -> int | None:
        """The token that must come next, if the grammar allows exactly one and the answer may not stop here."""

    def forced_tokens(self) -> list[int]:
        """Tokens that spell the text that must come next, as far as it is certain; a draft, checked like any other."""

    def same_text(self) -> Mapping[int, Sequence[int]]:
        """Tokens allowed next that come to the same text, by each of them; one that stands alone is left out.

        Tokens that spell it but are not allowed may be among them.

        With the values `true` and `false`, the tokens `f`, `fal` and `false` come to the same, since after each of them
        the same text is certain. Only of requests that ask for log-probabilities.
        """


class Grammar(Protocol):
    """A compiled grammar, shared by every row that uses it."""

    def start(self) -> GrammarState:
        """A new state at the beginning of an answer."""
