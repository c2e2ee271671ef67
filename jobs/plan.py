"""The plan of a run: which rows run, in which order, and the least that any engine must compute. Imports no torch.

A plan holds the text and the ids of every distinct document, and a lean object a row: prompts are put together when
they are asked for. So it takes a byte a character (of ASCII; up to 4 of other scripts), 4 bytes a token of each
document, and about 1.9 KB a row. Measured: 1,000,000 rows over 50,000 documents of 4,000 characters take 2.4 GiB, where
their prompts alone would be 3.7 GiB. Documents that read differently in each row, because prompt.document writes a
value of the row, count once for each such text; `docqa plan` warns of that.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jobs.answer_schemas import AnswerSchema, AnswerSchemas, RowSchemaError
from jobs.identity import RequestIdentity
from jobs.plan_order import first_positions_in_order, plan_order
from jobs.prompt import Asked, PromptBuilder
from jobs.prompt_cut import DocumentCut
from jobs.prompt_segments import SegmentedPrompt
from jobs.resume import AnswerHistory, Selection, Standing
from jobs.source import InputData, InputRow


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row that will run. `minimum_tokens` counts the prompt positions that no earlier row of the plan has.

    `same_as` is the place in the plan of an earlier row that asks the model the very same: prompt, schema, settings.
    """

    row: InputRow
    schema: AnswerSchema
    segments: SegmentedPrompt
    digest: str
    parts: Mapping[str, str]
    minimum_tokens: int
    max_output_tokens: int
    same_as: int | None = None

    @property
    def prompt(self) -> np.ndarray:
        """int32 token ids, put together anew each time."""
        return self.segments.ids()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.segments)


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
        if self.rows_cut:
            notes.append(
                f"{self.rows_cut} rows get only the beginning of their document, which is longer than the model's "
                'context (run.on_too_long = "truncate"); answers.used_document_tokens says how much'
            )
        if self.rows_left:
            notes.append(f"{self.rows_left} rows are new or changed and left for docqa run")
        return notes

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(planned.prompt_tokens for planned in self.rows)

    @property
    def minimum_tokens(self) -> int:
        """Distinct token positions in the prefix tree of all prompts."""
        return sum(planned.minimum_tokens for planned in self.rows)

    @property
    def rows_same(self) -> int:
        """Rows that ask the very same as another one of the plan, and are answered with it."""
        return sum(planned.same_as is not None for planned in self.rows)

    @property
    def rows_cut(self) -> int:
        """Rows whose document was cut at its end, so that they fit the model's context."""
        return sum(planned.segments.is_cut for planned in self.rows)

    @property
    def documents_cut(self) -> int:
        """Documents that were cut for at least one row."""
        return len({planned.row.document_hash for planned in self.rows if planned.segments.is_cut})

    @property
    def rejected_by_status(self) -> dict[str, int]:
        """How many rows can't run, by status."""
        return dict(Counter(rejected.status for rejected in self.rejected))

    def pages_wanted(self, page_size: int) -> int:
        """KV pages with which nothing computed would ever have to make room: the whole prefix tree and all answers."""
        per_row = (planned.minimum_tokens + planned.max_output_tokens for planned in self.rows)
        return sum(-(-tokens // page_size) + 1 for tokens in per_row)  # one more where a row leaves a shared page

    def pages_for_longest_row(self, page_size: int) -> int:
        """The smallest pool, in pages, with which every row can run; it computes everything once."""
        # The KV of an answer's last token is never read, so it needs no slot.
        lengths = (planned.prompt_tokens + planned.max_output_tokens - 1 for planned in self.rows)
        return max((-(-length // page_size) for length in lengths), default=1)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A row that can be asked, before it has a place in the order."""

    row: InputRow
    schema: AnswerSchema
    prompt: SegmentedPrompt
    digest: str


EMPTY_HISTORY = AnswerHistory()


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
        for count, (row, outcome) in enumerate(self._outcomes(data)):
            if count % 256 == 0:
                on_progress(count)
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
            document_tokens.setdefault(row.document_hash, outcome.prompt.document_tokens)
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
        order = plan_order([prepared.prompt for prepared in runnable])
        ordered = [runnable[index] for index in order]
        minimums = first_positions_in_order([prepared.prompt for prepared in ordered])
        originals = self._originals(ordered, minimums)
        return [
            PlannedRow(
                row=prepared.row,
                schema=prepared.schema,
                segments=prepared.prompt,
                digest=prepared.digest,
                parts=self.identity.parts(prepared.schema),
                minimum_tokens=minimum,
                max_output_tokens=min(self.max_tokens, self.context_length - len(prepared.prompt)),
                same_as=original,
            )
            for prepared, minimum, original in zip(ordered, minimums, originals, strict=True)
        ]

    def _originals(self, ordered: Sequence[_Prepared], minimums: Sequence[int]) -> list[int | None]:
        """For each row, where the first one stands that asks the very same, if it is another one."""
        if not self.identity.keys_share_answers:
            return [None] * len(ordered)
        originals: list[int | None] = []
        first_with: dict[str, int] = {}  # by schema, of the rows with this very prompt
        length = -1
        for place, (prepared, minimum) in enumerate(zip(ordered, minimums, strict=True)):
            if minimum > 0 or len(prepared.prompt) != length:
                first_with.clear()
            length = len(prepared.prompt)
            first = first_with.setdefault(prepared.schema.text, place)
            originals.append(None if first == place else first)
        return originals

    def _outcomes(self, data: InputData) -> Iterator[tuple[InputRow, _Prepared | RejectedRow]]:
        """Each row of the input, ready to be asked or rejected."""
        schemas = [self._schema_of(row) for row in data.rows]
        prompts = self.prompts.prompts(
            Asked(row, data.documents[row.document_hash], schema.name, schema.text)
            for row, schema in zip(data.rows, schemas, strict=True)
            if isinstance(schema, AnswerSchema) and row.document_hash is not None
        )
        for row, schema in zip(data.rows, schemas, strict=True):
            if isinstance(schema, RejectedRow):
                yield row, schema
                continue
            prompt = next(prompts)
            if len(prompt) + schema.grammar.shortest_tokens <= self.context_length:
                yield row, self._prepared(row, schema, prompt)
            else:
                yield row, self._too_long(row, data, schema, prompt)

    def _schema_of(self, row: InputRow) -> AnswerSchema | RejectedRow:
        if row.problem is not None:
            return RejectedRow(row, row.problem.status, row.problem.error)
        try:
            return self.schemas.of_row(row.schema)
        except RowSchemaError as error:
            return RejectedRow(row, "bad_schema", f"{row.place}: {error}")

    def _prepared(self, row: InputRow, schema: AnswerSchema, prompt: SegmentedPrompt) -> _Prepared:
        return _Prepared(row, schema, prompt, self.identity.digest(row, schema, prompt))

    def _too_long(
        self, row: InputRow, data: InputData, schema: AnswerSchema, prompt: SegmentedPrompt
    ) -> _Prepared | RejectedRow:
        """What becomes of a row that doesn't fit the model's context, by run.on_too_long."""
        shortest = schema.grammar.shortest_tokens
        why = f"{row.place}: the prompt has {len(prompt)} tokens and its shortest answer {shortest}, but the model's "
        why += f"context is {self.context_length}; "
        if self.document_cut is None:
            why += "shorten the document or choose a model with a longer context"
            return RejectedRow(row, "too_long", why, schema.name, len(prompt))
        assert row.document_hash is not None
        cut = self.document_cut.cut(prompt, row, data.documents[row.document_hash], shortest)
        if cut is None:
            why += "no part of its document would fit; shorten the question or choose a model with a longer context"
            return RejectedRow(row, "too_long", why, schema.name, len(prompt))
        return self._prepared(row, schema, cut)


def row_seed(seed: int, doc_id: str, question_id: str) -> int:
    """The seed of one row: of the job's seed and the row's key, so that it does not depend on batch or order."""
    key = json.dumps([seed, doc_id, question_id]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
