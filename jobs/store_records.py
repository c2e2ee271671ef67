"""The rows of the output database as frozen records, and how their texts are made fit to store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from jobs.validate import parse_strict

RUN_STATUSES = ("running", "finished", "interrupted", "failed", "out_of_time")
ANSWER_STATUSES = (
    "ok",
    "schema_violation",
    "truncated",
    "too_long",
    "empty_document",
    "empty_question",
    "invalid_utf8",
    "bad_schema",
    "failed",
)


def utc_now() -> datetime:
    """The time now, as an aware UTC timestamp."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A row of `runs`; times are UTC (a naive one is taken for UTC), `config` is JSON text.

    `rows_total` counts the input rows that the run took on (all of them, but for `docqa retry`), `rows_reused` those
    among them that an earlier run had answered and this one left alone, so
    `rows_total = rows_reused + rows_ok + rows_failed + pending`. The sums from `rows_ok` to
    `output_tokens`, without `rows_reused`, are kept by the store as answers are written.
    """

    run_id: str
    job_name: str = ""
    status: str = "running"
    started_at: datetime = field(default_factory=utc_now)
    finished_at: datetime | None = None
    model: str | None = None
    model_fingerprint: str | None = None
    config: str = "{}"
    rows_total: int = 0
    rows_ok: int = 0
    rows_failed: int = 0
    prompt_tokens: int = 0
    minimum_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    load_seconds: float | None = None
    seconds: float | None = None
    rows_reused: int = 0
    error: str | None = None
    """Why the run ended as it did; `killed` for one that never said."""
    rows_removed: int = 0
    """Attempts of this run that `docqa compact` removed since; its totals still count them."""
    bad_files: str | None = None
    """Input files that could not be read and were skipped, a JSON list of `{"file", "reason"}`; None if none."""
    statistics: str | None = None
    """What the engine measured, JSON as of RunStatistics.as_json; None while the run is on, and if nothing ran."""

    @property
    def rows_pending(self) -> int:
        """Input rows that have no answer yet."""
        return self.rows_total - self.rows_reused - self.rows_ok - self.rows_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call of a row; run and key are those of the row's AnswerRecord, which holds it.

    `call` counts from 0. `kind` is `sample`; or, of a row in pieces, `piece`, of `document[piece_start:piece_end]` in
    code points, or `combine`, which makes one answer of those of the calls `uses` (a JSON list). `chosen` marks the
    call whose answer is the row's. The other columns mean what they do in `answers`.
    """

    call: int
    kind: str
    seed: int
    status: str
    chosen: bool
    answer: str | None = None
    raw_text: str | None = None
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    minimum_tokens: int
    output_tokens: int
    ttft_seconds: float | None = None
    latency_seconds: float | None = None
    piece_start: int | None = None
    piece_end: int | None = None
    uses: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values; `CallRecord(**values)` makes the same."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """A row of `answers`. The token counts are None together, for a row that never reached the model.

    `attempt` is numbered by the store; what is given here is not read. `answer` and `extra` are JSON texts.
    `request_digest` is the identity of everything that can change the answer, the row's key included; `request_parts`
    (JSON text) has short digests of its parts, None for an answer that an older docqa wrote; `minimum_tokens` counts
    the prompt positions that this row is the first to need in the run's prefix tree; `quotes` (JSON text) says where
    the answer's quotes stand in the document (see QuoteLocator.places), None where its schema marks none;
    `document_tokens` are those of the whole document's part of the prompt, `used_document_tokens` those that the prompt
    had: fewer where the document was cut to fit; `confidence` (JSON text) says how sure the model was of a valid answer
    (see answer_confidence), None where nobody asked for it; `prompt_segments` (JSON text) has the figures of each
    segment of the prompt, in their order (see segment_figures); `repeated_tokens` (JSON text) counts prompt tokens that
    were computed more than once, by cause (see jobs/repeated_tokens.py). The last two are None for a row that never
    reached the model and where an older docqa wrote it. `calls` are those of a row for which the model was asked
    several times; their tokens add up to the row's.
    """

    run_id: str
    attempt: int = 0
    doc_id: str
    question_id: str
    document_hash: str | None = None
    question: str | None = None
    schema_name: str | None = None
    status: str
    answer: str | None = None
    raw_text: str | None = None
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    computed_tokens: int | None = None
    output_tokens: int | None = None
    ttft_seconds: float | None = None
    latency_seconds: float | None = None
    answered_at: datetime = field(default_factory=utc_now)
    extra: str | None = None
    request_digest: str | None = None
    minimum_tokens: int | None = None
    request_parts: str | None = None
    quotes: str | None = None
    document_tokens: int | None = None
    used_document_tokens: int | None = None
    confidence: str | None = None
    prompt_segments: str | None = None
    repeated_tokens: str | None = None
    calls: tuple[CallRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyState:
    """What a database knows of a key. From `request_digest` on: of its newest valid answer, if it `has_answer`."""

    newest_status: str  # of the newest attempt
    has_answer: bool = False
    request_digest: str | None = None
    request_parts: str | None = None
    document_hash: str | None = None
    question_md5: str | None = None

    def with_newest_status(self, status: str) -> KeyState:
        """The same after one more attempt that was not valid."""
        return replace(self, newest_status=status)


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """A row of `documents`: the SHA-256 of a text, its length in code points and in tokens, never the text."""

    document_hash: str
    characters: int
    tokens: int | None = None


def clean_text(text: str | None) -> str | None:
    """A text as DuckDB stores it: whole, NUL included; a lone surrogate, which is no character, becomes U+FFFD."""
    if text is None:
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text


def clean_json(text: str | None) -> str | None:
    """A text as a valid JSON text, so that no row can break a JSON column for its readers.

    Strict JSON stays as it is, byte for byte. Of JSON that only Python accepts, NaN and Infinity become null, lone
    surrogates U+FFFD, and of a repeated key the last counts. Anything else becomes one JSON string that holds it.
    """
    if text is None:
        return None
    try:
        parse_strict(text)
    except ValueError:
        pass
    else:
        return text
    try:
        value = json.loads(text, parse_constant=lambda name: None, parse_float=_finite_or_none)
        cleaned = clean_text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        cleaned = json.dumps(clean_text(text), ensure_ascii=False)
    return cleaned


def naive_utc(moment: datetime | None) -> datetime | None:
    """A time as the database holds it: UTC without a zone, so that no client shifts it."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment is not None and moment.tzinfo else moment


