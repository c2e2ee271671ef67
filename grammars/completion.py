"""A short way to the end of an answer that llguidance parses: not the shortest, but found without a search."""

import numpy as np
from llguidance import LLMatcher

from .vocabulary import TokenVocabulary

_IN_STRING = (b'"}', b'"', b"0", b"a", b"A", b"-", b".", b"/", b":", b"@", b" ", b"1")
_OUTSIDE = (
    b"}",
    b"]",
    b"0",
    b"1",
    b"null",
    b"n",
    b"true",
    b"t",
    b'""',
    b'"',
    b"[]",
    b"[",
    b"{}",
    b"{",
    b"-",
    b":",
    b",",
)
"""What is tried first: to close, then the shortest values."""


def shortest_completion(matcher: LLMatcher, text: bytes, vocabulary: TokenVocabulary, most: int) -> list[int] | None:
    """Tokens that end the answer whose text so far is `text`; `matcher` stays as it is.

    None if no end is in sight after `most` tokens; fewer may spell the same text then.
    """
    matcher = matcher.deep_copy()
    inside = ends_in_string(text)
    tokens: list[int] = []
    used: dict[int, int] = {}
    while not matcher.is_accepting():
        if len(tokens) >= most or matcher.is_error() or matcher.is_stopped():
            return None
        forced = vocabulary.spell(bytes(matcher.compute_ff_bytes()))
        taken = matcher.try_consume_tokens(forced) if forced else 0
        chosen = forced[:taken]
        if not chosen:
            allowed = _choice(matcher, vocabulary, inside, used)
            if allowed is None:
                return None
            used[allowed] = used.get(allowed, 0) + 1
            if not matcher.consume_token(allowed):
                return None
            chosen = [allowed]
        for token in chosen:
            inside = ends_in_string(vocabulary.tokens[token], inside)
        tokens += chosen
    spelling = b"".join(vocabulary.tokens[token] for token in tokens)
    if len(tokens) > 1 and all(bytes([byte]) in vocabulary.usable for byte in set(spelling)):
        tokens = vocabulary.shortest_spelling(spelling)
    return tokens


def _choice(matcher: LLMatcher, vocabulary: TokenVocabulary, inside: bool, used: dict[int, int]) -> int | None:
    """The token to take: one that closes, else the one that was taken least often, so that no loop holds for ever."""
    buffer = np.zeros(-(-(vocabulary.size + 1) // 32), dtype=np.int32)
    matcher.unsafe_compute_mask_ptr(buffer.ctypes.data, buffer.nbytes)
    bits = np.unpackbits(buffer.view(np.uint8), bitorder="little")[: vocabulary.size]
    wanted = [
        vocabulary.usable[piece][0] for piece in (_IN_STRING if inside else _OUTSIDE) if piece in vocabulary.usable
    ]
    allowed = [token for token in wanted if bits[token]]
    closing = [token for token in allowed if vocabulary.tokens[token][:1] in (b'"' if inside else b"}]")]
    if closing:
        return closing[0]
    shorter = [token for token in vocabulary.single_bytes.values() if bits[token]]
    allowed += shorter or bits.nonzero()[0].tolist()[:64]
    return min(allowed, key=lambda token: used.get(token, 0), default=None)


def ends_in_string(text: bytes, inside: bool = False) -> bool:
    """True if JSON text ends inside a string. A token that begins behind a backslash is read as if it didn't."""
    escaped = False
    for byte in text:
        if escaped:
            escaped = False
        elif byte == 0x5C and inside:
            escaped = True
        elif byte == 0x22:
            inside = not inside
    return inside
