"""The plan of a run: which rows run, in which order, and the least that any engine must compute. Imports no torch.

A plan holds a lean object a row, about 1.9 KB; prompts are put together when they are asked for. The text and the ids
of every distinct document lie in files without a name (see spill_file), about a byte a character and 4 bytes a token.
Documents that read differently in each row, because prompt.document writes a value of the row, count once for each such
text; `docqa plan` warns of that.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from jobs.plan_rows import DependentRow, PlannedRow, RejectedRow

__all__ = ["DependentRow", "Plan", "PlannedRow", "RejectedRow", "row_seed"]


@dataclass(frozen=True)
class Plan:
    """Everything a run would do. `rows` are in depth-first order of their prompts' prefix tree.

    Every row of the input that can be asked is new, changed, failed before or done; a run takes on some of these and
    leaves the others alone.
    """

    rows: list[PlannedRow]
    rejected: list[RejectedRow]
    dependents: list[DependentRow]  # each behind those of them that it comes after
    document_tokens: Mapping[str, int]  # by document hash, of documents that run
    rows_new: int  # never tried
    rows_changed: int  # answered, but to another request
    changed_by: Mapping[str, int]  # part of the request -> how many rows it changed; a row may count in several
    rows_failed_before: int  # tried, without a valid answer
    rows_done: int  # have a valid answer to this very request
    rows_gone: int  # keys of the output that are not in the input any more
    answered_rows: int  # done, and left alone
    rows_left: int  # not done, and left alone
    combining_tokens: int = 0  # prompt and answer, at most, of what combines the answers of pieces

    @property
    def total_rows(self) -> int:
        """Rows of the input that the run is about: those it takes on and those that are done."""
        return self.rows_to_run + len(self.rejected) + self.answered_rows

    @property
    def rows_to_run(self) -> int:
        """Rows that are asked, those in pieces once each, and those that may be."""
        return sum(planned.is_whole for planned in self.rows) + len(self.dependents)

    @property
    def rows_split(self) -> int:
        """Rows whose document is asked in pieces."""
        return sum(planned.part is not None and planned.part.call == 0 for planned in self.rows)

    @property
    def piece_calls(self) -> int:
        """Calls that ask a piece of a document; how many combine their answers is found when these are there."""
        return sum(planned.part is not None for planned in self.rows)

    @property
    def rows_sampled(self) -> int:
        """Rows that are asked several times."""
        return sum(planned.samples > 1 for planned in self.rows)

    @property
    def sample_calls(self) -> int:
        """How often these are asked in all."""
        return sum(planned.samples for planned in self.rows if planned.samples > 1)

    @property
    def dependent_known_tokens(self) -> int:
        """Tokens that the prompts of waiting rows begin with; what follows depends on answers."""
        return sum(dependent.known_tokens for dependent in self.dependents)

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
        if self.rows_split:
            notes.append(
                f"{self.rows_split} rows have a document that is longer than the model's context, and are asked of its "
                f'pieces (run.on_too_long = "split"): {self.piece_calls} calls, and those that combine their answers'
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
        per_row = (planned.minimum_tokens + planned.samples * planned.max_output_tokens for planned in self.rows)
        behind = (dependent.reserve_tokens for dependent in self.dependents)
        # One more where a row leaves a shared page.
        return sum(-(-tokens // page_size) + 1 for tokens in (*per_row, *behind, self.combining_tokens))

    def pages_for_longest_row(self, page_size: int) -> int:
        """The smallest pool, in pages, with which every row can run; it computes everything once."""
        # The KV of an answer's last token is never read, so it needs no slot.
        lengths = [planned.prompt_tokens + planned.max_output_tokens - 1 for planned in self.rows]
        lengths += [len(dependent.prefix) + dependent.reserve_tokens for dependent in self.dependents]
        return max((-(-length // page_size) for length in (*lengths, self.combining_tokens)), default=1) or 1


def row_seed(seed: int, doc_id: str, question_id: str, call: int = 0) -> int:
    """The seed of one call of a row: of the job's seed and the row's key, so that it depends on no batch or order."""
    key = json.dumps([seed, doc_id, question_id, *([call] if call else [])]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
