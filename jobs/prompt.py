"""From a row to token ids, segment by segment: shared text first, and no text that could forge a turn.

The chat template is rendered once, around placeholders (jobs/prompt_frame.py). What lies between them is the frame, the
only part that may hold control tokens. Documents and questions are encoded by a tokenizer that knows no control tokens
(jobs/prompt_text.py), so a document that says `<|im_end|>` is ordinary text. Each document is encoded once and its ids
are joined with the other segments'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jobs.job_settings import PromptSettings
from jobs.prompt_frame import BETWEEN, chat_frame
from jobs.prompt_template import PartTemplates
from jobs.prompt_text import TextTokenizer, encode_frame
from jobs.source import Document, InputRow
from jobs.source_rows import text_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class PromptBuilder:
    """Makes prompts for one job and one model.

    Raises JobFileError for a template that can't be used, JobError for a chat template that can't. `notes` are
    sentences for the user about the chat template; `moving_values` is what the document's part writes beside the
    document, as `doc_id` or `extra.page`, `system_uses_schema` whether the opening depends on the row's schema.
    """

    def __init__(self, settings: PromptSettings, tokenizer: PreTrainedTokenizerFast) -> None:
        self._templates = PartTemplates(settings)
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
        self._documents: dict[str, np.ndarray] = {}

    def prompt(self, row: InputRow, document: Document, schema_name: str, schema_text: str) -> np.ndarray:
        """The int32 token ids of one row: opening, document, question, and the turn in which the answer begins."""
        question = BETWEEN + self._templates.render(
            "question", row.place, question=row.question, question_id=row.question_id, doc_id=row.doc_id,
            extra=row.extra,
        )  # fmt: skip
        return np.concatenate(
            [
                self._opening(schema_name, schema_text),
                self.document_ids(row, document),
                self._before_question,
                self._text_tokenizer.encode(question),
                self._ending,
            ]
        )

    def shared_tokens(self, row: InputRow, document: Document, schema_name: str, schema_text: str) -> int:
        """How many tokens of the row's prompt come before its question: opening and document."""
        return len(self._opening(schema_name, schema_text)) + len(self.document_ids(row, document))

    def text_ids(self, text: str) -> np.ndarray:
        """int32 token ids of a text by itself, as it would stand in a prompt."""
        return self._text_tokenizer.encode(text)

    def text_behind(self, part: str) -> str:
        """What prompt.<part> writes for every row behind its first value, and so can't be shared over values."""
        return self._templates.texts_behind[part]

    def document_ids(self, row: InputRow, document: Document) -> np.ndarray:
        """Token ids of the document part, encoded once for all rows for which it reads the same."""
        key, text = document.document_hash, None
        if self._templates.document_uses_row:
            text = self._document_text(row, document)
            key = text_hash(text)
        if key not in self._documents:
            self._documents[key] = self._text_tokenizer.encode(text or self._document_text(row, document))
        return self._documents[key]

    def _document_text(self, row: InputRow, document: Document) -> str:
        return self._templates.render("document", row.place, document=document.text, doc_id=row.doc_id, extra=row.extra)

    def _opening(self, schema_name: str, schema_text: str) -> np.ndarray:
        # Without a schema in it, the system text is the same for all.
        key = (schema_name, schema_text) if self._templates.system_uses_schema else ("", "")
        if key not in self._openings:
            system = self._templates.render("system", schema=schema_text, schema_name=schema_name)
            self._openings[key] = np.concatenate(
                [self._before_system, self._text_tokenizer.encode(system), self._before_document]
            )
        return self._openings[key]
