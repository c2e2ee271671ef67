"""Which rows of an input have been answered, by what request, and which of them a run takes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path

from jobs.identity import DECIDING_PARTS, QUESTION_PART
from jobs.journal import journal_path, read_journal
from jobs.source import InputRow
from jobs.store import AnswerStore
from jobs.store_records import AnswerRecord, KeyState, clean_text

READ_WAIT_SECONDS = 10.0
"""How long another process may write to the database before reading gives up."""

UNKNOWN_PART = "unknown"
"""The part when none is known to differ: the answer is older than the record of parts, or a template uses a column of
the row that has changed."""


class Selection(Enum):
    """Which rows a run takes on."""

    UNANSWERED = "unanswered"  # those without a valid answer to this very request
    ALL = "all"
    FAILED = "failed"  # those whose newest attempt failed and that have no valid answer to this very request


class Standing(Enum):
    """How a row of the input stands before a run."""

    NEW = "new"  # never tried
    DONE = "done"  # its newest valid answer is one to this very request
    CHANGED = "changed"  # its newest valid answer is one to another request
    FAILED = "failed"  # tried, and no attempt was valid


@dataclass(frozen=True)
class AnswerHistory:
    """What is known of each key (doc_id, question_id): from the database, and from the journal what is newer.

    Only a key's newest valid answer counts. A job that went back to older settings must write anew, or
    `latest_answers` would show the other settings' answer.
    """

    states: Mapping[tuple[str, str], KeyState] = field(default_factory=dict)
    answers: Mapping[tuple[str, str], str] = field(default_factory=dict)  # JSON texts, of the keys that were asked for

    @classmethod
    def of(cls, database: Path, needed: Collection[tuple[str, str]] = ()) -> AnswerHistory:
        """Read both; what is not there is empty. `needed` are the keys whose answers are wanted. Raises OutputError."""
        # The journal first: a run that is on may publish it meanwhile, and then its answers are found in both.
        waiting = read_journal(journal_path(database)).answers
        store = open_existing(database)
        states = {} if store is None else store.key_states()
        answers = {} if store is None or not needed else store.valid_answers(needed)
        for record in waiting:
            key = (record.doc_id, record.question_id)
            states[key] = _after(states.get(key), record)
            if record.answer is not None and key in needed:
                answers[key] = record.answer
        return cls(states, answers)

    def standing(self, row: InputRow, digest: str | None, parts: Mapping[str, str]) -> tuple[Standing, list[str]]:
        """How a row stands, and if it has changed, by which parts; `digest` None for a row that can't be asked."""
        return standing_of(self.states.get((row.doc_id, row.question_id)), row, digest, parts)

    def takes(self, select: Selection, row: InputRow, standing: Standing) -> bool:
        """Whether a run takes on a row that stands so."""
        if select is Selection.FAILED:
            state = self.states.get((row.doc_id, row.question_id))
            return standing is not Standing.DONE and state is not None and state.newest_status != "ok"
        return select is Selection.ALL or standing is not Standing.DONE

    def gone(self, rows: Iterable[InputRow]) -> int:
        """How many keys that were tried are not in the input any more."""
        gone = set(self.states)
        if gone:
            gone.difference_update((row.doc_id, row.question_id) for row in rows)
        return len(gone)


def standing_of(
    state: KeyState | None, row: InputRow, digest: str | None, parts: Mapping[str, str]
) -> tuple[Standing, list[str]]:
    """How a row stands of whose key so much is known; see AnswerHistory.standing."""
    if state is None:
        return Standing.NEW, []
    if not state.has_answer:
        return Standing.FAILED, []
    changed = _changed_parts(state, row, parts)
    if digest == state.request_digest and not set(changed) & set(DECIDING_PARTS):
        return Standing.DONE, []
    return Standing.CHANGED, changed or [UNKNOWN_PART]


def open_existing(database: Path, wait_seconds: float = 0.0) -> AnswerStore | None:
    """A database to read from, or None if there is none yet; if a process writes to it, wait for that.

    Raises OutputError for what is no store of docqa, or a newer one, and OutputBusy.
    """
    if not database.exists() or (database.is_file() and database.stat().st_size == 0):
        return None
    return AnswerStore(database, read_only=True, lock_timeout_seconds=max(wait_seconds, READ_WAIT_SECONDS))


def _changed_parts(state: KeyState, row: InputRow, parts: Mapping[str, str]) -> list[str]:
    changed = []
    if state.document_hash != row.document_hash:
        changed.append("document")
    # That of a row which comes after others is a template, and stands in the parts: in its place is what it became.
    if QUESTION_PART not in parts and state.question_md5 != _md5(row.question):
        changed.append(QUESTION_PART)
    known = _known_parts(state.request_parts) if state.request_parts else {}
    return changed + [name for name, digest in parts.items() if name in known and known[name] != digest]


@lru_cache(maxsize=1024)
def _known_parts(text: str) -> Mapping[str, str]:
    """The parts of a request, of which a job has few."""
    parts: dict[str, str] = json.loads(text)
    return parts


def _after(state: KeyState | None, record: AnswerRecord) -> KeyState:
    """What is known of a key after one more attempt."""
    if record.status != "ok":
        return KeyState(record.status) if state is None else state.with_newest_status(record.status)
    return KeyState(
        "ok", True, record.request_digest, record.request_parts, record.document_hash, _md5(record.question)
    )


def _md5(text: str | None) -> str | None:
    """As DuckDB's md5() of the stored text; to compare texts without reading them all."""
    stored = clean_text(text)
    return None if stored is None else hashlib.md5(stored.encode(), usedforsecurity=False).hexdigest()
