"""A simulated radix cache with recency eviction, as SGLang has it: shared to the token, whoever came last stays.

A node is an edge of the prefix tree of what is cached. When room is wanted, the leaf used longest ago goes, whole
(Zheng et al., SGLang, section 3). It takes requests as they come and knows nothing of those to come. Holds tokens,
never KV.
"""

from __future__ import annotations

import heapq

import numpy as np

from engine.prefix_order import common_prefix_length


class _Node:
    __slots__ = ("children", "last_used", "parent", "tokens")

    def __init__(self, parent: _Node | None, tokens: np.ndarray, last_used: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.children: dict[int, _Node] = {}
        self.last_used = last_used


class RecencyRadixCache:
    """A pool with room for `tokens`. `peak_tokens` counts what is cached, the running prompt included, at its most."""

    def __init__(self, tokens: int) -> None:
        self._room = self._size = tokens
        self._root = _Node(None, np.empty(0, dtype=np.int32), 0)
        self._clock = 0
        self._leaves: list[tuple[int, int, _Node]] = []  # heap by last use; entries that are out of date are skipped
        self._offers = 0
        self.peak_tokens = 0

    def ask(self, prompt: np.ndarray) -> int:
        """Run a prompt, which is not larger than the pool; returns the tokens that it finds in the cache."""
        assert len(prompt) <= self._size, "the prompt is larger than the pool"
        self._clock += 1
        node, found = self._match(prompt)
        while self._room < len(prompt) - found:
            self._evict_one()
        if found < len(prompt):
            leaf = _Node(node, prompt[found:], self._clock)
            node.children[int(prompt[found])] = leaf
            self._room -= len(leaf.tokens)
            self._offer(leaf)
        elif not node.children:
            self._offer(node)
        self.peak_tokens = max(self.peak_tokens, self._size - self._room)
        return found

    def _match(self, prompt: np.ndarray) -> tuple[_Node, int]:
        """The node that the longest cached beginning of `prompt` ends in, split there, and its length."""
        node, found = self._root, 0
        while found < len(prompt):
            child = node.children.get(int(prompt[found]))
            if child is None:
                break
            common = common_prefix_length(child.tokens, prompt[found:])
            if common < len(child.tokens):
                child = self._split(child, common)
            child.last_used = self._clock
            node, found = child, found + common
        return node, found

    def _split(self, node: _Node, length: int) -> _Node:
        """Cut `node` after `length` tokens; returns the upper part, a new parent."""
        parent = node.parent
        assert parent is not None
        upper = _Node(parent, node.tokens[:length], node.last_used)
        parent.children[int(upper.tokens[0])] = upper
        node.parent, node.tokens = upper, node.tokens[length:]
        upper.children[int(node.tokens[0])] = node
        return upper

    def _evict_one(self) -> None:
        """Drop the leaf used longest ago. The running prompt's own nodes bear the newest time, so they come last."""
        while True:
            last_used, _, node = heapq.heappop(self._leaves)
            if node.last_used == last_used and not node.children and node.parent is not None:
                break
        assert last_used < self._clock, "the pool was checked to hold the running prompt"
        parent = node.parent
        del parent.children[int(node.tokens[0])]
        node.parent = None
        self._room += len(node.tokens)
        if not parent.children and parent.parent is not None:
            self._offer(parent)

    def _offer(self, leaf: _Node) -> None:
        self._offers += 1
        heapq.heappush(self._leaves, (leaf.last_used, self._offers, leaf))
