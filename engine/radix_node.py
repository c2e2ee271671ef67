"""A node of the prefix tree: an edge with its tokens, its pages, and who needs it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import numpy as np


class NodeState(Enum):
    """Where a node's KV stands."""

    PLANNED = "planned"
    COMPUTING = "computing"
    READY = "ready"


class Node:
    """One edge of the prefix tree: `tokens` at positions `start` up to `end`."""

    __slots__ = (
        "__weakref__",
        "children",
        "computed",
        "computed_once",
        "held",
        "key",
        "last_plan",
        "last_used",
        "locks",
        "owner",
        "pages",
        "parent",
        "planned",
        "start",
        "tokens",
    )

    def __init__(self, parent: Node | None, key: int, tokens: np.ndarray, start: int) -> None:
        self.parent = parent
        self.key = key  # of this node in parent.children: its first token
        self.children: dict[int, Node] = {}
        self.tokens = tokens
        self.start = start
        self.pages: list[int] = []  # of page indices start // page_size and on; empty: not resident
        self.computed = 0  # leading tokens whose KV is in the pages, or will be when the current step ends
        self.computed_once = 0  # leading tokens whose KV has been computed at some time, evicted since or not
        self.owner: object | None = None  # the request that is computing this node
        self.planned = 0  # planned requests and holds whose tokens pass through or end here
        self.held = 0  # holds that end here
        self.locks = 0  # running requests whose page table uses this node
        self.last_used = 0
        self.last_plan = 0  # number of the newest plan through here: a later plan is needed later

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)

    @property
    def state(self) -> NodeState:
        """PLANNED, COMPUTING or READY."""
        if self.owner is not None:
            return NodeState.COMPUTING
        return NodeState.READY if self.pages else NodeState.PLANNED

    def path(self) -> list[Node]:
        """Nodes from below the root down to this one."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def descendants(self) -> Iterator[Node]:
        """All nodes below this one, parents first."""
        pending = list(self.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())
