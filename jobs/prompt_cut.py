"""Documents that are longer than the model's context, cut at their end (`run.on_too_long = "truncate"`).

Each row is cut to fit by itself. Nothing is lost by that: whatever their lengths, the beginnings of one document are
one path of the prefix tree, so rows of a document that are cut at different places still share all that they have in
common. And a row does not change, and need not be asked anew, because a longer question joins its document.
"""

from __future__ import annotations

import numpy as np

from engine.prefix_order import common_prefix_length
from grammars import TokenVocabulary
from jobs.prompt import PromptBuilder
from jobs.prompt_segments import SegmentedPrompt, SharedPrefix
from jobs.source import Document, InputRow

PREFIX_STEP = 256
"""Rows share their prefix up to a multiple of so many tokens as an object; what is left stands in each row's rest."""


class DocumentCut:
    """Cuts the documents of prompts that don't fit a context of so many tokens.

    A cut prompt leaves room for `max_tokens` of answer, or for half of what document and answer have together where
    that is less, and never for less than the shortest complete answer: an answer that may only be the shortest one
    says nothing.
    """

    def __init__(
        self, prompts: PromptBuilder, vocabulary: TokenVocabulary, *, context_length: int, max_tokens: int
    ) -> None:
        self._prompts = prompts
        self._context_length = context_length
        self._max_tokens = max_tokens
        self._within_character = _within_character(vocabulary)
        self._prefixes: dict[tuple[SharedPrefix, int], SharedPrefix] = {}

    def cut(
        self, prompt: SegmentedPrompt, row: InputRow, document: Document, shortest_answer_tokens: int
    ) -> SegmentedPrompt | None:
        """The prompt with as much of its document, from the beginning, as fits; None if not a token of it would.

        What prompt.document writes behind the document stays. Raises JobFileError for a template with which that
        can't be told.
        """
        before, behind = self._prompts.around_document(row, document)
        whole = prompt.prefix.document
        begins = common_prefix_length(self._prompts.text_ids(before), whole)
        tail = self._prompts.text_ids(behind) if behind else whole[:0]
        room = self._context_length - len(prompt.prefix.opening) - begins - len(tail) - len(prompt.rest)
        answer = max(shortest_answer_tokens, min(self._max_tokens, room // 2))
        end = self._whole_characters(whole, begins + room - answer)
        if end <= begins:
            return None
        base = end - end % PREFIX_STEP
        prefix = self._prefixes.get((prompt.prefix, base))
        if prefix is None:
            prefix = self._prefixes[prompt.prefix, base] = prompt.prefix.beginning(base)
        rest = np.concatenate([whole[base:end], tail, prompt.rest])
        return SegmentedPrompt(prefix, rest, end - base + len(tail))

    def _whole_characters(self, ids: np.ndarray, end: int) -> int:
        """`end`, or the place before it where a character ends."""
        while 0 < end < len(ids) and self._within_character[ids[end]]:
            end -= 1
        return end


def _within_character(vocabulary: TokenVocabulary) -> np.ndarray:
    """bool [vocabulary]: whether a token begins with a byte that goes on with a character of UTF-8."""
    within = np.zeros(vocabulary.size, dtype=bool)
    within[[token for token, content in vocabulary.tokens.items() if content[0] & 0b1100_0000 == 0b1000_0000]] = True
    return within
