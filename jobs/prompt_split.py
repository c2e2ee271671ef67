"""Documents that are longer than the model's context, in overlapping pieces (`run.on_too_long = "split"`).

Where a document is cut depends on its text, the instructions before it and the settings, and not on the question: so
all questions on a document are asked of the same pieces, and share them.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from jobs.errors import JobFileError
from jobs.job_settings import SplitSettings
from jobs.plan_rows import Part
from jobs.prompt import PromptBuilder
from jobs.prompt_segments import Segment, SegmentedPrompt, SharedPrefix
from jobs.question_template import AnswersTemplate
from jobs.source import Document, InputRow
from jobs.source_rows import text_hash
from jobs.spill_file import SpillFile

QUESTION_SHARE = 4
"""One part in so many of what instructions and answer leave is kept for the question, where piece_tokens is auto."""

NEAR = 4
"""A piece ends at the end of a paragraph or sentence if there is one in its last part of so many."""

# From the best place to cut to the worst.
_ENDS = tuple(
    re.compile(pattern)
    for pattern in (r"\n\s*\n", r"\n", r"[.!?\u2026][\"'\u201d\u2019)\]]*\s+|[\u3002\uff01\uff1f]", r"\s+")
)


class DocumentSplit:
    """Cuts the documents of prompts that don't fit a context, and makes the prompts that combine the answers.

    Raises JobFileError for settings that leave no room for a piece.
    """

    def __init__(
        self, prompts: PromptBuilder, settings: SplitSettings, *, context_length: int, max_tokens: int
    ) -> None:
        self._prompts, self._settings = prompts, settings
        self._context_length, self._max_tokens = context_length, max_tokens
        self._template = AnswersTemplate(settings.combine, "split.combine")
        text = json.dumps([asdict(settings), max_tokens, context_length])
        self.settings_digest = hashlib.sha256(text.encode()).hexdigest()[:12]  # of what decides where documents are cut
        self._pieces: dict[tuple[str, int], list[tuple[int, int, Document]]] = {}
        self._spill = SpillFile()  # of the pieces' texts

    def pieces(
        self, prompt: SegmentedPrompt, row: InputRow, document: Document, schema_name: str, schema_text: str
    ) -> list[tuple[Part, SegmentedPrompt]]:
        """The prompts of a row's pieces, in the document's order."""
        around = self._prompts.around_document_tokens(row, document)
        room = self._context_length - len(prompt.prefix.opening) - around - self._max_tokens
        piece_tokens = self._settings.piece_tokens or room - room // QUESTION_SHARE
        overlap = self._settings.overlap_tokens
        if piece_tokens <= 2 * overlap:
            raise JobFileError(
                f"split.overlap_tokens is {overlap}, and pieces have {max(piece_tokens, 0)} tokens ({row.place}), "
                "which must be more than twice as many; lower it, or sampling.max_tokens, or set split.piece_tokens"
            )
        parts = []
        for number, (start, end, piece) in enumerate(self._pieces_of(document, piece_tokens)):
            prefix = self._prompts.shared_prefix(row, piece, schema_name, schema_text)
            part = Part("piece", number, 0, start=start, end=end, document_tokens=prompt.document_tokens)
            parts.append((part, SegmentedPrompt(prefix, prompt.rest)))
        return [(replace(part, count=len(parts)), piece_prompt) for part, piece_prompt in parts]

    def _pieces_of(self, document: Document, piece_tokens: int) -> list[tuple[int, int, Document]]:
        key = document.document_hash, piece_tokens
        if key not in self._pieces:
            text = document.text
            places = piece_places(text, self._prompts.token_ends(text), piece_tokens, self._settings.overlap_tokens)
            self._pieces[key] = [
                (start, end, Document(text_hash(text[start:end]), text[start:end], self._spill))
                for start, end in places
            ]
        return self._pieces[key]

    def combinings(
        self, piece: SegmentedPrompt, answers: Sequence[str], shortest_answer_tokens: int
    ) -> list[tuple[SegmentedPrompt, int]] | None:
        """Prompts that combine answers (JSON texts), in their order, and how many each combines.

        As many as are needed so that all fit; None if not even two answers fit in one.
        """
        room = self._context_length - max(self._max_tokens, shortest_answer_tokens)
        prompts: list[tuple[SegmentedPrompt, int]] = []
        first = 0
        while first < len(answers):
            prompt, count = self._most_that_fit(piece, answers[first:], room)
            if count < 2 and first + count < len(answers):
                return None
            prompts.append((prompt, count))
            first += count
        return prompts

    def _most_that_fit(self, piece: SegmentedPrompt, answers: Sequence[str], room: int) -> tuple[SegmentedPrompt, int]:
        """The prompt with as many of the answers as fit in `room` tokens, and how many; at least with one."""
        best = self._combining(piece, answers[:1]), 1
        low, high, count = 2, len(answers), len(answers)
        while low <= high:
            prompt = self._combining(piece, answers[:count])
            if len(prompt) <= room:
                best, low = (prompt, count), count + 1
            else:
                high = count - 1
            count = (low + high) // 2
        return best

    def _combining(self, piece: SegmentedPrompt, answers: Sequence[str]) -> SegmentedPrompt:
        ids = self._prompts.text_ids(self._template.render(answers))
        return SegmentedPrompt(SharedPrefix(piece.prefix.opening, Segment(ids)), piece.rest)


def piece_places(text: str, token_ends: np.ndarray, piece_tokens: int, overlap_tokens: int) -> list[tuple[int, int]]:
    """Where the pieces of a text stand: `text[start:end]` in code points; together they are the whole text.

    `token_ends` has the code point where each token ends. A piece has at most `piece_tokens`, and begins about
    `overlap_tokens` before the end of the piece before.
    """
    places: list[tuple[int, int]] = []
    start = 0
    while True:
        first_token = int(np.searchsorted(token_ends, start, side="right"))
        last_token = first_token + piece_tokens - 1
        if last_token >= len(token_ends) - 1:
            return [*places, (start, len(text))]
        end = max(int(token_ends[last_token]), start + 1)
        end = _cut_near(text, start + (end - start) * (NEAR - 1) // NEAR, end)
        places.append((start, end))
        end_token = bisect_left(token_ends, end)
        # The end may lie within a token: not even without an overlap may the next piece begin behind it.
        back = min(int(token_ends[max(end_token - overlap_tokens, first_token)]), end)
        start = max(_begin_near(text, back, end), start + 1)


def _cut_near(text: str, earliest: int, latest: int) -> int:
    """The last good place to cut between two; `latest` if there is none."""
    for pattern in _ENDS:
        ends = [found.end() for found in pattern.finditer(text, earliest, latest)]
        if ends:
            return ends[-1]
    return latest


def _begin_near(text: str, earliest: int, latest: int) -> int:
    """The first good place to begin in the first half between two; `earliest` if there is none."""
    for pattern in _ENDS:
        found = pattern.search(text, earliest, earliest + (latest - earliest) // 2)
        if found:
            return found.end()
    return earliest
