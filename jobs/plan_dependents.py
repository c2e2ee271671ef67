"""Rows that come after others: prepared when the answers they need are known, planned as waiting until then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from jobs.answer_schemas import AnswerSchema
from jobs.identity import QUESTION_PART, short_digest
from jobs.plan_rows import DependentRow, PreparedRow, RejectedRow, RowFate
from jobs.prompt import PromptBuilder
from jobs.prompt_segments import SegmentedPrompt
from jobs.question_template import QuestionFailed, QuestionTemplates
from jobs.source import Document, InputRow
from jobs.store_records import KeyState

AFTER_PART = "after"
"""The part of a request's identity that holds the answers it uses."""

Fit = Callable[[InputRow, AnswerSchema, SegmentedPrompt, Document, Mapping[str, str]], PreparedRow | RejectedRow]
"""Makes a row with its prompt a prepared one, or rejects it; the mapping has further parts of its identity."""


@dataclass(frozen=True)
class DependentPlanner:
    """Makes prompts of questions with the answers they use. `max_tokens` is sampling.max_tokens."""

    prompts: PromptBuilder
    fit: Fit
    max_tokens: int
    context_length: int
    templates: QuestionTemplates = field(default_factory=QuestionTemplates)

    def check(self, row: InputRow, others: Mapping[str, AnswerSchema | RejectedRow]) -> None:
        """Raise InputError or JobError for a question that can't be asked, whatever the answers are.

        `others` has the schemas of the questions it comes after.
        """
        if row.question is not None:
            schemas = {name: found.schema for name, found in others.items() if isinstance(found, AnswerSchema)}
            self.templates.check(row.question, row.program.after, schemas, row.place)
        if row.program.follow_up:
            self.prompts.check_turns()

    def prepared(
        self,
        row: InputRow,
        schema: AnswerSchema,
        document: Document,
        answers: Mapping[str, str],
        earlier: SegmentedPrompt | None,
    ) -> PreparedRow | RejectedRow:
        """The row with the answers it uses, by question id, in its question; a follow-up goes on from `earlier`."""
        assert row.question is not None
        used = {name: answers[name] for name in row.program.after}
        try:
            question = self.templates.render(row.question, used)
        except QuestionFailed as failure:
            error = f"{row.place}: the question can't be made with the answers it comes after: {failure}"
            return RejectedRow(row, "failed", error, schema.name)
        if row.program.follow_up:
            assert earlier is not None
            [answer] = used.values()
            prompt = self.prompts.follow_up_prompt(earlier, answer, row, question)
        else:
            prefix = self.prompts.shared_prefix(row, document, schema.name, schema.text)
            prompt = self.prompts.question_prompt(prefix, row, question)
        parts = {AFTER_PART: short_digest(list(used.items())), **template_part(row)}
        return self.fit(replace(row, question=question), schema, prompt, document, parts)

    def waiting(
        self,
        row: InputRow,
        schema: AnswerSchema,
        document: Document,
        fates: Mapping[str, RowFate],
        state: KeyState | None,
        own_answer: str | None,
    ) -> DependentRow:
        """The row as one that waits; `fates` are of the questions it comes after, some of which run."""
        assert row.question is not None
        beginning = self.templates.known_beginning(row.question)
        values = max(self.templates.values_written(row.question), len(row.program.after))
        reserve = len(self.prompts.text_ids(row.question)) + (values + 1) * self.max_tokens
        earlier = None
        if row.program.follow_up:
            [fate] = fates.values()
            earlier = fate.prompt
            if earlier is not None:
                prefix, known_rest = earlier.prefix, self.prompts.talk_so_far(earlier)
                reserve += len(known_rest)
            else:
                assert fate.dependent is not None
                prefix, known_rest = fate.dependent.prefix, fate.dependent.known_rest
                reserve += fate.dependent.reserve_tokens
        else:
            prefix = self.prompts.shared_prefix(row, document, schema.name, schema.text)
            known_rest = self.prompts.known_rest(row, beginning)
            reserve += len(known_rest)
        return DependentRow(
            row=row,
            schema=schema,
            prefix=prefix,
            known_rest=known_rest,
            reserve_tokens=max(min(reserve, self.context_length - len(prefix)), 1),
            answers={name: fate.answer for name, fate in fates.items() if fate.answer is not None},
            missing={name for name, fate in fates.items() if fate.runs},
            stored={name: fate.stored for name, fate in fates.items() if fate.stored is not None},
            earlier=earlier,
            state=state,
            own_answer=own_answer,
        )


def template_part(row: InputRow) -> dict[str, str]:
    """The part of a dependent row's identity that is its question as it is in the input, with no answers in it."""
    return {QUESTION_PART: short_digest(row.question)}


def missing_answer(row: InputRow, question_id: str, status: str, schema_name: str | None = None) -> RejectedRow:
    """The row as one that can't be asked, because a question that it comes after has no valid answer."""
    error = (
        f"{row.place}: it comes after question {question_id!r} of doc_id {row.doc_id!r}, which has no valid answer "
        f"(its status is {status}); when that one has, docqa retry asks this one"
    )
    return RejectedRow(row, "failed", error, schema_name)
