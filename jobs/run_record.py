"""Turns finished rows into answer records, and counts the run's totals as they come."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.forward_work import ForwardWork
from engine.request import Completion, FinishReason
from jobs.confidence import answer_confidence
from jobs.journal_records import RunEnding
from jobs.plan import PlannedRow, RejectedRow
from jobs.prepare import PreparedJob
from jobs.quote_answers import QuoteLocator
from jobs.repeated_tokens import whole_row
from jobs.row_calls import SAMPLE, Call, EndedPart, Outcome, chosen_call, summed
from jobs.run_output import RunOutput
from jobs.segment_figures import segment_figures
from jobs.source import InputRow
from jobs.split_rows import SplitEnd
from jobs.store import AnswerRecord, DocumentRecord, RunRecord
from jobs.store_records import CallRecord

_SUMS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens", "output_tokens")


class RunWriter:
    """Validates the answers of one run, hands rows and their documents to its output, and keeps its totals."""

    def __init__(self, output: RunOutput, run: RunRecord, prepared: PreparedJob) -> None:
        self._output = output
        self._run = run
        self._documents = prepared.data.documents
        self._document_tokens = prepared.plan.document_tokens
        self._max_tokens = prepared.job.sampling.max_tokens
        self._work = ForwardWork.of(prepared.model.config)
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

    def add_rejected(self, rejected: RejectedRow) -> AnswerRecord:
        """A row that never reached the model, as it is filed."""
        columns = self._row_columns(rejected.row, rejected.schema_name)
        record = AnswerRecord(**columns, status=rejected.status, error=rejected.error)
        self._add(record)
        return record

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
        completion, repeated = whole_row(completion, first_draw)
        return self._add_row(planned, self._judged(planned, completion), completion, [(planned, completion)], repeated)

    def add_calls(self, planned: PlannedRow, calls: Sequence[Call], rule: str) -> AnswerRecord:
        """A row that the model was asked several times, as it is filed: with the answer that a rule chooses.

        If no answer is valid, it ends as its first call did.
        """
        judged = [self._judged(planned, call.completion) for call in calls]
        chosen = chosen_call([one.value for one in judged], [one.status == "ok" for one in judged], rule)
        outcome = judged[chosen or 0]
        if chosen is None:
            error = f"none of {len(calls)} answers is valid; of the first: {outcome.error}"
            outcome = replace(outcome, error=error)
        records = tuple(
            _call_record(number, call, one, number == chosen)
            for number, (call, one) in enumerate(zip(calls, judged, strict=True))
        )
        whole = replace(summed(calls), finish_reason=calls[chosen or 0].completion.finish_reason)
        repeated = {str(cause): tokens for cause, tokens in whole.repeated_tokens.items()}
        passes = [(planned, call.completion) for call in calls]
        return self._add_row(planned, outcome, whole, passes, repeated, records)

    def ended_part(
        self, planned: PlannedRow, completion: Completion, first_draw: Completion | None, seed: int
    ) -> EndedPart:
        """A part of a row that is asked in pieces, as it ended; nothing is filed yet."""
        completion, repeated = whole_row(completion, first_draw)
        if completion.finish_reason is FinishReason.TOO_LONG:
            outcome = Outcome("too_long", None, error=completion.error)
            completion = replace(completion, prompt_tokens=0)  # of which the model saw none
        else:
            outcome = self._judged(planned, completion)
        return EndedPart(planned, Call(seed, completion), outcome, repeated)

    def add_split(self, end: SplitEnd) -> AnswerRecord:
        """A row that was asked in pieces, as it is filed: with the answer of its last combining, if it came so far."""
        outcome = end.last.outcome
        if end.fault is not None:
            status = "too_long" if outcome.answer is not None else outcome.status
            outcome = Outcome(status, outcome.text, error=end.fault)
        planned = end.last.planned
        asked = [part for part in end.parts if part.call.completion.prompt_tokens]
        if not asked:
            error = f"{planned.row.place}: {end.fault}"
            return self.add_rejected(RejectedRow(planned.row, outcome.status, error, planned.schema.name))
        whole = summed([part.call for part in asked])
        whole = replace(whole, finish_reason=end.last.call.completion.finish_reason)
        repeated: Counter[str] = Counter()
        for part in asked:
            repeated.update(part.repeated)
        records = tuple(_part_record(part, end.fault is None and part is end.last) for part in end.parts)
        passes = [(part.planned, part.call.completion) for part in asked]
        return self._add_row(planned, outcome, whole, passes, dict(repeated), records)

    def _judged(self, planned: PlannedRow, completion: Completion) -> Outcome:
        """Whether an answer is valid, and what is in it."""
        row = planned.row
        text = self.text_of(completion)
        status = "ok"
        answer = error = quotes = confidence = value = None
        if completion.finish_reason is FinishReason.STOP:
            validated = planned.schema.validator.check(text)
            if validated.error is None:
                answer, value = text, validated.value
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
        return Outcome(status, text, answer, value, error, quotes, confidence)

    def _add_row(
        self,
        planned: PlannedRow,
        outcome: Outcome,
        completion: Completion,
        passes: Sequence[tuple[PlannedRow, Completion]],
        repeated: Mapping[str, int],
        calls: tuple[CallRecord, ...] = (),
    ) -> AnswerRecord:
        """File a row that reached the model; `passes` are the prompts that it was asked with, and how each ended."""
        self.forced_tokens += completion.forced_tokens
        segments = segment_figures(((asked.segments.segment_tokens(), ended) for asked, ended in passes), self._work)
        part = planned.part
        record = AnswerRecord(
            **self._row_columns(planned.row, planned.schema.name),
            **_ending_columns(outcome, completion),
            request_digest=planned.digest,
            request_parts=json.dumps(dict(planned.parts)),
            quotes=outcome.quotes,
            document_tokens=part.document_tokens if part else planned.segments.document_tokens,
            used_document_tokens=part.document_tokens if part else planned.segments.used_document_tokens,
            confidence=outcome.confidence,
            prompt_segments=json.dumps(segments),
            repeated_tokens=json.dumps(repeated),
            calls=calls,
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
                DocumentRecord(document_hash, document.characters, self._document_tokens.get(document_hash))
            )
        self._output.append(record)
        self.rows_ok += record.status == "ok"
        self.rows_failed += record.status != "ok"
        for name in _SUMS:
            self._totals[name] += getattr(record, name) or 0


def _part_record(part: EndedPart, chosen: bool) -> CallRecord:
    about = part.planned.part
    assert about is not None
    return replace(
        _call_record(about.call, part.call, part.outcome, chosen),
        kind=about.kind,
        piece_start=about.start,
        piece_end=about.end,
        uses=json.dumps(about.uses) if about.uses else None,
    )


def _call_record(number: int, call: Call, outcome: Outcome, chosen: bool) -> CallRecord:
    columns = _ending_columns(outcome, call.completion)
    return CallRecord(call=number, kind=SAMPLE, seed=call.seed, chosen=chosen, **columns)


def _ending_columns(outcome: Outcome, completion: Completion) -> dict[str, Any]:
    """The columns that rows and calls take from how the model's answer ended."""
    return {
        "status": outcome.status,
        "answer": outcome.answer,
        "raw_text": outcome.text,
        "error": outcome.error,
        "finish_reason": str(completion.finish_reason),
        "prompt_tokens": completion.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "computed_tokens": completion.computed_tokens,
        "minimum_tokens": completion.minimum_tokens,
        "output_tokens": len(completion.output_tokens),
        "ttft_seconds": completion.ttft_seconds,
        "latency_seconds": completion.latency_seconds,
    }


def _extra_text(extra: Mapping[str, object], gold: object) -> str | None:
    """The row's other columns as JSON; gold travels with them, so that answers can be evaluated from the database."""
    values = dict(extra) if gold is None else {**extra, "gold": gold}
    return json.dumps(values, ensure_ascii=False) if values else None
