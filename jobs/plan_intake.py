"""Rows of an input sorted by what a run does with them."""

from __future__ import annotations

from collections import Counter

from jobs.plan_dependents import AFTER_PART, template_part
from jobs.plan_rows import DependentRow, PreparedRow, RejectedRow, RowFate
from jobs.resume import UNKNOWN_PART, AnswerHistory, Selection, Standing
from jobs.source import InputRow
from jobs.store_records import KeyState


class Intake:
    """Sorts the rows of an input by what a run does with them, and counts how they stand."""

    def __init__(self, history: AnswerHistory, select: Selection) -> None:
        self._history, self._select = history, select
        self.runnable: list[PreparedRow] = []
        self.rejected: list[RejectedRow] = []
        self.dependents: list[DependentRow] = []
        self.document_tokens: dict[str, int] = {}
        self.standings: Counter[Standing] = Counter()
        self.changed_by: Counter[str] = Counter()
        self.answered_rows = self.rows_left = 0

    def take(self, row: InputRow, outcome: PreparedRow | RejectedRow) -> RowFate:
        """File a row that is ready to be asked, or can't be."""
        if isinstance(outcome, RejectedRow):
            if self._history.takes(self._select, row, Standing.FAILED):
                self.rejected.append(outcome)
            else:
                self.rows_left += 1
            return RowFate(status=outcome.status)
        standing, changed = self._history.standing(outcome.row, outcome.digest, outcome.parts)
        self.standings[standing] += 1
        self.changed_by.update(changed)
        stored = self._history.answers.get((row.doc_id, row.question_id)) if standing is Standing.DONE else None
        if not self._history.takes(self._select, row, standing):
            self.answered_rows += standing is Standing.DONE
            self.rows_left += standing is not Standing.DONE
            return RowFate(answer=stored, prompt=outcome.prompt)
        self._note_document(row, outcome.prompt.document_tokens)
        self.runnable.append(outcome)
        return RowFate(runs=True, prompt=outcome.prompt, stored=stored)

    def wait(self, dependent: DependentRow) -> RowFate:
        """File a row that waits for the answers of others; an answer of its own may turn out to be still valid."""
        row = dependent.row
        standing, changed = self._history.standing(row, None, template_part(row))
        if not self._history.takes(self._select, row, standing):
            return self.leave(row)
        self.standings[standing] += 1
        if standing is Standing.CHANGED:
            self.changed_by.update([name for name in changed if name != UNKNOWN_PART] or [AFTER_PART])
        self._note_document(row, dependent.prefix.whole_document_tokens)
        self.dependents.append(dependent)
        return RowFate(runs=True, dependent=dependent)

    def leave(self, row: InputRow) -> RowFate:
        """File a row that needs the answers of rows which are left alone."""
        self.standings[self._history.standing(row, None, {})[0]] += 1
        self.rows_left += 1
        return RowFate()

    def known_of(self, row: InputRow) -> tuple[KeyState | None, str | None]:
        """What is known of the row's key, and its answer if others need it; unless it is to be asked in any case."""
        key = row.doc_id, row.question_id
        return (
            (None, None)
            if self._select is Selection.ALL
            else (self._history.states.get(key), self._history.answers.get(key))
        )

    def _note_document(self, row: InputRow, tokens: int) -> None:
        assert row.document_hash is not None
        self.document_tokens.setdefault(row.document_hash, tokens)
