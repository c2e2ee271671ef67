"""Documents that say the same but are not the same bytes: counted, never merged.

Line ends, a byte order mark, trailing blanks and the Unicode form are seldom meant, and one such character near the
beginning makes a document share nothing with its twin.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.prefix_order import depth_first_order, first_positions
from jobs.source import Document

# Each takes one kind of difference away.
DIFFERENCES: Mapping[str, Callable[[str], str]] = {
    "byte order mark": lambda text: text.removeprefix("\ufeff"),
    "line ends": lambda text: text.replace("\r\n", "\n").replace("\r", "\n"),
    "Unicode form": lambda text: unicodedata.normalize("NFC", text),
    "trailing blanks": lambda text: "\n".join(line.rstrip() for line in text.split("\n")).rstrip(),
}


@dataclass(frozen=True)
class NearDocuments:
    """Groups of near-equal documents, by their hashes in order of the input.

    `repeats` is how many documents could be left out, `tokens` how many tokens they compute that would be shared if
    they were equal, `differences` how many documents differ from the first of their group in what.
    """

    groups: list[tuple[str, ...]]
    repeats: int
    tokens: int
    differences: Mapping[str, int]

    def sentence(self) -> str:
        """What it costs, in words; empty if nothing."""
        if not self.groups:
            return ""
        kinds = ", ".join(f"{name} in {count:,}" for name, count in self.differences.items())
        return (
            f"{self.repeats:,} documents differ from another one only by {kinds}; they are not merged and compute "
            f"{self.tokens:,} tokens again"
        )


def near_documents(documents: Iterable[Document], token_ids: Callable[[str], np.ndarray]) -> NearDocuments:
    """Find near-equal documents; `token_ids` gives a text's int32 ids, and is asked only for those that are.

    Holds one digest a document, and the ids of one group at a time.
    """
    by_form: dict[bytes, list[Document]] = defaultdict(list)
    for document in documents:
        by_form[_form_digest(document.text)].append(document)
    groups, tokens = [], 0
    differences = dict.fromkeys(DIFFERENCES, 0)
    for group in by_form.values():
        if len(group) < 2:
            continue
        groups.append(tuple(document.document_hash for document in group))
        tokens += _tokens_repeated([token_ids(document.text) for document in group])
        for document in group[1:]:
            for name in _differences(group[0].text, document.text):
                differences[name] += 1
    repeats = sum(len(group) - 1 for group in groups)
    return NearDocuments(groups, repeats, tokens, {name: count for name, count in differences.items() if count})


def _form_digest(text: str) -> bytes:
    for take_away in DIFFERENCES.values():
        text = take_away(text)
    return hashlib.sha256(text.encode()).digest()


def _differences(first: str, other: str) -> list[str]:
    """What has to be taken away before two near-equal texts are equal."""
    found = []
    for name, take_away in DIFFERENCES.items():
        plain_first, plain_other = take_away(first), take_away(other)
        # A step counts if it changes the two differently; one that both need alike is no difference.
        if (plain_first == first) != (plain_other == other) or (first != other and plain_first == plain_other):
            found.append(name)
        first, other = plain_first, plain_other
    return found


def _tokens_repeated(texts: list[np.ndarray]) -> int:
    """Positions in the prefix tree of the texts beyond those of the longest."""
    ordered = [texts[index] for index in depth_first_order(texts)]
    return sum(first_positions(ordered)) - max(map(len, ordered))
