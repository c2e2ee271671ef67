"""The text that must come next in an answer, such as `","quote":"`, and tokens that spell it.

Forced text is found byte by byte: while all tokens that a state allows begin with one byte and the answer may not
stop, that byte is certain. How a model splits the text into tokens is not certain, so the tokens are a proposal.
"""

from collections import defaultdict

from outlines_core import Index

from .vocabulary import TokenVocabulary

MOST_CHOICES = 64
"""A state that allows more tokens than this is inside free text, where nothing is forced; it is not looked at."""

MOST_BYTES = 256
MOST_COMPARED_CHOICES, FREE_TEXT_BYTES = 1024, 64
"""Where more tokens, or as many single bytes are allowed, it is not asked which tokens come to the same text: in free
text few do."""


class ForcedText:
    """Forced text of the states of one index. Nothing is computed twice."""

    def __init__(self, index: Index, vocabulary: TokenVocabulary) -> None:
        self._index = index
        self._vocabulary = vocabulary
        self._tokens: dict[int, list[int]] = {}
        self._byte_tokens = [vocabulary.single_bytes[byte] for byte in sorted(vocabulary.single_bytes, key=_letters)]
        self._texts: dict[int, bytes] = {}
        self._same: dict[int, dict[int, list[int]]] = {}

    def tokens(self, state: int) -> list[int]:
        """Ids of the longest tokens that spell the forced text after `state`; callers must not change the list."""
        if state not in self._tokens:
            self._tokens[state] = self._vocabulary.spell(self._text(state))
        return self._tokens[state]

    def same(self, state: int) -> dict[int, list[int]]:
        """The tokens allowed in `state` that come to the same text, by each of them; callers must not change it."""
        if state not in self._same:
            self._same[state] = self._find_same(state)
        return self._same[state]

    def _find_same(self, state: int) -> dict[int, list[int]]:
        if self._allows_bytes(state, FREE_TEXT_BYTES):
            return {}
        allowed = self._index.get_allowed_tokens(state) or []
        if len(allowed) > MOST_COMPARED_CHOICES:
            return {}
        by_text: defaultdict[bytes, list[int]] = defaultdict(list)
        for token in allowed:
            following = self._index.get_next_state(state, token)
            if token < self._vocabulary.size and following is not None:  # not the made-up end
                # Cut where all are known: from there the index is in one state, whose text is one.
                by_text[(self._vocabulary.tokens[token] + self._text(following))[:MOST_BYTES]].append(token)
        return {token: tokens for tokens in by_text.values() if len(tokens) > 1 for token in tokens}

    def _text(self, state: int) -> bytes:
        if state not in self._texts:
            self._texts[state] = self._find_text(state)
        return self._texts[state]

    def _find_text(self, state: int) -> bytes:
        text = b""
        following: int | None = state
        while following is not None and len(text) < MOST_BYTES and not self._allows_bytes(following, 2):
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

    def _allows_bytes(self, state: int, count: int) -> bool:
        """Whether `count` single bytes are allowed. In free text that is soon seen; listing its tokens takes long."""
        seen = 0
        for token in self._byte_tokens:
            seen += self._index.get_next_state(state, token) is not None
            if seen == count:
                return True
        return False


def _letters(byte: int) -> tuple[bool, int]:
    """Letters first, which free text allows."""
    return not chr(byte).isascii() or not chr(byte).isalpha(), byte
