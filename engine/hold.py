"""A hold on a prefix: rows that begin with it will come, but can't be planned yet, as their text is not known."""

from __future__ import annotations

from dataclasses import dataclass

from engine.radix_node import Node


@dataclass(eq=False)
class Hold:
    """A place in the plan for rows that come once others have ended.

    Requests that carry a hold, those whose ends are waited for and those that come later, stand together in the plan.
    `number` counts holds in the order of the plan, `leaves` are the ends of the held prefixes. `reserve_pages` are
    enough for one row that comes, beside what is held: later requests leave them free, once the first of the hold
    `began`.
    """

    number: int
    leaves: list[Node]
    reserve_pages: int
    began: bool = False
