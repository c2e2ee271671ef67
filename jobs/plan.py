"""The plan of a run: which rows run, in which order, and the least that any engine must compute. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.prefix_order import depth_first_order, first_positions
from jobs.answer_schemas import AnswerSchema, AnswerSchemas, RowSchemaError
from jobs.identity import RequestIdentity
from jobs.prompt import PromptBuilder
from jobs.resume import AnswerHistory, Selection, Standing
from jobs.source import InputData, InputRow


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row that will run. `minimum_tokens` counts the prompt positions that no earlier row of the plan has."""

    row: InputRow
    schema: AnswerSchema
    prompt: np.ndarray  # int32 token ids
    digest: str
    parts: Mapping[str, str]
    minimum_tokens: int
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that can't run: `status` as in the answers table, and why."""

    row: InputRow
    status: str
    error: str
    schema_name: str | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True)
class Plan:
    """Everything a run would do. `rows` are in depth-first order of their prompts' prefix tree.

    Every row of the input that can be asked is new, changed, failed before or done; a run takes on some of these and
    leaves the others alone.
    """

    rows: list[PlannedRow]
    rejected: list[RejectedRow]
    document_tokens: Mapping[str, int]  # by document hash, of documents that run
    rows_new: int  # never tried
    rows_changed: int  # answered, but to another request
    changed_by: Mapping[str, int]  # part of the request -> how many rows it changed; a row may count in several
    rows_failed_before: int  # tried, without a valid answer
    rows_done: int  # have a valid answer to this very request
    rows_gone: int  # keys of the output that are not in the input any more
    answered_rows: int  # done, and left alone
    rows_left: int  # not done, and left alone

    @property
    def total_rows(self) -> int:
        """Rows of the input that the run is about: those it takes on and those that are done."""
        return len(self.rows) + len(self.rejected) + self.answered_rows

    @property
    def notes(self) -> list[str]:
        """What the user should know of rows that are not simply new or done, a sentence each."""
        notes = []
        if self.rows_changed:
            parts = ", ".join(f"{part} {rows}" for part, rows in self.changed_by.items())
            notes.append(f"{self.rows_changed} rows have changed since they were answered ({parts})")
        if self.rows_gone:
            notes.append(f"{self.rows_gone} rows that were tried before are not in the input any more")
        if self.rows_left:
            notes.append(f"{self.rows_left} rows are new or changed and left for docqa run")
        return notes

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(planned.prompt) for planned in self.rows)

    @property
    def minimum_tokens(self) -> int:
        """Distinct token positions in the prefix tree of all prompts."""
        return sum(planned.minimum_tokens for planned in self.rows)

    @property
    def rejected_by_status(self) -> dict[str, int]:
        """How many rows can't run, by status."""
        return dict(Counter(rejected.status for rejected in self.rejected))

    def pages_wanted(self, page_size: int) -> int:
        """KV pages with which nothing computed would ever have to make room: the whole prefix tree and all answers."""
        per_row = (planned.minimum_tokens + planned.max_output_tokens for planned in self.rows)
        return sum(-(-tokens // page_size) + 1 for tokens in per_row)  # one more where a row leaves a shared page

    def pages_for_longest_row(self, page_size: int) -> int:
        """The smallest pool, in pages, with which every row can run."""
        lengths = (len(planned.prompt) + planned.max_output_tokens for planned in self.rows)
        return max((-(-length // page_size) for length in lengths), default=1)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A row that can be asked, before it has a place in the order."""

    row: InputRow
    schema: AnswerSchema
    prompt: np.ndarray
    digest: str


EMPTY_HISTORY = AnswerHistory()


@dataclass(frozen=True)
class Planner:
    """What a plan depends on beside the rows: prompts, schemas, the model's context, the identity of requests."""

    prompts: PromptBuilder
    schemas: AnswerSchemas
    identity: RequestIdentity
    context_length: int
    max_tokens: int  # sampling.max_tokens

    def plan(
        self,
        data: InputData,
        history: AnswerHistory = EMPTY_HISTORY,
        select: Selection = Selection.UNANSWERED,
        on_progress: Callable[[int], None] = lambda rows: None,
    ) -> Plan:
        """Plan the rows of `data` that `select` takes on; `on_progress` hears how many rows have been looked at."""
        runnable: list[_Prepared] = []
        rejected: list[RejectedRow] = []
        document_tokens: dict[str, int] = {}
        standings: Counter[Standing] = Counter()
        changed_by: Counter[str] = Counter()
        answered_rows = rows_left = 0
        for count, row in enumerate(data.rows):
            if count % 256 == 0:
                on_progress(count)
            outcome = self._prepare(row, data)
            if isinstance(outcome, RejectedRow):
                if history.takes(select, row, Standing.FAILED):
                    rejected.append(outcome)
                else:
                    rows_left += 1
                continue
            standing, changed = history.standing(row, outcome.digest, self.identity.parts(outcome.schema))
            standings[standing] += 1
            changed_by.update(changed)
            if not history.takes(select, row, standing):
                answered_rows += standing is Standing.DONE
                rows_left += standing is not Standing.DONE
                continue
            assert row.document_hash is not None
            if row.document_hash not in document_tokens:
                document = data.documents[row.document_hash]
                document_tokens[row.document_hash] = len(self.prompts.document_ids(row, document))
            runnable.append(outcome)
        return Plan(
            rows=self._ordered(runnable),
            rejected=rejected,
            document_tokens=document_tokens,
            rows_new=standings[Standing.NEW],
            rows_changed=standings[Standing.CHANGED],
            changed_by=dict(changed_by),
            rows_failed_before=standings[Standing.FAILED],
            rows_done=standings[Standing.DONE],
            rows_gone=history.gone(data.rows),
            answered_rows=answered_rows,
            rows_left=rows_left,
        )

    def _ordered(self, runnable: list[_Prepared]) -> list[PlannedRow]:
        """In depth-first order of the prompts' prefix tree, each with the positions it is the first to need."""
        order = depth_first_order([prepared.prompt for prepared in runnable])
        ordered = [runnable[index] for index in order]
        minimums = first_positions([prepared.prompt for prepared in ordered])
        return [
            PlannedRow(
                row=prepared.row,
                schema=prepared.schema,
                prompt=prepared.prompt,
                digest=prepared.digest,
                parts=self.identity.parts(prepared.schema),
                minimum_tokens=minimum,
                max_output_tokens=min(self.max_tokens, self.context_length - len(prepared.prompt)),
            )
            for prepared, minimum in zip(ordered, minimums, strict=True)
        ]

    def _prepare(self, row: InputRow, data: InputData) -> _Prepared | RejectedRow:
        if row.problem is not None:
            return RejectedRow(row, row.problem.status, row.problem.error)
        try:
            schema = self.schemas.of_row(row.schema)
        except RowSchemaError as error:
            return RejectedRow(row, "bad_schema", f"{row.place}: {error}")
        assert row.document_hash is not None
        prompt = self.prompts.prompt(row, data.documents[row.document_hash], schema.name, schema.text)
        shortest = schema.grammar.shortest_tokens
        if len(prompt) + shortest > self.context_length:
            error_text = (
                f"{row.place}: the prompt has {len(prompt)} tokens and its shortest answer {shortest}, but the model's "
                f"context is {self.context_length}; shorten the document or choose a model with a longer context"
            )
            return RejectedRow(row, "too_long", error_text, schema.name, len(prompt))
        return _Prepared(row, schema, prompt, self.identity.digest(row, schema, prompt))


def row_seed(seed: int, doc_id: str, question_id: str) -> int:
    """The seed of one row: of the job's seed and the row's key, so that it does not depend on batch or order."""
    key = json.dumps([seed, doc_id, question_id]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
