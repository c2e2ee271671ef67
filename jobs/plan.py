"""The plan of a run: which rows run, in which order, and the least that any engine must compute. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from engine.prefix_order import depth_first_order, first_positions
from jobs.answer_schemas import AnswerSchema, AnswerSchemas, RowSchemaError
from jobs.job_settings import SamplingSettings
from jobs.prompt import PromptBuilder
from jobs.source import InputData, InputRow

# Raise it when a change to docqa may change answers, so that rows answered before are answered again.
DIGEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row that will run. `minimum_tokens` counts the prompt positions that no earlier row of the plan has."""

    row: InputRow
    schema: AnswerSchema
    prompt: np.ndarray  # int32 token ids
    digest: str
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
    """Everything a run would do. `rows` are in depth-first order of their prompts' prefix tree."""

    rows: list[PlannedRow]
    rejected: list[RejectedRow]
    answered_rows: int  # have a valid answer to this very request
    total_rows: int
    document_tokens: Mapping[str, int]  # by document hash, of documents that run

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


@dataclass(frozen=True)
class Planner:
    """What a plan depends on beside the rows: prompts, schemas, the model's identity and context, and sampling."""

    prompts: PromptBuilder
    schemas: AnswerSchemas
    model_fingerprint: str
    context_length: int
    sampling: SamplingSettings

    def plan(
        self,
        data: InputData,
        answered_digests: Iterable[str] = (),
        on_progress: Callable[[int], None] = lambda rows: None,
    ) -> Plan:
        """Plan all rows of `data` but those whose digest is answered; `on_progress` hears how many rows are done."""
        answered = frozenset(answered_digests)
        runnable: list[tuple[InputRow, AnswerSchema, np.ndarray, str]] = []
        rejected: list[RejectedRow] = []
        document_tokens: dict[str, int] = {}
        answered_rows = 0
        for count, row in enumerate(data.rows):
            if count % 256 == 0:
                on_progress(count)
            outcome = self._prepare(row, data)
            if isinstance(outcome, RejectedRow):
                rejected.append(outcome)
                continue
            schema, prompt, digest = outcome
            if digest in answered:
                answered_rows += 1
                continue
            assert row.document_hash is not None
            if row.document_hash not in document_tokens:
                document = data.documents[row.document_hash]
                document_tokens[row.document_hash] = len(self.prompts.document_ids(row, document))
            runnable.append((row, schema, prompt, digest))
        order = depth_first_order([prompt for _, _, prompt, _ in runnable])
        ordered = [runnable[index] for index in order]
        minimums = first_positions([prompt for _, _, prompt, _ in ordered])
        rows = [
            PlannedRow(row, schema, prompt, digest, minimum, self._max_output_tokens(prompt))
            for (row, schema, prompt, digest), minimum in zip(ordered, minimums, strict=True)
        ]
        return Plan(rows, rejected, answered_rows, len(data.rows), document_tokens)

    def _prepare(self, row: InputRow, data: InputData) -> tuple[AnswerSchema, np.ndarray, str] | RejectedRow:
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
        return schema, prompt, self._digest(row, schema, prompt)

    def _max_output_tokens(self, prompt: np.ndarray) -> int:
        return min(self.sampling.max_tokens, self.context_length - len(prompt))

    def _digest(self, row: InputRow, schema: AnswerSchema, prompt: np.ndarray) -> str:
        """Identity of a request: everything that can change its answer, and the key it is filed under."""
        identity = [
            DIGEST_VERSION, row.doc_id, row.question_id, self.model_fingerprint, asdict(self.sampling), schema.text
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(identity).encode() + prompt.tobytes()).hexdigest()


def row_seed(seed: int, doc_id: str, question_id: str) -> int:
    """The seed of one row: of the job's seed and the row's key, so that it does not depend on batch or order."""
    key = json.dumps([seed, doc_id, question_id]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
