"""Turns finished rows into answer records, and counts the run's totals as they come."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.request import Completion, FinishReason
from jobs.confidence import answer_confidence
from jobs.journal_records import RunEnding
from jobs.plan import PlannedRow, RejectedRow
from jobs.prepare import PreparedJob
from jobs.quote_answers import QuoteLocator
from jobs.repeated_tokens import whole_row
from jobs.run_output import RunOutput
from jobs.source import InputRow
from jobs.store import AnswerRecord, DocumentRecord, RunRecord

_SUMS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens", "output_tokens")


class RunWriter:
    """Validates the answers of one run, hands rows and their documents to its output, and keeps its totals."""

    def __init__(self, output: RunOutput, run: RunRecord, prepared: PreparedJob) -> None:
        self._output = output
        self._run = run
        self._documents = prepared.data.documents
        self._document_tokens = prepared.plan.document_tokens
        self._max_tokens = prepared.job.sampling.max_tokens
        self._vocabulary = prepared.model.grammars.vocabulary
        self._quotes = QuoteLocator(prepared.data.documents)
        self._written_documents: set[str] = set()
        self._totals: Counter[str] = Counter()
        self.rows_ok = 0
        self.rows_reused = 0  # found to have a valid answer only while the run was on
        self.rows_failed = 0
        self.forced_tokens = 0

    @property
    def rows_done(self) -> int:
        """Rows that have ended."""
        return self.rows_ok + self.rows_failed + self.rows_reused

    @property
    def prompt_tokens(self) -> int:
        """Of the rows that have ended and reached the model."""
        return self._totals["prompt_tokens"]

    @property
    def cached_tokens(self) -> int:
        """Of the same rows."""
        return self._totals["cached_tokens"]

    @property
    def output_tokens(self) -> int:
        """Of the same rows."""
        return self._totals["output_tokens"]

    def record(self, ending: RunEnding) -> RunRecord:
        """The run as the database has it after its end."""
        return replace(
            self._run,
            status=ending.status,
            error=ending.error,
            finished_at=ending.finished_at,
            rows_ok=self.rows_ok,
            rows_reused=self._run.rows_reused + self.rows_reused,
            rows_failed=self.rows_failed,
            forced_tokens=ending.forced_tokens,
            load_seconds=ending.load_seconds,
            seconds=ending.seconds,
            statistics=ending.statistics,
            prompt_tokens=self._totals["prompt_tokens"],
            minimum_tokens=self._totals["minimum_tokens"],
            computed_tokens=self._totals["computed_tokens"],
            cached_tokens=self._totals["cached_tokens"],
            output_tokens=self._totals["output_tokens"],
        )

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

    def count_reused(self) -> None:
        """A row whose answer of before turned out to be valid still."""
        self.rows_reused += 1

    def add_completed(
        self, planned: PlannedRow, completion: Completion, first_draw: Completion | None = None
    ) -> AnswerRecord:
        """A row that the model answered, as it is filed; it is `ok` only if the answer ended and validates.

        `first_draw` is what it was answered with before it was asked again, if it was.
        """
        row = planned.row
        completion, repeated = whole_row(completion, first_draw)
        text = self.text_of(completion)
        status = "ok"
        answer = error = quotes = confidence = None
        if completion.finish_reason is FinishReason.STOP:
            validated = planned.schema.validator.check(text)
            if validated.error is None:
                answer = text
                assert row.document_hash is not None  # no row without a document is asked
                quotes = self._quotes.places(planned.schema.schema, validated.value, row.document_hash)
                confidence = self._confidence(text, completion)
            else:
                status, error = "schema_violation", validated.error
        elif completion.finish_reason is FinishReason.LENGTH:
            limit = planned.max_output_tokens
            why = "sampling.max_tokens" if limit == self._max_tokens else "what the model's context leaves"
            status, error = "truncated", f"the answer was cut after {limit} tokens ({why}); raise the limit and retry"
        else:
            status, error = "failed", "the grammar allowed no further token; this is a fault of docqa, please report it"
        self.forced_tokens += completion.forced_tokens
        record = AnswerRecord(
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
            minimum_tokens=completion.minimum_tokens,
            request_parts=json.dumps(dict(planned.parts)),
            quotes=quotes,
            document_tokens=planned.segments.document_tokens,
            used_document_tokens=planned.segments.used_document_tokens,
            confidence=confidence,
            prompt_segments=json.dumps(planned.segments.segment_tokens()),
            repeated_tokens=json.dumps(repeated),
        )
        self._add(record)
        return record

    def _confidence(self, text: str, completion: Completion) -> str | None:
        if completion.log_probabilities is None:
            return None
        tokens = [self._vocabulary.tokens[token] for token in completion.output_tokens]
        return answer_confidence(text, tokens, completion.log_probabilities)

    def _row_columns(self, row: InputRow, schema_name: str | None) -> dict[str, Any]:
        """The columns that every answer takes from its input row."""
        return {
            "run_id": self._run.run_id,
            "doc_id": row.doc_id,
            "question_id": row.question_id,
            "document_hash": row.document_hash,
            "question": row.question,
            "schema_name": schema_name,
            "extra": _extra_text(row.extra, row.gold),
        }

    def _add(self, record: AnswerRecord) -> None:
        document_hash = record.document_hash
        if document_hash is not None and document_hash not in self._written_documents:
            self._written_documents.add(document_hash)
            document = self._documents[document_hash]
            self._output.append(
                DocumentRecord(document_hash, len(document.text), self._document_tokens.get(document_hash))
            )
        self._output.append(record)
        self.rows_ok += record.status == "ok"
        self.rows_failed += record.status != "ok"
        for name in _SUMS:
            self._totals[name] += getattr(record, name) or 0


def _extra_text(extra: Mapping[str, object], gold: object) -> str | None:
    """The row's other columns as JSON; gold travels with them, so that answers can be evaluated from the database."""
    values = dict(extra) if gold is None else {**extra, "gold": gold}
    return json.dumps(values, ensure_ascii=False) if values else None
