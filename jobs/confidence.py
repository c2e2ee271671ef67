"""How sure a model was of each top-level property of its answer.

The confidence of a property is the probability of the tokens that spell its value, each given what came before and
among the tokens that the schema's grammar allowed there, at temperature 1:

    exp(sum of log p(token | prompt, answer so far, allowed tokens) over the tokens of the value).

So it is of the decoding under the grammar, not of the model left to itself: where the grammar leaves one choice it is
1. Tokens that come to the same text count together (`GrammarState.same_text`): with `true` and `false`, `f` is as good
as `false`. In free text a text can still be split in several ways, of which the written one counts: there it is a lower
bound. Long values have small ones: they are to be compared within a property.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()
_DIGITS = 6
"""Significant digits that are kept; kernels agree on about as many."""


def answer_confidence(text: str, tokens: Sequence[bytes], log_probabilities: Sequence[float]) -> str:
    """The confidence of a valid answer as JSON: an object by property name, or of what is no object one number.

    `tokens` are the bytes of `text`. `log_probabilities` has one for each, and one more for a stop token if there was
    one. A token that holds characters of two values counts for both. The token after a number counts for it: there it
    was decided that no digit follows. null where a probability is unknown (NaN).
    """
    assert len(tokens) <= len(log_probabilities) <= len(tokens) + 1
    ends = list(accumulate(len(token) for token in tokens))
    starts = [0, *ends]  # of the tokens, and of what came after them
    found: dict[str | None, float | None] = {}
    for name, start, end in _value_spans(text):
        first_byte = len(text[:start].encode())
        end_byte = first_byte + len(text[start:end].encode())
        first, past = bisect_right(ends, first_byte), bisect_left(starts, end_byte)
        if text[end - 1].isdigit() and starts[past] == end_byte:  # nothing but a number ends in a digit
            past += 1
        found[name] = _probability(log_probabilities[first:past])
    return json.dumps(found.get(None) if None in found else found, ensure_ascii=False, allow_nan=False)


def _probability(logarithms: Sequence[float]) -> float | None:
    total = sum(logarithms)
    return None if math.isnan(total) else float(f"{math.exp(min(total, 0.0)):.{_DIGITS}g}")


def _value_spans(text: str) -> Iterator[tuple[str | None, int, int]]:
    """Of each top-level property its name and where its value begins and ends; of what is no object one, named None."""
    place = _after_blank(text, 0)
    if text[place] != "{":
        yield None, place, _DECODER.raw_decode(text, place)[1]
        return
    place = _after_blank(text, place + 1)
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, place)
        start = _after_blank(text, _after_blank(text, place) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield name, start, end
        place = _after_blank(text, end)
        if text[place] == ",":
            place = _after_blank(text, place + 1)


def _after_blank(text: str, place: int) -> int:
    blank = _BLANK.match(text, place)
    assert blank is not None
    return blank.end()
