"""What becomes of a run's rows as their requests end: drawn again, combined from pieces or calls, written down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from engine.request import Completion, FinishReason, Request
from jobs.plan import Plan, PlannedRow, RejectedRow
from jobs.planner import Planner
from jobs.run_feed import RowFeed
from jobs.run_record import RunWriter
from jobs.run_requests import RowRequests
from jobs.split_rows import SplitEnd, SplitRows


class RunRows:
    """The rows of a run, by place in its feed, and which of them have ended.

    `submit_again` gives the engine a request that goes before all others.
    """

    def __init__(
        self,
        plan: Plan,
        planner: Planner,
        feed: RowFeed,
        requests: RowRequests,
        writer: RunWriter,
        *,
        choose: str,
        submit_again: Callable[[Request], object],
    ) -> None:
        self._feed, self._requests, self._writer = feed, requests, writer
        self._choose = choose
        self._submit_again = submit_again
        # By place: 1 when the row is finished, and for the further parts of a row in pieces.
        self._ended = bytearray(not planned.is_whole for planned in plan.rows)
        self._splits = SplitRows(planner)
        self._split_places: dict[tuple[str, str], int] = {}  # of rows in pieces, by key
        self._same_rows: dict[int, list[int]] = defaultdict(list)  # places answered with that of another row
        for place, planned in enumerate(plan.rows):
            if planned.same_as is not None:
                self._same_rows[planned.same_as].append(place)

    @property
    def pending(self) -> int:
        """Rows that have not ended, those included that wait for others."""
        return self._ended.count(0) + len(self._feed.waiting)

    def unreached_documents(self) -> list[str]:
        """The doc_ids of pending rows, sorted."""
        self.take_in_new()  # a fault may have come between
        pending = {row.row.doc_id for row, ended in zip(self._feed.rows, self._ended, strict=True) if not ended}
        return sorted(pending | {dependent.row.doc_id for dependent in self._feed.waiting})

    def take_in_new(self) -> None:
        """Rows have joined the feed that had no prompt when the run began."""
        self._ended.extend(not planned.is_whole for planned in self._feed.rows[len(self._ended) :])

    def request_ended(self, completion: Completion) -> None:
        """File an answer under its row and under those that ask the very same, for which nothing was computed.

        A second draw is each row's own, because its seed depends on the row's key. A row that is asked several times is
        filed when its last call has ended, and is not drawn again.
        """
        if completion.request_id < 0:
            self._end_call(completion)
            return
        self._end_request(completion)
        for place in self._same_rows.pop(completion.request_id, ()):
            reached_model = completion.finish_reason is not FinishReason.TOO_LONG
            cached = completion.prompt_tokens if reached_model else 0
            self._end_request(
                replace(completion, request_id=place, cached_tokens=cached, computed_tokens=0, repeated_tokens={})
            )

    def _end_call(self, completion: Completion) -> None:
        ended = self._requests.end_call(completion)
        if ended is None:
            return
        place, calls = ended
        if completion.finish_reason is FinishReason.TOO_LONG:  # and so are the others
            self._end_request(replace(completion, request_id=place))
            return
        planned = self._feed.rows[place]
        self._ended[place] = 1
        record = self._writer.add_calls(planned, calls, self._choose)
        self._feed.row_ended(planned.row, record.status, record.answer, planned.segments)

    def _end_request(self, completion: Completion) -> None:
        place = completion.request_id
        planned = self._feed.rows[place]
        if self._draws_again(planned, completion):
            return
        if planned.part is not None:
            self._end_part(planned, completion)
            return
        self._ended[place] = 1
        if completion.finish_reason is FinishReason.TOO_LONG:
            error = f"{planned.row.place}: {completion.error}"
            rejected = RejectedRow(planned.row, "too_long", error, planned.schema.name, planned.prompt_tokens)
            self._writer.add_rejected(rejected)
            self._feed.row_ended(planned.row, rejected.status, None, planned.segments)
            return
        record = self._writer.add_completed(planned, completion, self._requests.first_draws.get(place))
        self._feed.row_ended(planned.row, record.status, record.answer, planned.segments)

    def _end_part(self, planned: PlannedRow, completion: Completion) -> None:
        """One of the pieces of a row's document has been asked, or their answers were combined."""
        place, row = completion.request_id, planned.row
        if planned.is_whole:
            self._split_places[row.doc_id, row.question_id] = place
        seed = self._requests.seed(place, planned)
        part = self._writer.ended_part(planned, completion, self._requests.first_draws.get(place), seed)
        end = self._splits.end_part(part)
        if not isinstance(end, SplitEnd):
            self._feed.add_parts(end)
            return
        self._ended[self._split_places.pop((row.doc_id, row.question_id))] = 1
        record = self._writer.add_split(end)
        self._feed.row_ended(row, record.status, record.answer, None)

    def _draws_again(self, planned: PlannedRow, completion: Completion) -> bool:
        """Submit a row whose finished answer breaks its schema once more; False if it doesn't, or was so before."""
        was_drawn_again = completion.request_id in self._requests.first_draws
        if completion.finish_reason is not FinishReason.STOP or was_drawn_again:
            return False
        if planned.schema.validator.check(self._writer.text_of(completion)).error is None:
            return False
        self._submit_again(self._requests.second_draw(planned, completion))
        return True
