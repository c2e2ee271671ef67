"""Rows whose document is asked in pieces: the pieces' answers, then one answer from these, in levels if need be."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobs.plan_rows import Part, PlannedRow
from jobs.planner import Planner
from jobs.row_calls import EndedPart


@dataclass
class SplitRow:
    """One row on its way: `ended` are its parts by call, `level` the calls whose answers are combined next."""

    level: list[int]
    ended: dict[int, EndedPart] = field(default_factory=dict)

    @property
    def level_has_ended(self) -> bool:
        """Whether all parts of the level have ended."""
        return all(call in self.ended for call in self.level)

    def fault(self) -> EndedPart | None:
        """The first part of the level that has no valid answer."""
        return next((self.ended[call] for call in self.level if self.ended[call].outcome.answer is None), None)

    def next_level(self, planner: Planner) -> list[PlannedRow] | None:
        """What combines the answers of the level, which are all valid; None if no two fit in a prompt."""
        assert planner.document_split is not None
        first = self.ended[self.level[0]].planned
        assert first.part is not None
        answers = [self.ended[call].outcome.answer or "" for call in self.level]
        prompts = planner.document_split.combinings(first.segments, answers, first.schema.grammar.shortest_tokens)
        if prompts is None:
            return None
        calls, next_call, rows = list(self.level), max(self.level) + 1, []
        for number, (prompt, count) in enumerate(prompts):
            uses, calls = tuple(calls[:count]), calls[count:]
            part = Part("combine", next_call + number, len(prompts), first.part.document_tokens, uses=uses)
            rows.append(planner.placed_part(first, part, prompt))
        self.level = [next_call + number for number in range(len(rows))]
        return rows


@dataclass(frozen=True, slots=True)
class SplitEnd:
    """How a row in pieces ended: by its last combining, or by a `fault` that leaves it without an answer."""

    parts: list[EndedPart]
    last: EndedPart
    fault: str | None = None


class SplitRows:
    """All rows in pieces that are on."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._rows: dict[tuple[str, str], SplitRow] = {}

    def end_part(self, part: EndedPart) -> SplitEnd | list[PlannedRow]:
        """A part has ended: the row's end, or the parts that are asked next, if any."""
        planned = part.planned
        assert planned.part is not None
        key = planned.row.doc_id, planned.row.question_id
        row = self._rows.setdefault(key, SplitRow(list(range(planned.part.count))))
        row.ended[planned.part.call] = part
        if not row.level_has_ended:
            return []
        fault = row.fault()
        if fault is not None:
            return self._end(key, fault, f"{_name(fault)}: {fault.outcome.error}")
        if len(row.level) == 1:
            return self._end(key, row.ended[row.level[0]])
        rows = row.next_level(self._planner)
        if rows is not None:
            return rows
        why = f"the answers of its {len(row.level)} pieces are too long to be combined in the model's context"
        return self._end(key, row.ended[row.level[0]], f"{why}; lower sampling.max_tokens")

    def _end(self, key: tuple[str, str], last: EndedPart, fault: str | None = None) -> SplitEnd:
        ended = self._rows.pop(key).ended
        return SplitEnd([ended[call] for call in sorted(ended)], last, fault)


def _name(ended: EndedPart) -> str:
    part = ended.planned.part
    assert part is not None
    return f"piece {part.call + 1} of {part.count}" if part.kind == "piece" else "the answers of the pieces combined"
