"""The chat template around a prompt, rendered once before a run: the only text that may hold control tokens.

It is rendered around placeholders, so what a template can't do is found here and not a thousand times in the rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jinja2

from jobs.errors import JobError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BETWEEN = "\n\n"  # before the question, and after a system text that has no turn of its own

_SYSTEM, _DOCUMENT, _QUESTION = (f"docqa{part}b53c0e9a" for part in ("system", "document", "question"))

# Models that think before they answer open a block for it; the answer's grammar starts after its end.
_THINKING = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))

FIXED_DATE = {"%d": "26", "%b": "Jul", "%B": "July", "%m": "07", "%Y": "2024", "%y": "24", "%A": "Friday", "%a": "Fri"}
"""The day that a template is told it is: the one which Llama 3's writes when it can't know."""

CHAT_TEMPLATE_ERRORS = (
    jinja2.TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
)  # fmt: skip
"""What rendering a chat template may raise: it is any model's own code."""


@dataclass(frozen=True)
class Frame:
    """A chat template's text before system, document and question, and after the question; `notes` are for the user."""

    before_system: str
    before_document: str
    before_question: str
    ending: str
    notes: list[str] = field(default_factory=list)


def chat_frame(tokenizer: PreTrainedTokenizerFast) -> Frame:
    """The frame of a model's chat template. Raises JobError for a template that can't carry a prompt."""
    if not tokenizer.chat_template:
        return Frame(tokenizer.bos_token or "", BETWEEN, "", f"{BETWEEN}Answer:\n")
    user = {"role": "user", "content": _DOCUMENT + _QUESTION}
    # Some templates have no system role and raise, or leave it out: then the text opens the user's turn.
    folded = {"role": "user", "content": _SYSTEM + BETWEEN + _DOCUMENT + _QUESTION}
    faults = []
    for messages in ([{"role": "system", "content": _SYSTEM}, user], [folded]):
        try:
            rendered = rendered_chat(tokenizer, messages)
        except CHAT_TEMPLATE_ERRORS as error:
            faults.append(str(error))
            continue
        parts = split_once(rendered, (_SYSTEM, _DOCUMENT, _QUESTION))
        if parts is not None:
            return _finished(tokenizer, *parts)
        faults.append("it repeats, reorders or drops the parts of the prompt")
    raise JobError(
        f"The model's chat template can't carry a system text and a question ({'; '.join(faults)}); "
        "choose another model in model.path or mend its chat_template"
    )


def rendered_chat(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> str:
    """The text of a chat, up to where the model goes on; no day or thinking in it that changes."""
    template = str(tokenizer.get_chat_template())
    if "strftime_now" in template:
        # Today's date would make every night's prompts new ones: nothing shared, nothing known as answered.
        dated = "".join(f' | replace("{code}", "{value}")' for code, value in FIXED_DATE.items())
        template = f"{{%- macro strftime_now(format) -%}}{{{{ format{dated} }}}}{{%- endmacro -%}}{template}"
    options: dict[str, Any] = {"enable_thinking": False, "thinking": False}
    return str(
        tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=True, **options
        )
    )


def _finished(
    tokenizer: PreTrainedTokenizerFast, before_system: str, before_document: str, before_question: str, ending: str
) -> Frame:
    notes = []
    template = str(tokenizer.get_chat_template())
    if "strftime_now" in template and FIXED_DATE["%Y"] in before_system + before_document:
        notes.append(
            "the model's chat template writes today's date; it is told 26 July 2024, so that prompts stay the same "
            "from night to night; write the date into prompt.system if answers depend on it"
        )
    ending, closed = _with_thinking_closed(ending)
    if closed:
        notes.append("the model's chat template opens a thinking block; it is left empty, and the answer starts after")
    if not _has_control_token(tokenizer, ending):
        notes.append(
            f"the model's chat template marks turns with ordinary text ({ending.strip()[:40]!r}), which a document "
            "may hold as well, so a document could pass for a turn; a model with control tokens rules that out"
        )
    return Frame(before_system, before_document, before_question, ending, notes)


def _with_thinking_closed(ending: str) -> tuple[str, bool]:
    for opens, closes in _THINKING:
        if ending.count(opens) > ending.count(closes):
            # An empty block as Qwen 3 writes it: the tag, a blank line, the tag, a blank line.
            return re.sub(r"\s*\Z", "", ending) + f"\n\n{closes}\n\n", True
    return ending, False


def _has_control_token(tokenizer: PreTrainedTokenizerFast, text: str) -> bool:
    added = tokenizer.added_tokens_decoder
    return any(number in added for number in tokenizer.encode(text, add_special_tokens=False))


def split_once(text: str, marks: Sequence[str]) -> list[str] | None:
    """The texts around marks that occur once each and in this order; None otherwise."""
    places = [text.find(mark) for mark in marks]
    if any(text.count(mark) != 1 for mark in marks) or places != sorted(places):
        return None
    parts = []
    for mark in marks:
        before, text = text.split(mark)
        parts.append(before)
    return [*parts, text]
