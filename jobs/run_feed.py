"""The order in which a run's rows go into the engine: as planned, and rows that wait for answers in their place.

Rows that come after others share their document with them. So the document's pages are held (see engine/hold.py) from
its first row on until its last waiting row is planned, and that one stands behind all others of the document. A row
that waits for rows which are planned behind its own document is an exception: its document is computed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.hold import Hold
from engine.prefix_order import sort_key
from engine.request import Completion, Request
from jobs.plan import Plan, PlannedRow, RejectedRow
from jobs.plan_dependents import missing_answer
from jobs.plan_rows import DependentRow
from jobs.planner import Planner
from jobs.prompt_segments import SegmentedPrompt, SharedPrefix
from jobs.resume import Standing, standing_of
from jobs.source import Document, InputRow

if TYPE_CHECKING:
    from engine.engine import Engine

MakeRequests = Callable[[int, PlannedRow, Hold | None], list[Request]]
"""The requests of a place in the plan, all of one prompt, with the hold that they belong to."""


@dataclass(eq=False)
class _Group:
    """The rows that begin with one prefix, some of which wait for others."""

    waiting: dict[DependentRow, None] = field(default_factory=dict)
    unplanned: int = 0  # rows that have their prompt, and are not in the engine yet
    is_fed: bool = False  # whether the rows that waited for nothing are all in the engine
    hold: Hold | None = None


@dataclass(frozen=True)
class _Ended:
    row: InputRow
    status: str
    answer: str | None = None
    prompt: SegmentedPrompt | None = None


class RowFeed:
    """Hands the rows of a plan to the engine. `rows` are all that have a prompt by now, by place.

    What becomes of waiting rows without the model is told: `on_rejected` hears of those that can't be asked,
    `on_reused` of those whose stored answer turns out to be still valid.
    """

    def __init__(
        self,
        plan: Plan,
        planner: Planner,
        documents: Mapping[str, Document],
        *,
        on_rejected: Callable[[RejectedRow], None],
        on_reused: Callable[[InputRow], None],
    ) -> None:
        self.rows = list(plan.rows)
        self.waiting = dict.fromkeys(plan.dependents)  # a set that keeps its order
        self._planner, self._documents = planner, documents
        self._on_rejected, self._on_reused = on_rejected, on_reused
        self._waits_for: dict[tuple[str, str], list[DependentRow]] = defaultdict(list)
        for dependent in plan.dependents:
            for name in dependent.missing:
                self._waits_for[dependent.row.doc_id, name].append(dependent)
        self._last_place: dict[SharedPrefix, int] = {}
        self._groups: dict[SharedPrefix, _Group] = {}
        self._group_of: dict[DependentRow | int, _Group] = {}  # of a waiting row, then of its place
        self._left: list[_Group] = []  # groups that a waiting row has left since holds were last ended
        if plan.dependents or plan.rows_split:
            self._last_place = {planned.segments.prefix: place for place, planned in enumerate(plan.rows)}
            self._make_groups(plan)
        self._ready: list[int] = []  # places of rows that waited, have their prompt, and are not in the engine
        self._is_fed = False  # whether all rows that waited for nothing are in the engine

    def requests(self, engine: Engine, make: MakeRequests) -> Iterator[Request]:
        """The rows in the plan's order, each when it is asked for; those that ask the very same once."""
        for place in range(len(self.rows)):
            planned = self.rows[place]
            prefix = planned.segments.prefix
            group = self._groups.get(prefix)
            if group is not None and group.hold is None and group.waiting:
                group.hold = _made_hold(engine, prefix, group.waiting)
            if planned.same_as is None:
                yield from make(place, planned, None if group is None else group.hold)
            if self._last_place.get(prefix) == place:
                for later in self._taken(_is_none_or(group)):
                    yield from self._requests(later, make)
                    self._was_planned(later, engine)
                if group is not None:
                    group.is_fed = True
        self._is_fed = True

    def row_ended(self, row: InputRow, status: str, answer: str | None, prompt: SegmentedPrompt | None) -> None:
        """Tell the rows that come after this one; `answer` is its JSON text if it is valid.

        `prompt` is the row's as a whole, None for a row in pieces.
        """
        if self.waiting:
            self._tell([_Ended(row, status, answer, prompt)])

    def go_on(self, engine: Engine, make: MakeRequests) -> list[Completion]:
        """Hand over rows whose place in the order has been passed; returns those that can never run."""
        completions: list[Completion] = []
        for place in self._taken(lambda group: self._is_fed if group is None else group.is_fed):
            requests = self._requests(place, make)
            completions += engine.submit(requests) if requests[0].hold is None else engine.submit_held(requests)
            self._was_planned(place, engine)
        return completions

    def add_parts(self, parts: Sequence[PlannedRow]) -> None:
        """Take in what is asked of a row in pieces only now; no document is held for it."""
        self._ready += range(len(self.rows), len(self.rows) + len(parts))
        self.rows += parts

    def end_holds(self, engine: Engine) -> None:
        """End the holds of which no row is waiting any more: to be called after `row_ended`."""
        for group in self._left:
            _end_if_done(group, engine)
        self._left.clear()

    def _make_groups(self, plan: Plan) -> None:
        """Which waiting rows find their document held: those that wait for none that is planned behind it."""
        places = {}
        for planned in plan.rows:
            key = planned.row.doc_id, planned.row.question_id
            if key in self._waits_for:
                places[key] = self._last_place[planned.segments.prefix]
        for dependent in plan.dependents:
            doc_id, prefix = dependent.row.doc_id, dependent.prefix
            place = self._last_place.get(prefix)
            waits_for = max(places[doc_id, name] for name in dependent.missing)
            if place is not None and waits_for <= place:
                group = self._groups.setdefault(prefix, _Group())
                group.waiting[dependent] = None
                self._group_of[dependent] = group
            places[doc_id, dependent.row.question_id] = max(waits_for, -1 if place is None else place)

    def _taken(self, is_due: Callable[[_Group | None], bool]) -> list[int]:
        """The ready rows of groups that are due, in depth-first order; they are not among the ready any more."""
        due: list[int] = []
        rest: list[int] = []
        for place in self._ready:
            (due if is_due(self._group_of.get(place)) else rest).append(place)
        self._ready = rest
        return sorted(due, key=lambda place: sort_key(self.rows[place].prompt))

    def _requests(self, place: int, make: MakeRequests) -> list[Request]:
        group = self._group_of.get(place)
        return make(place, self.rows[place], None if group is None else group.hold)

    def _was_planned(self, place: int, engine: Engine) -> None:
        group = self._group_of.pop(place, None)
        if group is not None:
            group.unplanned -= 1
            _end_if_done(group, engine)

    def _tell(self, ended: list[_Ended]) -> None:
        while ended:
            other = ended.pop()
            name = other.row.question_id
            for dependent in self._waits_for.pop((other.row.doc_id, name), ()):
                if dependent not in self.waiting:
                    continue  # it went for the want of another answer
                answer = dependent.stored.get(name) if other.answer is None else other.answer
                if answer is None:
                    rejected = missing_answer(dependent.row, name, other.status, dependent.schema.name)
                    ended.append(self._reject(dependent, rejected))
                    continue
                dependent.answers[name] = answer
                dependent.missing.discard(name)
                dependent.earlier = other.prompt or dependent.earlier
                if not dependent.missing:
                    ended += self._resolve(dependent)

    def _resolve(self, dependent: DependentRow) -> list[_Ended]:
        """Give a row its prompt; returns what those that wait for it are to know, if it is not asked."""
        row = dependent.row
        assert row.document_hash is not None
        document = self._documents[row.document_hash]
        prepare = self._planner.dependents.prepared
        outcome = prepare(row, dependent.schema, document, dependent.answers, dependent.earlier)
        if isinstance(outcome, RejectedRow):
            return [self._reject(dependent, outcome)]
        standing, _ = standing_of(dependent.state, outcome.row, outcome.digest, outcome.parts)
        if standing is Standing.DONE:
            self._leave(dependent)
            self._on_reused(row)
            return [_Ended(row, "ok", dependent.own_answer, outcome.prompt)]
        for follower in self._waits_for.get((row.doc_id, row.question_id), ()):
            follower.earlier = outcome.prompt
        group = self._leave(dependent)
        planned = self._planner.placed(outcome, len(outcome.prompt.rest))
        if outcome.pieces:
            self.add_parts([self._planner.placed_part(planned, part, prompt) for part, prompt in outcome.pieces])
            return []
        place = len(self.rows)
        self.rows.append(planned)
        self._ready.append(place)
        if group is not None:
            group.unplanned += 1
            self._group_of[place] = group
        return []

    def _reject(self, dependent: DependentRow, rejected: RejectedRow) -> _Ended:
        self._leave(dependent)
        self._on_rejected(rejected)
        return _Ended(dependent.row, rejected.status)

    def _leave(self, dependent: DependentRow) -> _Group | None:
        del self.waiting[dependent]
        group = self._group_of.pop(dependent, None)
        if group is not None:
            del group.waiting[dependent]
            self._left.append(group)
        return group


def _is_none_or(group: _Group | None) -> Callable[[_Group | None], bool]:
    return lambda other: other is None or other is group


def _made_hold(engine: Engine, prefix: SharedPrefix, waiting: Mapping[DependentRow, None]) -> Hold:
    known = {prompt.tobytes(): prompt for prompt in (dependent.known_prompt() for dependent in waiting)}
    reserve_tokens = max(dependent.reserve_tokens for dependent in waiting)
    return engine.hold([prefix.ids(), *known.values()], reserve_tokens)


def _end_if_done(group: _Group, engine: Engine) -> None:
    if group.hold is not None and not group.waiting and not group.unplanned:
        engine.end_hold(group.hold)
        group.hold = None
