"""What the engine is asked for a row: one request, one more if its answer breaks its schema, or several."""

from __future__ import annotations

from dataclasses import replace

from engine.hold import Hold
from engine.request import Completion, Request, SamplingParameters
from jobs.job_settings import SamplingSettings
from jobs.plan import PlannedRow, row_seed
from jobs.row_calls import Call, RowCalls

RETRY_TEMPERATURE = 0.7
"""The least temperature of a second draw: at 0 it would be the first one again."""


class RowRequests:
    """Makes the requests of rows. Their ids are the rows' places in the plan; those of rows asked several times are
    negative.

    `first_draws` has, by place, what rows were answered with that were asked again.
    """

    def __init__(self, sampling: SamplingSettings, *, log_probabilities: bool) -> None:
        self._sampling = sampling
        self._log_probabilities = log_probabilities
        self.first_draws: dict[int, Completion] = {}
        self._calls: dict[int, RowCalls] = {}  # by place, of rows asked several times that are on
        self._call_of: dict[int, tuple[int, int]] = {}  # by request: the place, and which call of the row it is
        self._calls_made = 0

    def of_row(self, place: int, planned: PlannedRow, hold: Hold | None) -> list[Request]:
        """One request, or as many of one prompt as the row is asked for, each with a seed of its own."""
        whole = self._request(place, planned, hold)
        if planned.samples == 1:
            return [whole]
        row = planned.row
        seeds = [row_seed(self._sampling.seed, row.doc_id, row.question_id, call) for call in range(planned.samples)]
        self._calls[place] = RowCalls(seeds)
        requests = []
        for number, seed in enumerate(seeds):
            self._calls_made += 1
            self._call_of[-self._calls_made] = place, number
            sampling = replace(whole.sampling, seed=seed)
            requests.append(replace(whole, request_id=-self._calls_made, sampling=sampling))
        return requests

    def end_call(self, completion: Completion) -> tuple[int, list[Call]] | None:
        """One of several calls of a row has ended: the row's place and all its calls, if it was the last."""
        place, number = self._call_of.pop(completion.request_id)
        if not self._calls[place].add(number, completion):
            return None
        return place, self._calls.pop(place).in_order()

    def second_draw(self, planned: PlannedRow, first: Completion) -> Request:
        """The row once more, with the next seed and at least RETRY_TEMPERATURE."""
        self.first_draws[first.request_id] = first
        return self._request(first.request_id, planned, None)

    def seed(self, place: int, planned: PlannedRow) -> int:
        """The seed of the row's newest request, if it is not asked several times."""
        base = self._sampling.seed + (place in self.first_draws)
        return row_seed(base, planned.row.doc_id, planned.row.question_id, planned.part.call if planned.part else 0)

    def _request(self, place: int, planned: PlannedRow, hold: Hold | None) -> Request:
        sampling = self._sampling
        again = place in self.first_draws
        return Request(
            request_id=place,
            prompt=planned.prompt,
            sampling=SamplingParameters(
                temperature=max(sampling.temperature, RETRY_TEMPERATURE) if again else sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_tokens,
                seed=self.seed(place, planned),
            ),
            grammar=planned.schema.grammar,
            shortest_answer_tokens=planned.schema.grammar.shortest_tokens,
            log_probabilities=self._log_probabilities,
            hold=hold,
        )
