"""From a row to token ids, segment by segment: shared text first, and no text that could forge a turn.

The chat template is rendered once, around placeholders. What lies between them is the frame, the only part that may
hold control tokens. Documents and questions are encoded by a tokenizer that knows no control tokens, so a document
that says `<|im_end|>` is ordinary text. Each document is encoded once and its ids are joined with the other segments'.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.meta
import numpy as np
from jinja2.sandbox import SandboxedEnvironment
from tokenizers import Tokenizer

from jobs.errors import JobError, JobFileError
from jobs.job_settings import PromptSettings
from jobs.source import Document, InputRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# What each part of [prompt] may use. `extra` holds the row's other columns.
PART_VARIABLES = {
    "system": ("schema", "schema_name"),
    "document": ("document", "doc_id", "extra"),
    "question": ("question", "question_id", "doc_id", "extra"),
}

_SYSTEM, _DOCUMENT, _QUESTION = (f"docqa{part}b53c0e9a" for part in ("system", "document", "question"))
_BETWEEN = "\n\n"  # before the question, and after a system text that has no turn of its own


class PromptBuilder:
    """Makes prompts for one job and one model. Raises JobFileError for a template that can't be used."""

    def __init__(self, settings: PromptSettings, tokenizer: PreTrainedTokenizerFast) -> None:
        self._templates = _PartTemplates(settings)
        self._tokenizer = tokenizer
        self._text_tokenizer = TextTokenizer(tokenizer)
        frame = self._frame()
        self._before_system, self._before_document, self._before_question, self._ending = (
            np.asarray(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32) for text in frame
        )
        self._openings: dict[tuple[str, str], np.ndarray] = {}
        self._documents: dict[str, np.ndarray] = {}

    def prompt(self, row: InputRow, document: Document, schema_name: str, schema_text: str) -> np.ndarray:
        """The int32 token ids of one row: opening, document, question, and the turn in which the answer begins."""
        question = _BETWEEN + self._templates.render(
            "question", question=row.question, question_id=row.question_id, doc_id=row.doc_id, extra=row.extra
        )
        return np.concatenate(
            [
                self._opening(schema_name, schema_text),
                self.document_ids(row, document),
                self._before_question,
                self._text_tokenizer.encode(question),
                self._ending,
            ]
        )

    def document_ids(self, row: InputRow, document: Document) -> np.ndarray:
        """Token ids of the document part, encoded once for all rows for which it reads the same."""
        key = document.document_hash
        if self._templates.document_uses_row:
            key = self._document_text(row, document)
        if key not in self._documents:
            self._documents[key] = self._text_tokenizer.encode(self._document_text(row, document))
        return self._documents[key]

    def _document_text(self, row: InputRow, document: Document) -> str:
        return self._templates.render("document", document=document.text, doc_id=row.doc_id, extra=row.extra)

    def _opening(self, schema_name: str, schema_text: str) -> np.ndarray:
        key = (schema_name, schema_text)
        if key not in self._openings:
            system = self._templates.render("system", schema=schema_text, schema_name=schema_name)
            self._openings[key] = np.concatenate(
                [self._before_system, self._text_tokenizer.encode(system), self._before_document]
            )
        return self._openings[key]

    def _frame(self) -> tuple[str, str, str, str]:
        """The chat template's text before system, document and question, and after the question."""
        if not self._tokenizer.chat_template:
            bos = self._tokenizer.bos_token or ""
            return bos, _BETWEEN, "", f"{_BETWEEN}Answer:\n"
        user = {"role": "user", "content": _DOCUMENT + _QUESTION}
        # Some templates have no system role and raise, or leave it out: then the text opens the user's turn.
        folded = {"role": "user", "content": _SYSTEM + _BETWEEN + _DOCUMENT + _QUESTION}
        faults = []
        for messages in ([{"role": "system", "content": _SYSTEM}, user], [folded]):
            try:
                rendered = self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
                )
            except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
                faults.append(str(error))
                continue
            parts = _split_once(str(rendered), (_SYSTEM, _DOCUMENT, _QUESTION))
            if parts is not None:
                return parts
            faults.append("it repeats, reorders or drops the parts of the prompt")
        raise JobError(
            f"The model's chat template can't carry a system text and a question ({'; '.join(faults)}); "
            "choose another model in model.path or mend its chat_template"
        )


class TextTokenizer:
    """Encodes text that stands inside a prompt: no control token, no added token, no leading space put before it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        # Runs of blanks are added tokens of some tokenizers and part of ordinary text.
        description["added_tokens"] = [
            token for token in description["added_tokens"] if not token["special"] and token["content"].isspace()
        ]
        description["post_processor"] = None
        description["truncation"] = description["padding"] = None
        self._backend = Tokenizer.from_str(json.dumps(description))
        first = self._backend.encode(".", add_special_tokens=False).tokens[0]
        # SentencePiece-like tokenizers put a space before any text; an anchor in front takes it, and is cut off again.
        self._anchor = "\n" if first[:1] in ("\u2581", "\u0120") else ""
        self._anchor_ids = self._backend.encode(self._anchor, add_special_tokens=False).ids if self._anchor else []

    def encode(self, text: str) -> np.ndarray:
        """int32 token ids of `text`."""
        ids = self._backend.encode(self._anchor + text, add_special_tokens=False).ids
        if self._anchor_ids and ids[: len(self._anchor_ids)] == self._anchor_ids:
            ids = ids[len(self._anchor_ids) :]
        return np.asarray(ids, dtype=np.int32)


class _PartTemplates:
    """The three templates of [prompt], in a sandbox: they reach the row and nothing else."""

    def __init__(self, settings: PromptSettings) -> None:
        environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        self._templates: dict[str, jinja2.Template] = {}
        self.document_uses_row = False
        for part, known in PART_VARIABLES.items():
            source = getattr(settings, part)
            try:
                used = jinja2.meta.find_undeclared_variables(environment.parse(source))
                self._templates[part] = environment.from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise JobFileError(
                    f"prompt.{part}, line {error.lineno}: not a valid template: {error.message}; "
                    "mend it or write {{ '{{' }} for braces that are text"
                ) from None
            for name in sorted(used - set(known)):
                raise JobFileError(f"prompt.{part} uses {{{{ {name} }}}}, but it can use only {', '.join(known)}")
            if part != "system" and part not in used:
                raise JobFileError(f"prompt.{part} does not use {{{{ {part} }}}}; add it")
            if part == "document":
                self.document_uses_row = used != {"document"}

    def render(self, part: str, **values: Any) -> str:
        """The text of a part for one row."""
        try:
            return self._templates[part].render(values)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise JobFileError(f"prompt.{part} fails on a row: {error}; mend the template") from None


def _split_once(text: str, marks: tuple[str, str, str]) -> tuple[str, str, str, str] | None:
    """The four texts around three marks that occur once each and in this order; None otherwise."""
    if any(text.count(mark) != 1 for mark in marks):
        return None
    before, rest = text.split(marks[0])
    if marks[1] not in rest:
        return None
    second, rest = rest.split(marks[1])
    if marks[2] not in rest:
        return None
    third, ending = rest.split(marks[2])
    return before, second, third, ending
