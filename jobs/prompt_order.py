"""What the order of a prompt's parts costs: shared text behind a value that changes is computed again for each value.

A prefix is shared only up to the first token that differs. So what all rows have should come first, then the document,
then what differs between the questions on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.source import InputRow

if TYPE_CHECKING:
    from jobs.plan import PlannedRow
    from jobs.prompt import PromptBuilder

WORTH_SAYING = 0.01
"""A cost below this share of the plan's minimum tokens is not worth a warning."""


@dataclass(frozen=True)
class OrderCost:
    """Text that is computed again because a changing value stands before it.

    `setting` is where, as `prompt.document`; `values` what changes; `rows` how many rows pay; `tokens` how many tokens
    of the text would be shared if the values came after it. Beginnings that questions have in common come on top.
    """

    setting: str
    values: tuple[str, ...]
    rows: int
    tokens: int
    advice: str

    def sentence(self) -> str:
        """The warning, in words."""
        values = " and ".join(self.values)
        return (
            f"{self.setting} writes {values} before text that rows share: {self.rows:,} rows compute {self.tokens:,} "
            f"tokens again; {self.advice}"
        )


def order_costs(rows: Sequence[PlannedRow], prompts: PromptBuilder) -> list[OrderCost]:
    """Every cost that is worth a warning, the largest first. `rows` are in the plan's order."""
    costs = [
        _before_documents(rows, prompts),
        _behind_values(rows, prompts, "document", len({planned.row.document_hash for planned in rows})),
        _behind_values(rows, prompts, "question", len(rows)),
    ]
    limit = WORTH_SAYING * sum(planned.minimum_tokens for planned in rows)
    return sorted((cost for cost in costs if cost and cost.tokens > limit), key=lambda cost: -cost.tokens)


def _before_documents(rows: Sequence[PlannedRow], prompts: PromptBuilder) -> OrderCost | None:
    """Documents that are computed more than once, because what stands before or within their part differs."""
    if not prompts.moving_values and not prompts.system_uses_schema:
        return None
    by_document: dict[str, list[PlannedRow]] = defaultdict(list)
    for planned in rows:
        assert planned.row.document_hash is not None
        by_document[planned.row.document_hash].append(planned)
    tokens = paying = 0
    changing: dict[str, None] = {}
    for asked in by_document.values():
        repeated = 0
        # Rows whose document is cut at different places could share what the shortest of them has.
        least_used = min(planned.segments.used_document_tokens for planned in asked)
        for planned in asked[1:]:
            segments = planned.segments
            shared = len(segments.prefix.opening) + (least_used if segments.is_cut else segments.used_document_tokens)
            missing = shared - (planned.prompt_tokens - planned.minimum_tokens)
            if missing > 0:
                repeated += 1
                tokens += missing
        if repeated:
            paying += repeated
            changing |= dict.fromkeys(_changing(asked, prompts))
    if not tokens:
        return None
    schema_only = not set(changing) - {"schema"}
    return OrderCost(
        setting="prompt.system" if schema_only else "prompt.document",
        values=tuple(changing),
        rows=paying,
        tokens=tokens,
        advice="leave the schema out of prompt.system" if schema_only else "write them in prompt.question instead",
    )


def _changing(asked: Sequence[PlannedRow], prompts: PromptBuilder) -> list[str]:
    """Which values before or within the document's part differ between rows of one document, in their order."""
    names = ["schema"] if prompts.system_uses_schema and len({planned.schema.text for planned in asked}) > 1 else []
    rows = [planned.row for planned in asked]
    return names + [name for name in prompts.moving_values if len({repr(_value(row, name)) for row in rows}) > 1]


def _value(row: InputRow, name: str) -> object:
    whole, _, column = name.partition(".")
    if whole == "doc_id":
        return row.doc_id
    return row.extra.get(column) if column else row.extra


def _behind_values(rows: Sequence[PlannedRow], prompts: PromptBuilder, part: str, times: int) -> OrderCost | None:
    """The template's own text behind a value of its document's or question's part."""
    text = prompts.text_behind(part)
    if not text.strip() or times < 2:
        return None
    earlier = "prompt.system" if part == "document" else "prompt.system or before the question"
    return OrderCost(
        setting=f"prompt.{part}",
        values=tuple(prompts.values_before(part)) or (part,),
        rows=times,
        tokens=len(prompts.text_ids(text)) * (times - 1),
        advice=f"write the text behind it in {earlier} instead",
    )
