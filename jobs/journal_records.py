"""The records of a journal: everything a run writes to its database, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from jobs.schema_types import Schema
from jobs.store_records import AnswerRecord, CallRecord, DocumentRecord, RunRecord, utc_now


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnding:
    """How a run ended, and its totals that are no sums of rows."""

    run_id: str
    status: str
    error: str | None = None
    finished_at: datetime = field(default_factory=utc_now)
    forced_tokens: int = 0
    load_seconds: float | None = None
    seconds: float | None = None
    statistics: str | None = None
    """As in RunRecord."""
    steps: list[dict[str, Any]] | None = None
    """The run's steps in buckets, each as of StepBucket.as_dict."""
    rows_reused: int | None = None  # None: as many as when the run began


@dataclass(frozen=True, slots=True)
class SchemaViews:
    """Schemas by name, of which the database shall have typed views."""

    schemas: Mapping[str, Schema]


JournalRecord = RunRecord | DocumentRecord | AnswerRecord | RunEnding | SchemaViews

_KINDS: dict[str, type[JournalRecord]] = {
    "run": RunRecord,
    "document": DocumentRecord,
    "answer": AnswerRecord,
    "end": RunEnding,
    "schemas": SchemaViews,
}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: tuple(column.name for column in fields(kind)) for kind in _KIND_NAMES}
_TIMES = ("started_at", "finished_at", "answered_at")


def encode_record(record: JournalRecord) -> bytes:
    """A record as ASCII JSON, so that any text survives, lone surrogates included."""
    kind = type(record)
    values: dict[str, Any] = {"kind": _KIND_NAMES[kind]}
    for name in _FIELDS[kind]:
        value = getattr(record, name)
        if name == "calls":
            values |= {name: [call.as_dict() for call in value]} if value else {}
        elif value is not None:
            values[name] = _utc(value).isoformat() if isinstance(value, datetime) else value
    return json.dumps(values, separators=(",", ":")).encode()


def decode_record(payload: bytes) -> JournalRecord:
    """The inverse. Raises ValueError, KeyError or TypeError for what is no record."""
    values = json.loads(payload)
    kind = _KINDS[values.pop("kind")]
    for name in _TIMES:
        if name in values:
            values[name] = datetime.fromisoformat(values[name])
    if "calls" in values:
        values["calls"] = tuple(CallRecord(**call) for call in values["calls"])
    return kind(**values)


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
