"""How near a text comes to the wanted one: exact match and token F1 as SQuAD defines them.

Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), section 6.1, and its
evaluation script: lower case, ASCII punctuation and English articles removed, white space as one space, tokens at
spaces. Scripts that write no spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) follow Lewis et al.,
"MLQA" (2020): each of their characters is a token, and in a text that has one, punctuation of any script is removed.
"""

from __future__ import annotations

import string
from collections import Counter

import regex

_UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]", regex.VERSION1
)
_ANY_PUNCTUATION = regex.compile(rf"[\p{{P}}{regex.escape(string.punctuation)}]")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = regex.compile(r"\b(a|an|the)\b")


def answer_tokens(text: str) -> list[str]:
    """The tokens of a normalised text."""
    text = text.lower()
    if _UNSPACED.search(text):
        text = _UNSPACED.sub(r" \g<0> ", _ANY_PUNCTUATION.sub("", text))
    else:
        text = text.translate(_ASCII_PUNCTUATION)
    return _ARTICLES.sub(" ", text).split()


def exact_match(answer: str, gold: str) -> bool:
    """Whether two texts are the same once normalised."""
    return answer_tokens(answer) == answer_tokens(gold)


def token_f1(answer: str, gold: str) -> float:
    """Harmonic mean of the shares of the tokens of each that the other has; from 0 to 1.

    Where one has no tokens, as in SQuAD 2.0: 1 if neither has, else 0.
    """
    found, wanted = answer_tokens(answer), answer_tokens(gold)
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted))
