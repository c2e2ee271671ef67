"""From a row to token ids, segment by segment: shared text first, and no text that could forge a turn.

The chat template is rendered once, around placeholders (jobs/prompt_frame.py). What lies between them is the frame, the
only part that may hold control tokens. Documents and questions are encoded by a tokenizer that knows no control tokens
(jobs/prompt_text.py), so a document that says `<|im_end|>` is ordinary text. Each document is encoded once and its ids
are joined with the other segments'.

Many rows are encoded in windows, on all cores, while the rows of the window before are looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.prefix_order import common_prefix_length
from jobs.errors import JobError, JobFileError
from jobs.job_settings import PromptSettings
from jobs.prompt_frame import BETWEEN, chat_frame
from jobs.prompt_segments import Segment, SegmentedPrompt, SharedPrefix
from jobs.prompt_template import PartTemplates
from jobs.prompt_text import TextTokenizer, encode_frame
from jobs.prompt_turns import turn_frame
from jobs.source import Document, InputRow
from jobs.source_rows import text_hash
from jobs.spill_file import SpillFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WINDOW_CHARACTERS = 2**20
WINDOW_ROWS = 4096
"""A window of rows is encoded when it has so many rows, or so much text that is new (or one longer document)."""

WINDOWS_AHEAD = 2
"""How many windows may wait for their ids."""

_MARK = "\U000f8d0c\U000fa11e"
"""Stands for a value where only the text around it is asked for: for private use, so in no case or form."""

_CONTINUATIONS = ("a", "Z", "7", " ", "\n", '"', "{", ".", "\u00e9", "\u4e2d")
"""Texts that may follow where a question's text ends that is known: what is encoded the same before all, stays."""


class Asked(NamedTuple):
    """A row with what its prompt is made of."""

    row: InputRow
    document: Document
    schema_name: str
    schema_text: str


