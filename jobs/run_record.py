"""Turns finished rows into answer records and writes them in batches while a run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.request import Completion, FinishReason
from jobs.plan import PlannedRow, RejectedRow
from jobs.source import InputRow
from jobs.store import AnswerRecord, AnswerStore, DocumentRecord

if TYPE_CHECKING:
    from jobs.run import PreparedJob

BATCH_ROWS = 256
BATCH_SECONDS = 5.0
"""Finished rows are written when there are this many, or when this long has passed: what a kill can lose at most."""


class RunWriter:
    """Collects the rows of one run, validates answers, and writes batches. Keeps the run's totals for progress."""

    def __init__(self, store: AnswerStore, run_id: str, prepared: PreparedJob) -> None:
        self._store = store
        self._run_id = run_id
        self._documents = prepared.data.documents
        self._document_tokens = prepared.plan.document_tokens
        self._max_tokens = prepared.job.sampling.max_tokens
        self._vocabulary = prepared.model.grammars.vocabulary
        self._batch: list[AnswerRecord] = []
        self._batch_documents: dict[str, DocumentRecord] = {}
        self._written_documents: set[str] = set()
        self._written_at = time.monotonic()
        self.rows_done = 0
        self.rows_failed = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.forced_tokens = 0

    def add_rejected(self, rejected: RejectedRow) -> None:
        """A row that never reached the model."""
        row = rejected.row
        self._add(
            AnswerRecord(
                **self._row_columns(row, rejected.schema_name),
                status=rejected.status,
                error=rejected.error,
            )
        )

    def text_of(self, completion: Completion) -> str:
        """The text of a completion. Only a cut answer can end inside a character."""
        return b"".join(self._vocabulary.tokens[token] for token in completion.output_tokens).decode(errors="replace")

    def add_completed(self, planned: PlannedRow, completion: Completion) -> None:
        """A row that the model answered; it is `ok` only if the answer ended and validates."""
        row = planned.row
        text = self.text_of(completion)
        status, answer, error = "ok", None, None
        if completion.finish_reason is FinishReason.STOP:
            validated = planned.schema.validator.check(text)
            if validated.error is None:
                answer = text
            else:
                status, error = "schema_violation", validated.error
        elif completion.finish_reason is FinishReason.LENGTH:
            limit = planned.max_output_tokens
            why = "sampling.max_tokens" if limit == self._max_tokens else "what the model's context leaves"
            status, error = "truncated", f"the answer was cut after {limit} tokens ({why}); raise the limit and retry"
        else:
            status, error = "failed", "the grammar allowed no further token; this is a fault of docqa, please report it"
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        self.output_tokens += len(completion.output_tokens)
        self.forced_tokens += completion.forced_tokens
        self._add(
            AnswerRecord(
                **self._row_columns(row, planned.schema.name),
                status=status,
                answer=answer,
                raw_text=text,
                error=error,
                finish_reason=str(completion.finish_reason),
                prompt_tokens=completion.prompt_tokens,
                cached_tokens=completion.cached_tokens,
                computed_tokens=completion.computed_tokens,
                output_tokens=len(completion.output_tokens),
                ttft_seconds=completion.ttft_seconds,
                latency_seconds=completion.latency_seconds,
                request_digest=planned.digest,
                minimum_tokens=planned.minimum_tokens,
            )
        )

    def flush_if_due(self) -> None:
        """Write the batch if it is large or old enough."""
        if len(self._batch) >= BATCH_ROWS or time.monotonic() - self._written_at >= BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is collected, in one transaction."""
        if self._batch:
            self._store.write_answers(self._batch, list(self._batch_documents.values()))
            self._written_documents.update(self._batch_documents)
            self._batch, self._batch_documents = [], {}
        self._written_at = time.monotonic()

    def _row_columns(self, row: InputRow, schema_name: str | None) -> dict[str, Any]:
        """The columns that every answer takes from its input row."""
        return {
            "run_id": self._run_id,
            "doc_id": row.doc_id,
            "question_id": row.question_id,
            "document_hash": row.document_hash,
            "question": row.question,
            "schema_name": schema_name,
            "extra": _extra_text(row.extra, row.gold),
        }

    def _add(self, record: AnswerRecord) -> None:
        self._batch.append(record)
        self.rows_done += 1
        self.rows_failed += record.status != "ok"
        document_hash = record.document_hash
        if document_hash is not None and document_hash not in self._written_documents:
            document = self._documents[document_hash]
            self._batch_documents[document_hash] = DocumentRecord(
                document_hash, len(document.text), self._document_tokens.get(document_hash)
            )


def _extra_text(extra: Mapping[str, object], gold: object) -> str | None:
    """The row's other columns as JSON; gold travels with them, so that answers can be evaluated from the database."""
    values = dict(extra) if gold is None else {**extra, "gold": gold}
    return json.dumps(values, ensure_ascii=False) if values else None
