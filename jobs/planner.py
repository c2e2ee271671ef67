"""Makes the plan of a run: each row gets its prompt, and its place in the order. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jobs.answer_schemas import AnswerSchema, AnswerSchemas, RowSchemaError
from jobs.dependencies import Key, dependent_order, needed_keys
from jobs.errors import InputError, JobFileError
from jobs.identity import RequestIdentity
from jobs.plan import Plan
from jobs.plan_dependents import DependentPlanner, missing_answer
from jobs.plan_intake import Intake
from jobs.plan_order import first_positions_in_order, plan_order
from jobs.plan_rows import Part, PlannedRow, PreparedRow, RejectedRow, RowFate
from jobs.prompt import Asked, PromptBuilder
from jobs.prompt_cut import DocumentCut
from jobs.prompt_segments import SegmentedPrompt
from jobs.prompt_split import DocumentSplit
from jobs.resume import AnswerHistory, Selection, Standing
from jobs.source import Document, InputData, InputRow

EMPTY_HISTORY = AnswerHistory()
NO_PARTS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Planner:
    """What a plan depends on beside the rows: prompts, schemas, the model's context, the identity of requests.

    `document_cut` cuts documents of rows that don't fit the context; None where such a row is `too_long`.
    """

    prompts: PromptBuilder
    schemas: AnswerSchemas
    identity: RequestIdentity
    context_length: int
    max_tokens: int  # sampling.max_tokens
    document_cut: DocumentCut | None = None
    samples: int = 1  # sampling.samples
    document_split: DocumentSplit | None = None  # cuts such documents in pieces instead

    def plan(
        self,
        data: InputData,
        history: AnswerHistory = EMPTY_HISTORY,
        select: Selection = Selection.UNANSWERED,
        on_progress: Callable[[int], None] = lambda rows: None,
    ) -> Plan:
        """Plan the rows of `data` that `select` takes on; `on_progress` hears how many rows have been looked at.

        Raises InputError for rows whose `after` or text can't be followed, and JobError or JobFileError for a prompt
        that can't be made.
        """
        self._check_samples(data.rows)
        later = dependent_order(data.rows)
        needed = needed_keys(data.rows)
        fates: dict[Key, RowFate] = {}
        intake = Intake(history, select)
        rows = data.rows if needed else []  # of a million rows, most jobs have none that others come after
        others = {key: row for row in rows if (key := (row.doc_id, row.question_id)) in needed}
        for row in later:
            self.dependents.check(row, {name: self._schema_of(others[row.doc_id, name]) for name in row.program.after})
        for count, (row, outcome) in enumerate(self._outcomes(data)):
            if count % 256 == 0:
                on_progress(count)
            fate = intake.take(row, outcome)
            if (row.doc_id, row.question_id) in needed:
                fates[row.doc_id, row.question_id] = fate
        for row in later:
            fates[row.doc_id, row.question_id] = self._dependent_fate(row, data, fates, intake)
        return Plan(
            rows=self._ordered(intake.runnable),
            rejected=intake.rejected,
            dependents=intake.dependents,
            document_tokens=intake.document_tokens,
            rows_new=intake.standings[Standing.NEW],
            rows_changed=intake.standings[Standing.CHANGED],
            changed_by=dict(intake.changed_by),
            rows_failed_before=intake.standings[Standing.FAILED],
            rows_done=intake.standings[Standing.DONE],
            rows_gone=history.gone(data.rows),
            answered_rows=intake.answered_rows,
            rows_left=intake.rows_left,
            combining_tokens=self.context_length if any(one.pieces for one in intake.runnable) else 0,
        )

    def _check_samples(self, rows: Sequence[InputRow]) -> None:
        """Several answers of a question differ only by their seeds, which temperature 0 does not use."""
        if not self.identity.keys_share_answers:
            return
        why = "but at sampling.temperature 0 all answers would be the same; set a temperature above 0, such as 0.7"
        if self.samples > 1:
            raise JobFileError(f"sampling.samples is {self.samples}, {why}, or samples = 1")
        for row in rows:
            if row.program.samples is not None and row.program.samples > 1:
                raise InputError(f"{row.place}: samples is {row.program.samples}, {why}, or samples to 1")

    @cached_property
    def dependents(self) -> DependentPlanner:
        """Prepares the rows that come after others."""
        return DependentPlanner(self.prompts, self.fitted, self.max_tokens, self.context_length)

    def _dependent_fate(self, row: InputRow, data: InputData, fates: Mapping[Key, RowFate], intake: Intake) -> RowFate:
        """File a row that comes after others, whose fates are known."""
        schema = self._schema_of(row)
        if isinstance(schema, RejectedRow):
            return intake.take(row, schema)
        assert row.document_hash is not None  # else it had a problem
        document = data.documents[row.document_hash]
        others = {name: fates[row.doc_id, name] for name in row.program.after}
        if any(fate.is_left for fate in others.values()):
            return intake.leave(row)
        for name, fate in others.items():
            if fate.status is not None:
                return intake.take(row, missing_answer(row, name, fate.status, schema.name))
        if not any(fate.runs for fate in others.values()):
            answers = {name: fate.answer for name, fate in others.items() if fate.answer is not None}
            earlier = next(iter(others.values())).prompt
            return intake.take(row, self.dependents.prepared(row, schema, document, answers, earlier))
        state, own_answer = intake.known_of(row)
        return intake.wait(self.dependents.waiting(row, schema, document, others, state, own_answer))

    def _ordered(self, runnable: list[PreparedRow]) -> list[PlannedRow]:
        """In depth-first order of the prompts' prefix tree, each with the positions it is the first to need."""
        asked = [(prepared, *one) for prepared in runnable for one in prepared.pieces or ((None, prepared.prompt),)]
        order = plan_order([prompt for _, _, prompt in asked])
        ordered = [asked[index] for index in order]
        minimums = first_positions_in_order([prompt for _, _, prompt in ordered])
        originals = self._originals([prepared for prepared, _, _ in ordered], minimums)
        rows = []
        for (prepared, part, prompt), minimum, original in zip(ordered, minimums, originals, strict=True):
            row = self.placed(prepared, minimum, original)
            rows.append(row if part is None else self.placed_part(row, part, prompt, minimum))
        return rows

    def placed_part(
        self, row: PlannedRow, part: Part, prompt: SegmentedPrompt, minimum_tokens: int | None = None
    ) -> PlannedRow:
        """A part of a row that has its place, by default that of what only this prompt has."""
        return replace(
            row,
            segments=prompt,
            part=part,
            minimum_tokens=len(prompt.rest) if minimum_tokens is None else minimum_tokens,
            max_output_tokens=min(self.max_tokens, self.context_length - len(prompt)),
        )

    def placed(self, prepared: PreparedRow, minimum_tokens: int, same_as: int | None = None) -> PlannedRow:
        """The row with its place in the order."""
        return PlannedRow(
            row=prepared.row,
            schema=prepared.schema,
            segments=prepared.prompt,
            digest=prepared.digest,
            parts=prepared.parts,
            minimum_tokens=minimum_tokens,
            max_output_tokens=min(self.max_tokens, self.context_length - len(prepared.prompt)),
            same_as=same_as,
            samples=prepared.samples,
        )

    def _originals(self, ordered: Sequence[PreparedRow], minimums: Sequence[int]) -> list[int | None]:
        """For each row, where the first one stands that asks the very same, if it is another one."""
        if not self.identity.keys_share_answers:
            return [None] * len(ordered)
        originals: list[int | None] = []
        first_with: dict[str, int] = {}  # by schema, of the rows with this very prompt
        length = -1
        for place, (prepared, minimum) in enumerate(zip(ordered, minimums, strict=True)):
            if prepared.pieces:
                first_with.clear()
                length = -1
                originals.append(None)
                continue
            if minimum > 0 or len(prepared.prompt) != length:
                first_with.clear()
            length = len(prepared.prompt)
            first = first_with.setdefault(prepared.schema.text, place)
            originals.append(None if first == place else first)
        return originals

    def _outcomes(self, data: InputData) -> Iterator[tuple[InputRow, PreparedRow | RejectedRow]]:
        """Each row that comes after no other, ready to be asked or rejected."""
        rows = [row for row in data.rows if not row.program.after]
        schemas = [self._schema_of(row) for row in rows]
        prompts = self.prompts.prompts(
            Asked(row, data.documents[row.document_hash], schema.name, schema.text)
            for row, schema in zip(rows, schemas, strict=True)
            if isinstance(schema, AnswerSchema) and row.document_hash is not None
        )
        for row, schema in zip(rows, schemas, strict=True):
            if isinstance(schema, RejectedRow):
                yield row, schema
            else:
                assert row.document_hash is not None  # else it had a problem
                yield row, self.fitted(row, schema, next(prompts), data.documents[row.document_hash])

    def _schema_of(self, row: InputRow) -> AnswerSchema | RejectedRow:
        if row.problem is not None:
            return RejectedRow(row, row.problem.status, row.problem.error)
        try:
            return self.schemas.of_row(row.schema)
        except RowSchemaError as error:
            return RejectedRow(row, "bad_schema", f"{row.place}: {error}")

    def fitted(
        self,
        row: InputRow,
        schema: AnswerSchema,
        prompt: SegmentedPrompt,
        document: Document,
        more_parts: Mapping[str, str] = NO_PARTS,
    ) -> PreparedRow | RejectedRow:
        """The row with its prompt, cut or rejected if that is too long; `more_parts` are of its identity."""
        is_too_long = len(prompt) + schema.grammar.shortest_tokens > self.context_length
        if is_too_long and self.document_split is not None:
            return self._in_pieces(row, document, schema, prompt, more_parts)
        if is_too_long:
            fitting = self._too_long(row, document, schema, prompt)
            if isinstance(fitting, RejectedRow):
                return fitting
            prompt = fitting
        samples = row.program.samples or self.samples
        parts = self.identity.parts(schema, samples)
        whole = {**parts, **more_parts} if more_parts else parts
        return PreparedRow(row, schema, prompt, self.identity.digest(row, schema, prompt, samples), whole, samples)

    def _in_pieces(
        self,
        row: InputRow,
        document: Document,
        schema: AnswerSchema,
        prompt: SegmentedPrompt,
        more_parts: Mapping[str, str],
    ) -> PreparedRow | RejectedRow:
        """The row with the prompts of its document's pieces."""
        assert self.document_split is not None
        pieces = self.document_split.pieces(prompt, row, document, schema.name, schema.text)
        longest = max(len(piece) for _, piece in pieces)
        why = None
        if len(pieces) == 1 or longest + schema.grammar.shortest_tokens > self.context_length:
            why = (
                f"a prompt with a piece of its document has {longest} tokens and the shortest answer "
                f"{schema.grammar.shortest_tokens}, but the model's context is {self.context_length}; shorten the "
                "question, or lower split.piece_tokens"
            )
        elif (row.program.samples or self.samples) > 1:
            why = "its document is asked in pieces, which is not done with samples; set samples to 1 for it"
        if why is not None:
            return RejectedRow(row, "too_long", f"{row.place}: {why}", schema.name, len(prompt))
        parts = {**self.identity.parts(schema), **more_parts, "split": self.document_split.settings_digest}
        whole = f"{self.identity.digest(row, schema, prompt)}, {self.document_split.settings_digest}"
        digest = hashlib.sha256(whole.encode()).hexdigest()
        return PreparedRow(row, schema, prompt, digest, parts, pieces=tuple(pieces))

    def _too_long(
        self, row: InputRow, document: Document, schema: AnswerSchema, prompt: SegmentedPrompt
    ) -> SegmentedPrompt | RejectedRow:
        """What becomes of the prompt of a row that doesn't fit the model's context, by run.on_too_long."""
        shortest = schema.grammar.shortest_tokens
        why = f"{row.place}: the prompt has {len(prompt)} tokens and its shortest answer {shortest}, but the model's "
        why += f"context is {self.context_length}; "
        if self.document_cut is None:
            why += "shorten the document or choose a model with a longer context"
            return RejectedRow(row, "too_long", why, schema.name, len(prompt))
        cut = self.document_cut.cut(prompt, row, document, shortest)
        if cut is None:
            why += "no part of its document would fit; shorten the question or choose a model with a longer context"
            return RejectedRow(row, "too_long", why, schema.name, len(prompt))
        return cut