class PromptBuilder:
    """Makes prompts for one job and one model.

    Raises JobFileError for a template that can't be used, JobError for a chat template that can't. `notes` are
    sentences for the user about the chat template; `moving_values` is what the document's part writes beside the
    document, as `doc_id` or `extra.page`, `system_uses_schema` whether the opening depends on the row's schema.

    The ids of every distinct document part lie in a file, 4 bytes a token.
    """

    def __init__(self, settings: PromptSettings, tokenizer: PreTrainedTokenizerFast) -> None:
        self._templates = PartTemplates(settings)
        self._tokenizer = tokenizer
        self._text_tokenizer = TextTokenizer(tokenizer)
        frame = chat_frame(tokenizer)
        self.notes = frame.notes
        self.moving_values = self._templates.moving_values
        self.system_uses_schema = self._templates.system_uses_schema
        self._before_system = encode_frame(tokenizer, frame.before_system, first=True)
        self._before_document, self._before_question, self._ending = (
            encode_frame(tokenizer, text, first=False)
            for text in (frame.before_document, frame.before_question, frame.ending)
        )
        self._openings: dict[tuple[str, str], np.ndarray] = {}
        self._documents: dict[str, Segment] = {}
        self._spill = SpillFile()  # of the documents' ids
        self._prefixes: dict[tuple[tuple[str, str], str], SharedPrefix] = {}

    def prompt(self, row: InputRow, document: Document, schema_name: str, schema_text: str) -> np.ndarray:
        """The int32 token ids of one row: opening, document, question, and the turn in which the answer begins."""
        [prompt] = self.prompts([Asked(row, document, schema_name, schema_text)])
        return prompt.ids()

    def prompts(self, asked: Iterable[Asked]) -> Iterator[SegmentedPrompt]:
        """The prompts of many rows, in their order; `asked` is read a few windows ahead.

        Raises JobFileError for a row on which a template fails.
        """
        waiting: deque[tuple[_Window, Future[list[np.ndarray]]]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as background:
            for window in self._windows(asked):
                waiting.append((window, background.submit(self._text_tokenizer.encode_batch, window.texts())))
                if len(waiting) > WINDOWS_AHEAD:
                    yield from self._finished(*waiting.popleft())
            while waiting:
                yield from self._finished(*waiting.popleft())

    def shared_prefix(self, row: InputRow, document: Document, schema_name: str, schema_text: str) -> SharedPrefix:
        """What the row's prompt begins with: opening and document, the same object for all that share it."""
        window = _Window()
        prefix = self._prefix(Asked(row, document, schema_name, schema_text), window)
        for segment, text in zip(window.segments, window.texts(), strict=True):
            segment.hold(self._text_tokenizer.encode(text), self._spill)
        return prefix

    def known_rest(self, row: InputRow, beginning: str) -> np.ndarray:
        """Token ids behind the prefix for a question of which only the beginning is known, whatever comes then."""
        before, mark, _ = self._question_text(row, beginning + _MARK).partition(_MARK)
        if not mark:  # the template does not write the question as it is
            return self._before_question
        ids = self._text_tokenizer.encode_batch([before + text for text in _CONTINUATIONS])
        common = min((common_prefix_length(ids[0], other) for other in ids[1:]), default=0)
        return np.concatenate([self._before_question, ids[0][:common]])

    def question_prompt(self, prefix: SharedPrefix, row: InputRow, question: str) -> SegmentedPrompt:
        """The prompt of a row whose question's text has been made for it."""
        ids = self._text_tokenizer.encode(self._question_text(row, question))
        return SegmentedPrompt(prefix, np.concatenate([self._before_question, ids, self._ending]))

    def talk_so_far(self, earlier: SegmentedPrompt) -> np.ndarray:
        """Token ids of a prompt behind its prefix, up to where its turn ends."""
        return earlier.rest[: len(earlier.rest) - len(self._ending)]

    def follow_up_prompt(self, earlier: SegmentedPrompt, answer: str, row: InputRow, question: str) -> SegmentedPrompt:
        """The prompt of a row that follows an earlier prompt and its answer. Raises JobError if the model can't."""
        before_answer, before_next = self._turns
        answer_ids = self._text_tokenizer.encode(answer)
        question_ids = self._text_tokenizer.encode(self._question_text(row, question).removeprefix(BETWEEN))
        rest = [self.talk_so_far(earlier), before_answer, answer_ids, before_next, question_ids, self._ending]
        return SegmentedPrompt(earlier.prefix, np.concatenate(rest))

    def check_turns(self) -> None:
        """Raise JobError if the model's chat template can't carry earlier turns."""
        assert self._turns

    @cached_property
    def _turns(self) -> tuple[np.ndarray, np.ndarray]:
        frame = turn_frame(self._tokenizer)
        if frame is None:
            raise JobError(
                "the model's chat template can't carry earlier turns, which questions with follow_up need; leave "
                "follow_up out, and write {{ answers.… }} into the question, or choose another model in model.path"
            )
        before_answer, before_next = (
            encode_frame(self._tokenizer, text, first=False) for text in (frame.before_answer, frame.before_next)
        )
        return before_answer, before_next

    def text_ids(self, text: str) -> np.ndarray:
        """int32 token ids of a text by itself, as it would stand in a prompt."""
        return self._text_tokenizer.encode(text)

    def text_behind(self, part: str) -> str:
        """What prompt.<part> writes for every row behind its first value, and so can't be shared over values."""
        return self._templates.texts_behind[part]

    def values_before(self, part: str) -> list[str]:
        """The values that stand before that text, or before some of it, as the template names them."""
        return self._templates.values_before[part]

    def token_ends(self, text: str) -> np.ndarray:
        """Where each token of a text ends, in code points."""
        return self._text_tokenizer.character_ends(text)

    def around_document_tokens(self, row: InputRow, document: Document) -> int:
        """About how many tokens prompt.document writes around the document's own text."""
        return len(self.text_ids(self._document_text(row, Document(document.document_hash, ""))))

    def around_document(self, row: InputRow, document: Document) -> tuple[str, str]:
        """What prompt.document writes before and behind the document's own text.

        Raises JobFileError if it doesn't write it once and whole.
        """
        marked = self._document_text(row, Document(document.document_hash, _MARK))
        before, mark, behind = marked.partition(_MARK)
        whole = self._document_text(row, document)
        if not mark or _MARK in behind or not (whole.startswith(before) and whole.endswith(behind)):
            raise JobFileError(
                f"prompt.document doesn't write the document once and as it is ({row.place}), so "
                'run.on_too_long = "truncate" can\'t cut it; write {{ document }} once, or set it to "error"'
            )
        return before, behind

    def _windows(self, asked: Iterable[Asked]) -> Iterator[_Window]:
        window = _Window()
        for one in asked:
            window.add(self._prefix(one, window), self._question_text(one.row))
            if window.characters >= WINDOW_CHARACTERS or len(window.rows) >= WINDOW_ROWS:
                yield window
                window = _Window()
        if window.rows:
            yield window

    def _prefix(self, one: Asked, window: _Window) -> SharedPrefix:
        """The shared beginning of a row's prompt; a document that is new is put into the window."""
        opening_key, opening = self._opening(one.schema_name, one.schema_text)
        document_key, text = self._document_part(one.row, one.document)
        prefix = self._prefixes.get((opening_key, document_key))
        if prefix is None:
            segment = self._documents.get(document_key)
            if segment is None:
                segment = self._documents[document_key] = Segment()
                window.add_document(segment, self._document_text(one.row, one.document) if text is None else text)
            prefix = self._prefixes[opening_key, document_key] = SharedPrefix(opening, segment)
        return prefix

    def _finished(self, window: _Window, encoded: Future[list[np.ndarray]]) -> Iterator[SegmentedPrompt]:
        arrays = encoded.result()
        for segment, ids in zip(window.segments, arrays, strict=False):
            segment.hold(ids, self._spill)
        rests = [np.concatenate([self._before_question, ids, self._ending]) for ids in arrays[len(window.segments) :]]
        for prefix, question in window.rows:
            yield SegmentedPrompt(prefix, rests[question])

    def _document_part(self, row: InputRow, document: Document) -> tuple[str, str | None]:
        """What tells the document's part from others, and its text where that had to be made for it."""
        if not self._templates.document_uses_row:
            return document.document_hash, None
        text = self._document_text(row, document)
        return text_hash(text), text

    def _document_text(self, row: InputRow, document: Document) -> str:
        return self._templates.render("document", row.place, document=document.text, doc_id=row.doc_id, extra=row.extra)

    def _question_text(self, row: InputRow, question: str | None = None) -> str:
        return BETWEEN + self._templates.render(
            "question", row.place, question=row.question if question is None else question,
            question_id=row.question_id, doc_id=row.doc_id, extra=row.extra,
        )  # fmt: skip

    def _opening(self, schema_name: str, schema_text: str) -> tuple[tuple[str, str], np.ndarray]:
        # Without a schema in it, the system text is the same for all.
        key = (schema_name, schema_text) if self._templates.system_uses_schema else ("", "")
        if key not in self._openings:
            system = self._templates.render("system", schema=schema_text, schema_name=schema_name)
            self._openings[key] = np.concatenate(
                [self._before_system, self._text_tokenizer.encode(system), self._before_document]
            )
        return key, self._openings[key]


class _Window:
    """Rows whose texts are encoded together: each distinct question of the window once, and the documents new in it."""

    def __init__(self) -> None:
        self.rows: list[tuple[SharedPrefix, int]] = []  # with the number of the question
        self.segments: list[Segment] = []
        self.characters = 0
        self._documents: list[str] = []
        self._questions: dict[str, int] = {}

    def add_document(self, segment: Segment, text: str) -> None:
        self.segments.append(segment)
        self._documents.append(text)
        self.characters += len(text)

    def add(self, prefix: SharedPrefix, question: str) -> None:
        number = self._questions.get(question)
        if number is None:
            number = self._questions[question] = len(self._questions)
            self.characters += len(question)
        self.rows.append((prefix, number))

    def texts(self) -> list[str]:
        """Of the documents, then of the questions."""
        return [*self._documents, *self._questions]
