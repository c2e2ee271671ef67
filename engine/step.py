"""One forward step: which tokens of which sequences run, where their KV goes, and who gets a next token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.page_pool import NULL_PAGE
from engine.radix_cache import TailCopy
from engine.sequence import Sequence


@dataclass(frozen=True)
class SequenceRows:
    """Consecutive query rows of one sequence in a step: rows `row_start` .. at positions `first_position` .. ."""

    row_start: int
    row_count: int
    first_position: int
    page_table: np.ndarray  # int32, the page of each page index
    prompt_count: int = 0  # leading rows that compute tokens of the prompt; the others are output and drafts

    @property
    def key_count(self) -> int:
        """Keys that the last row sees."""
        return self.first_position + self.row_count


@dataclass(frozen=True)
class SampledRows:
    """Rows of a step that predict tokens of a sequence: its next one, and one after each token of its draft."""

    sequence: Sequence
    row_start: int
    row_count: int


@dataclass(frozen=True)
class Step:
    """One forward step; `StepBuilder` makes it, the runner executes it."""

    token_ids: np.ndarray  # int64 [rows]
    positions: np.ndarray  # int64 [rows]
    rows: list[SequenceRows]
    write_rows: np.ndarray  # int64 [writes]: row `write_rows[i]` puts its key and value ...
    write_slots: np.ndarray  # int64 [writes]: ... into slot `write_slots[i]`; a row may write to several
    copy_sources: np.ndarray  # int64 [copies]: slots whose KV is older than this step ...
    copy_targets: np.ndarray  # int64 [copies]: ... and where it goes before the step
    prompt_rows: int  # rows that compute tokens of prompts, of all sequences
    sampled: list[SampledRows]
    resumed: list[Sequence]  # whose prompt end was computed for an identical prompt: no row, but a token


class StepBuilder:
    """Collects sequences' rows, KV writes and tail copies into a `Step`."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._tokens: list[np.ndarray] = []
        self._positions: list[np.ndarray] = []
        self._rows: list[SequenceRows] = []
        self._row_count = 0
        self._prompt_rows = 0
        self._writer_of_slot: dict[int, int] = {}
        self._write_rows: list[np.ndarray] = []
        self._write_slots: list[np.ndarray] = []
        self._copies: dict[int, int] = {}  # target slot -> source slot, older than this step
        self._sampled: list[SampledRows] = []
        self.resumed: list[Sequence] = []

    @property
    def row_count(self) -> int:
        """Query rows so far."""
        return self._row_count

    @property
    def is_empty(self) -> bool:
        """True when neither a row runs nor a sequence gets a token."""
        return self._row_count == 0 and not self.resumed

    def copy_tail(self, copy: TailCopy) -> None:
        """Copy leading slots of a page. A slot written in this very step is written twice instead."""
        for offset in range(copy.slots):
            source = copy.source * self._page_size + offset
            target = copy.target * self._page_size + offset
            writer = self._writer_of_slot.get(source)
            if writer is None:
                self._copies[target] = self._copies.get(source, source)  # a copy of a copy comes from its origin
            else:
                self._write_rows.append(np.array([writer]))
                self._write_slots.append(np.array([target]))
                self._writer_of_slot[target] = writer

    def add(self, sequence: Sequence, first_position: int, count: int, *, keep_kv: bool = True) -> None:
        """Run `count` tokens of `sequence` from `first_position`. Without `keep_kv` their KV goes to the null page."""
        positions = np.arange(first_position, first_position + count, dtype=np.int64)
        rows = np.arange(self._row_count, self._row_count + count, dtype=np.int64)
        if keep_kv:
            slots = sequence.page_table[positions // self._page_size].astype(np.int64) * self._page_size
            slots += positions % self._page_size
            self._writer_of_slot.update(zip(slots.tolist(), rows.tolist(), strict=True))
        else:
            slots = np.full(count, NULL_PAGE * self._page_size, dtype=np.int64)
        self._tokens.append(sequence.tokens(first_position, count))
        self._positions.append(positions)
        prompt_count = max(0, min(count, sequence.prompt_length - first_position))
        self._rows.append(SequenceRows(self._row_count, count, first_position, sequence.page_table, prompt_count))
        self._write_rows.append(rows)
        self._write_slots.append(slots)
        self._row_count += count
        self._prompt_rows += prompt_count

    def sample_last_rows(self, sequence: Sequence, count: int = 1) -> None:
        """The last `count` rows added predict tokens of `sequence`."""
        self._sampled.append(SampledRows(sequence, self._row_count - count, count))

    def build(self) -> Step:
        """The finished step."""

        def join(parts: list[np.ndarray]) -> np.ndarray:
            return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)

        return Step(
            token_ids=join(self._tokens),
            positions=join(self._positions),
            rows=self._rows,
            write_rows=join(self._write_rows),
            write_slots=join(self._write_slots),
            copy_sources=np.fromiter(self._copies.values(), dtype=np.int64, count=len(self._copies)),
            copy_targets=np.fromiter(self._copies.keys(), dtype=np.int64, count=len(self._copies)),
            prompt_rows=self._prompt_rows,
            sampled=self._sampled,
            resumed=self.resumed,
        )