def run_values(run: RunRecord) -> dict[str, Any]:
    """The columns of a run's row, checked and made fit to store."""
    if run.status not in RUN_STATUSES:
        raise ValueError(f"unknown run status {run.status!r}")
    values: dict[str, Any] = {}
    for column in fields(run):
        value = getattr(run, column.name)
        values[column.name] = clean_text(value) if isinstance(value, str) else value
    values["config"] = clean_json(run.config)
    values["bad_files"] = clean_json(run.bad_files)
    values["statistics"] = clean_json(run.statistics)
    values["started_at"] = naive_utc(run.started_at)
    values["finished_at"] = naive_utc(run.finished_at)
    return values


def run_from_row(names: Sequence[str], row: Sequence[Any]) -> RunRecord:
    """The inverse of run_values; times come back aware."""
    values: dict[str, Any] = {
        name: value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
        for name, value in zip(names, row, strict=True)
    }
    return RunRecord(**values)


_JSON_COLUMNS = frozenset(
    ("answer", "extra", "request_parts", "quotes", "confidence", "prompt_segments", "repeated_tokens")
)
_ARROW_TYPES = {
    "attempt": pa.int64(),
    "prompt_tokens": pa.int64(),
    "cached_tokens": pa.int64(),
    "computed_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "minimum_tokens": pa.int64(),
    "document_tokens": pa.int64(),
    "used_document_tokens": pa.int64(),
    "ttft_seconds": pa.float64(),
    "latency_seconds": pa.float64(),
    "answered_at": pa.timestamp("us"),
}


def answers_table(batch: Sequence[AnswerRecord], attempts: Sequence[int]) -> pa.Table:
    """A batch as an Arrow table in the columns of `answers`; types are given, so an all-NULL column keeps its own.

    Raises ValueError for an unknown status.
    """
    columns: dict[str, pa.Array] = {}
    for column in fields(AnswerRecord):
        name = column.name
        values: list[Any]
        if name == "calls":
            continue  # in a table of their own
        if name == "attempt":
            values = list(attempts)
        elif name == "answered_at":
            values = [naive_utc(record.answered_at) for record in batch]
        elif name in _JSON_COLUMNS:
            values = [clean_json(getattr(record, name)) for record in batch]
        elif name in _ARROW_TYPES:
            values = [getattr(record, name) for record in batch]
        else:
            values = [clean_text(getattr(record, name)) for record in batch]
        columns[name] = pa.array(values, type=_ARROW_TYPES.get(name, pa.large_string()))
    for record in batch:
        if record.status not in ANSWER_STATUSES:
            raise ValueError(f"unknown answer status {record.status!r} of {record.doc_id!r}, {record.question_id!r}")
    return pa.table(columns)


def _finite_or_none(text: str) -> float | None:
    number = float(text)
    return number if abs(number) != float("inf") else None
