"""The text that must come next in an answer, such as `","quote":"`, and tokens that spell it.

Forced text is found byte by byte: while all tokens that a state allows begin with one byte and the answer may not
stop, that byte is certain. How a model splits the text into tokens is not certain, so the tokens are a proposal.
"""

from outlines_core import Index

from .vocabulary import TokenVocabulary

MOST_CHOICES = 64
"""A state that allows more tokens than this is inside free text, where nothing is forced; it is not looked at."""

MOST_BYTES = 256


class ForcedText:
    """Forced text of the states of one index. Nothing is computed twice."""

    def __init__(self, index: Index, vocabulary: TokenVocabulary) -> None:
        self._index = index
        self._vocabulary = vocabulary
        self._tokens: dict[int, list[int]] = {}

    def tokens(self, state: int) -> list[int]:
        """Ids of the longest tokens that spell the forced text after `state`; callers must not change the list."""
        if state not in self._tokens:
            self._tokens[state] = self._vocabulary.spell(self._text(state))
        return self._tokens[state]

    def _text(self, state: int) -> bytes:
        text = b""
        following: int | None = state
        while following is not None and len(text) < MOST_BYTES:
            allowed = self._index.get_allowed_tokens(following)
            if allowed is None or len(allowed) > MOST_CHOICES:
                break
            # The made-up end token has no entry, so a state that may stop yields None beside the bytes.
            first_bytes = {
                self._vocabulary.tokens[token][:1] if token < self._vocabulary.size else None for token in allowed
            }
            byte = first_bytes.pop() if len(first_bytes) == 1 else None
            if byte is None or byte not in self._vocabulary.usable:
                break
            text += byte
            following = self._index.get_next_state(following, self._vocabulary.usable[byte][0])
        return text
