"""Where the last tokens of a text stand elsewhere, and what follows there: a hash chain, as in LZ77 compressors."""

from __future__ import annotations

KEY_TOKENS = 3
"""A repeat begins where so many tokens are the same. Two were followed by the same token too seldom to pay."""

MOST_SAME = 8
"""More tokens than this are not compared: what follows is the same no more often."""

MOST_PLACES = 16
"""So many places with the same key are looked at, the last ones first."""


class TokenIndex:
    """The places of each key in a list of tokens, which may grow: it is read further when next asked."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._last: dict[tuple[int, ...], int] = {}  # the place behind the last occurrence of a key ...
        self._before: list[int] = []  # ... and for each place behind a key, the one behind the occurrence before, or 0

    def longest_repeat(self, text: list[int], length: int) -> tuple[int, list[int]]:
        """How many last tokens of `text` (MOST_SAME at most) stand in the index too, and up to `length` that follow.

        Of places with equally many the last one counts. Returns (0, []) where the key does not stand.
        """
        self._read_on()
        longest, found = 0, 0
        place = self._last.get(tuple(text[-KEY_TOKENS:]), 0)
        for _ in range(MOST_PLACES):
            if place == 0:
                break
            if place < len(self._tokens):  # something follows
                same = self._same_before(place, text)
                if same > longest:
                    longest, found = same, place
                if longest == MOST_SAME:
                    break
            place = self._before[place - KEY_TOKENS]
        return longest, self._tokens[found : found + length] if longest else []

    def _same_before(self, place: int, text: list[int]) -> int:
        same = KEY_TOKENS
        most = min(MOST_SAME, place, len(text))
        while same < most and self._tokens[place - 1 - same] == text[-1 - same]:
            same += 1
        return same

    def _read_on(self) -> None:
        for end in range(len(self._before) + KEY_TOKENS, len(self._tokens) + 1):
            key = tuple(self._tokens[end - KEY_TOKENS : end])
            self._before.append(self._last.get(key, 0))
            self._last[key] = end
