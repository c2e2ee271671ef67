"""The chat template between the turns of a talk, for questions that follow an earlier one and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.prompt_frame import BETWEEN, CHAT_TEMPLATE_ERRORS, rendered_chat, split_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_MARKS = tuple(f"docqa{part}7d1f4ab2" for part in ("system", "question", "first", "second", "third", "fourth"))


@dataclass(frozen=True)
class TurnFrame:
    """A chat template's text before an earlier turn's answer, and behind it before the next question."""

    before_answer: str
    before_next: str


def turn_frame(tokenizer: PreTrainedTokenizerFast) -> TurnFrame | None:
    """The frame of earlier turns; None for a template that can't carry them, or writes each in another way."""
    if not tokenizer.chat_template:
        return TurnFrame(f"{BETWEEN}Answer:\n", BETWEEN)
    system, *turns = _MARKS
    roles = ("user", "assistant", "user", "assistant", "user")
    # Some templates have no system role: then the text opens the user's turn, as in the frame of one turn.
    for opening, first in (([{"role": "system", "content": system}], turns[0]), ([], system + BETWEEN + turns[0])):
        contents = [first, *turns[1:]]
        messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        try:
            text = rendered_chat(tokenizer, opening + messages)
        except CHAT_TEMPLATE_ERRORS:
            continue
        parts = split_once(text, _MARKS)
        if parts is not None and (parts[2], parts[3]) == (parts[4], parts[5]):
            return TurnFrame(parts[2], parts[3])
    return None
