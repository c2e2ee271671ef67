"""Fills steps: decoding rows first, then prefill chunks, then new requests, strictly in plan order.

Why strictly in order: requests come depth first, so every node that is ready and still needed, and that no running
request locks, lies on the path of the next request. When the running requests end, the next one therefore finds
nothing in the pool that it cannot evict but its own prefix, and any pool that holds the longest row is enough to
compute every prefix once, without deadlock and without preemption.

Rows that are still to come have their place in that order too, by a hold. While it is open, later requests are admitted
only if they leave room for one such row. So when nothing runs, what earlier rows of the plan hold is nothing, and the
next row finds room beside what later ones hold. If the room that was left is too small, prefixes that are held go: they
are computed again, and counted as evicted.
"""

from __future__ import annotations

import time
from collections import Counter, deque

from engine.hold import Hold
from engine.radix_cache import RadixCache
from engine.radix_node import Node
from engine.sequence import Sequence
from engine.step import Step, StepBuilder

MAX_ROWS = 64
"""Rows that run at the same time, unless the settings say otherwise."""


class Scheduler:
    """Continuous batching with chunked prefill over a radix cache.

    `reserved_output` is the share of a row's longest output for which pages are taken at admission. At 1.0 no row is
    ever preempted; below, more rows run at once and the newest is preempted (and recomputed) if pages run out.
    """

    def __init__(self, cache: RadixCache, *, step_tokens: int, max_rows: int, reserved_output: float) -> None:
        self._cache = cache
        self._step_tokens = max(step_tokens, 1)
        self.max_rows = min(max_rows, self._step_tokens)  # so that every decoding row finds room in every step
        self._reserved_output = reserved_output
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._waiting_at: Counter[Node] = Counter()  # waiting sequences by the node their prompt ends in
        self._stored_ends: set[Node] = set()  # prompt ends whose hidden state the runner keeps
        self._rows_of: dict[Sequence, int] = {}  # of decoding sequences in the step being filled
        self.holds: list[Hold] = []  # open, in the order of the plan
        self.preemptions = 0

    def add(self, sequence: Sequence, *, first: bool = False) -> None:
        """Put a planned sequence at the end of the queue, or at its head."""
        if first:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)
        self._waiting_at[sequence.leaf] += 1

    def add_held(self, sequence: Sequence) -> None:
        """Put a planned sequence of an open hold where it belongs: behind those of its hold and of earlier ones."""
        hold = sequence.request.hold
        assert hold in self.holds, "the hold was ended before its last row came"
        place = 0
        for index, other in enumerate(self.waiting):
            if other.request.hold is hold:
                place = index + 1
        while place < len(self.waiting) and _comes_before(self.waiting[place].request.hold, hold):
            place += 1
        self.waiting.insert(place, sequence)
        self._waiting_at[sequence.leaf] += 1

    def must_store_end(self, sequence: Sequence) -> bool:
        """Whether another waiting request has the identical prompt, so that the prompt's last state is needed again."""
        return self._waiting_at[sequence.leaf] > 0

    def end_was_stored(self, leaf: Node) -> None:
        """The runner keeps the hidden state of the prompt that ends in `leaf`."""
        self._stored_ends.add(leaf)

    def stored_end_is_needed(self, leaf: Node) -> bool:
        """False once no waiting request will ask for the stored state; it is forgotten then."""
        if self._waiting_at[leaf] > 0:
            return True
        self._stored_ends.discard(leaf)
        return False

    def next_step(self) -> Step | None:
        """The next step, or None when nothing is left to do."""
        builder = StepBuilder(self._cache.page_size)
        ending: set[Node] = set()
        for sequence in list(self.running):
            if sequence in self.running and sequence.is_decoding:
                self._make_room_for_output(sequence)
        room = self._reserve_decoding_rows()
        for sequence in self.running:  # in plan order, so that rows with common pages stand side by side
            if sequence.is_decoding:
                self._schedule(builder, sequence, self._rows_of[sequence], ending)
            elif room > 0:
                room -= self._schedule(builder, sequence, room, ending)
        while self.waiting and room > 0 and len(self.running) < self.max_rows:
            sequence = self.waiting[0]
            if self._cache.is_blocked(sequence.leaf) or sequence.leaf in ending or not self._admit(builder, sequence):
                break
            room -= self._schedule(builder, sequence, room, ending)
        return None if builder.is_empty else builder.build()

    def _reserve_decoding_rows(self) -> int:
        """Share the step among decoding rows: first what each must compute, then their drafts. Returns the rest."""
        room = self._step_tokens
        decoding = [sequence for sequence in self.running if sequence.is_decoding]
        self._rows_of = {}
        for sequence in decoding:
            self._rows_of[sequence] = min(sequence.to_compute, room)
            room -= self._rows_of[sequence]
        for sequence in decoding:
            del sequence.draft[room if self._rows_of[sequence] == sequence.to_compute else 0 :]
            self._rows_of[sequence] += len(sequence.draft)
            room -= len(sequence.draft)
        return room

    def finish(self, sequence: Sequence) -> None:
        """Take a running sequence out: its pages go back and its plan ends."""
        self.running.remove(sequence)
        self._cache.release(sequence.leaf, sequence, sequence.give_up_pages())
        self._cache.finish(sequence.leaf)

    def preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to the head of the queue. Its output is kept and computed again as a prompt."""
        self.running.remove(sequence)
        self._cache.release(sequence.leaf, sequence, sequence.give_up_pages())
        self.waiting.appendleft(sequence)
        self._waiting_at[sequence.leaf] += 1
        self.preemptions += 1

    def abort(self) -> list[Sequence]:
        """Drop everything that is running or waiting; the cache keeps what is ready. Returns what was dropped."""
        dropped = [*self.running, *self.waiting]
        for sequence in list(self.running):
            self.finish(sequence)
        for sequence in self.waiting:
            self._cache.finish(sequence.leaf)
        self.waiting.clear()
        self._waiting_at.clear()
        self._stored_ends.clear()
        for hold in list(self.holds):
            self.end_hold(hold)
        return dropped

    def end_hold(self, hold: Hold) -> None:
        """All rows that a hold was for are planned, or won't come."""
        self.holds.remove(hold)
        for leaf in hold.leaves:
            self._cache.end_hold(leaf)

    def _pages_to_leave(self, hold: Hold | None) -> int:
        """For a row that is still to come before a request of this hold, or of none."""
        earlier = (other for other in self.holds if other.began and _comes_before(other, hold))
        return max((other.reserve_pages for other in earlier), default=0)

    def _admit(self, builder: StepBuilder, sequence: Sequence) -> bool:
        # The KV of the last output token is never read, so it needs no slot.
        reserved = max(len(sequence.output), round(self._reserved_output * (sequence.max_output_tokens - 1)))
        hold = sequence.request.hold
        claim = self._cache.claim(sequence.leaf, reserved, sequence, leave=self._pages_to_leave(hold))
        if claim is None and not self.running:
            claim = self._cache.claim(sequence.leaf, reserved, sequence, evict_planned=True)
        if claim is None:
            return False
        if hold is not None:
            hold.began = True
        self.waiting.popleft()
        self._waiting_at[sequence.leaf] -= 1
        self.running.append(sequence)
        sequence.admit(claim, time.monotonic())
        if claim.tail_copy is not None:
            builder.copy_tail(claim.tail_copy)
        return True

    def _schedule(self, builder: StepBuilder, sequence: Sequence, room: int, ending: set[Node]) -> int:
        """Put up to `room` tokens of `sequence` into the step; returns how many."""
        if sequence.to_compute == 0:
            return self._schedule_known_prompt(builder, sequence)
        count = min(sequence.to_compute + len(sequence.draft), room)
        if count == 0:
            return 0
        builder.add(sequence, sequence.computed, count)
        sequence.computed += count
        self._cache.advance(sequence.leaf, sequence, sequence.computed)
        if sequence.to_compute <= 0:
            builder.sample_last_rows(sequence, 1 + len(sequence.draft))
            if not sequence.output:
                ending.add(sequence.leaf)
        return count

    def _schedule_known_prompt(self, builder: StepBuilder, sequence: Sequence) -> int:
        """The whole prompt is in the cache: take its last state if it was kept, else run its last token again."""
        if sequence.leaf in self._stored_ends:
            builder.resumed.append(sequence)
            return 0
        sequence.run_last_token_again()
        builder.add(sequence, sequence.prompt_length - 1, 1, keep_kv=False)
        builder.sample_last_rows(sequence)
        return 1

    def _make_room_for_output(self, sequence: Sequence) -> None:
        capacity = len(sequence.page_table) * self._cache.page_size
        del sequence.draft[max(capacity - sequence.length, 0) :]  # a guess is not worth a page
        missing = self._cache.pages_for(sequence.length) - len(sequence.page_table)
        while missing > 0:
            if self._cache.make_room(missing):
                sequence.add_pages(self._cache.pool.allocate(missing))
                return
            newest = self.running[-1]
            if newest is sequence and len(self.running) == 1:
                assert self._cache.make_room(missing, evict_planned=True), "the pool was checked to hold this row"
                continue
            self.preempt(newest)
            if newest is sequence:
                return


def _comes_before(first: Hold | None, second: Hold | None) -> bool:
    """Whether requests of one open hold stand before those of another; those of none stand behind holds that began."""
    return first is not None and first is not second and (second is None or first.number < second.number)
