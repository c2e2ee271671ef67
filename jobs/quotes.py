"""Where a quote stands in its document: offsets in code points, found in time linear in the document.

A schema marks a string as a quote with the annotation `"x-docqa": "quote"`. The text is looked for as it is; if it is
not there, both texts are folded and it is looked for again:

- Unicode normalisation form C (NFC);
- every run of white space becomes one space, and white space around the quote is dropped;
- typographic quotation marks and apostrophes become `"` and `'`, dashes and the minus sign `-`.

Letters are never changed beyond that: another case, word or ellipsis is another text.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property

_DOUBLE_QUOTES = "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb\u300c\u300d\u300e\u300f\u301d\u301e\u301f\uff02"
_SINGLE_QUOTES = "\u2018\u2019\u201a\u201b\u2032\u2039\u203a\u00b4\u0060\u02bc\uff07"
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_FOLDED = {
    **dict.fromkeys(_DOUBLE_QUOTES, '"'),
    **dict.fromkeys(_SINGLE_QUOTES, "'"),
    **dict.fromkeys(_DASHES, "-"),
}
_FOLD = re.compile(rf"\s\s+|[^\S ]|[{''.join(_FOLDED)}]")


@dataclass(frozen=True, slots=True)
class QuotePlace:
    """Where a quote stands: `document[start:end]`, in code points; both None if it was not found.

    `exact`: the document has the quote letter for letter, so `document[start:end] == quote`. Otherwise the two are
    equal once folded, but for a cluster of combining characters that the quote has only a part of.
    """

    start: int | None = None
    end: int | None = None
    exact: bool = False

    @property
    def found(self) -> bool:
        """Whether the document has the quote."""
        return self.start is not None


class QuoteFinder:
    """Finds quotes in one document; of several places, the first. Folding is done once, when it is first needed."""

    def __init__(self, document: str) -> None:
        self.document = document

    def find(self, quote: str) -> QuotePlace:
        """The place of a quote, in time linear in the document and the quote. A blank quote is never found."""
        if not quote.strip():
            return QuotePlace()
        start = self.document.find(quote)
        if start >= 0:
            return QuotePlace(start, start + len(quote), exact=True)
        folded = fold(quote).strip()
        start = self._folded.text.find(folded)
        if start < 0:
            return QuotePlace()
        return QuotePlace(*self._composed.original_span(*self._folded.original_span(start, start + len(folded))))

    @cached_property
    def _composed(self) -> _Rewritten:
        return _compose(self.document)

    @cached_property
    def _folded(self) -> _Rewritten:
        return _Rewritten.of(self._composed.text, _FOLD, _folded_piece)


def fold(text: str) -> str:
    """A text in the form in which quotes are compared, see the module."""
    return _FOLD.sub(lambda found: _folded_piece(found[0]), unicodedata.normalize("NFC", text))


@dataclass
class _Rewritten:
    """A text some pieces of which were replaced, and where each piece stood before.

    Piece i is `text[starts[i]:ends[i]]` now and `original_starts[i]` to `original_ends[i]` in the original; what is
    between pieces is unchanged.
    """

    text: str
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    original_starts: list[int] = field(default_factory=list)
    original_ends: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, original: str, pattern: re.Pattern[str], replace: Callable[[str], str]) -> _Rewritten:
        """Replace every match of `pattern` whose replacement is another text."""
        rewritten = cls("")
        parts: list[str] = []
        length = copied = 0
        for found in pattern.finditer(original):
            piece = replace(found[0])
            if piece == found[0]:
                continue
            unchanged = original[copied : found.start()]
            parts += [unchanged, piece]
            length += len(unchanged)
            rewritten.starts.append(length)
            length += len(piece)
            rewritten.ends.append(length)
            rewritten.original_starts.append(found.start())
            rewritten.original_ends.append(found.end())
            copied = found.end()
        rewritten.text = "".join([*parts, original[copied:]])
        return rewritten

    def original_span(self, start: int, end: int) -> tuple[int, int]:
        """The smallest span of the original that covers `text[start:end]`, which is not empty."""
        return self._original_start(start), self._original_end(end)

    def _original_start(self, position: int) -> int:
        piece = bisect_right(self.starts, position) - 1
        if piece < 0:
            return position
        if position < self.ends[piece]:
            return self.original_starts[piece]
        return self.original_ends[piece] + position - self.ends[piece]

    def _original_end(self, position: int) -> int:
        piece = bisect_left(self.starts, position) - 1
        if piece < 0:
            return position
        if position <= self.ends[piece]:
            return self.original_ends[piece]
        return self.original_ends[piece] + position - self.ends[piece]


def _folded_piece(piece: str) -> str:
    return _FOLDED.get(piece, " ")


def _compose(text: str) -> _Rewritten:
    """The text in NFC. It is cut into clusters that compose among themselves only, and each is normalised alone."""
    if unicodedata.is_normalized("NFC", text):
        return _Rewritten(text)
    letters = set(text)
    joining = "".join(re.escape(letter) for letter in sorted(letters) if _joins_what_precedes(letter))
    changing = "".join(
        re.escape(letter) for letter in sorted(letters) if unicodedata.normalize("NFC", letter) != letter
    )
    kinds = ([f".[{joining}]+"] if joining else []) + ([f"[{changing}]"] if changing else [])
    pattern = re.compile("|".join(kinds), re.DOTALL)
    return _Rewritten.of(text, pattern, lambda cluster: unicodedata.normalize("NFC", cluster))


def _joins_what_precedes(letter: str) -> bool:
    """Whether normalising may move a letter before, or merge it with, the one that stands before it.

    See "Stable code points" and `NFC_Quick_Check` in Unicode Standard Annex 15.
    """
    first = unicodedata.normalize("NFD", letter)[0]
    return unicodedata.combining(first) != 0 or first in _composing_starters()


@cache
def _composing_starters() -> frozenset[str]:
    """Characters of combining class 0 that compose with one before them: vowel signs and Hangul's vowels and finals."""
    found = {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            second = chr(int(parts[1], 16))
            if unicodedata.combining(second) == 0:
                found.add(second)
    return frozenset(found)
