"""The prefix tree of all planned prompts, and the KV pages of the parts that are computed.

A node is an edge of the tree: a run of tokens at fixed positions. It is PLANNED (no pages yet), COMPUTING (one request
owns it and is filling its pages) or READY. Matching is by token, sharing is by page: a node holds the pages of every
page index it touches, and a page that several nodes of a path touch is held by each. A prompt that continues in the
middle of a page writes on in that same page while nobody off its path holds it, and otherwise into a copy.

Who frees what: nodes and requests hold pages, running requests lock nodes. A node loses its pages only by eviction,
which takes resident leaves that are unlocked and that no planned request needs: at once, or least recently used first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.page_pool import PagePool
from engine.prefix_order import common_prefix_length
from engine.radix_node import Node, NodeState


@dataclass(frozen=True)
class TailCopy:
    """The leading `slots` of page `source` go to page `target` before the first own token is written there."""

    source: int
    target: int
    slots: int


@dataclass(frozen=True)
class Claim:
    """What a request got. It holds `private_pages` itself and gives them back with `RadixCache.release`."""

    matched: int  # leading tokens that are ready; the request computes the rest
    repeated: int  # tokens of the prompt that it computes although they have been computed before, and were evicted
    page_table: list[int]  # the page of each page index of prompt and output
    private_pages: list[int]  # pages that output is written to
    tail_copy: TailCopy | None


class RadixCache:
    """Prefix tree over a page pool. Single-threaded; every public method leaves `cache_check` true.

    With `keep_unneeded`, what no planned request needs stays until its pages are wanted, for requests that may still
    come; without, its pages are free as soon as the last request that needed it is done. A hold plans the beginning of
    requests that will come but can't be planned yet: what it holds is needed, and what is below stays until its pages
    are wanted, whatever `keep_unneeded` says.
    """

    def __init__(self, pool: PagePool, page_size: int, *, keep_unneeded: bool = True) -> None:
        assert page_size >= 1
        self.pool = pool
        self.keep_unneeded = keep_unneeded
        self.page_size = page_size
        self.root = Node(None, 0, np.empty(0, dtype=np.int32), 0)
        self._clock = 0
        self._plans = 0
        self._holds = 0
        self._offers = 0
        self._evictable: list[tuple[int, int, Node]] = []  # heap by last use; stale entries are skipped when popped

    def nodes(self) -> Iterator[Node]:
        """All nodes below the root, parents first."""
        return self.root.descendants()

    # Planning

    def plan(self, tokens: np.ndarray) -> Node:
        """Register a request for `tokens` (int32, at least one) and return the node its prompt ends in.

        The handle keeps its meaning when the tree is split later. Every plan is ended by one `finish`.
        """
        assert len(tokens) > 0, "an empty prompt cannot be planned"
        node = self.root
        while node.end < len(tokens):
            rest = tokens[node.end :]
            child = node.children.get(int(rest[0]))
            if child is None:
                child = node.children[int(rest[0])] = Node(node, int(rest[0]), rest, node.end)
            else:
                shared = common_prefix_length(child.tokens, rest)
                if shared < len(child.tokens):
                    child = self._split(child, shared)
            node = child
        self._count_plan(node)
        return node

    def plan_alone(self, tokens: np.ndarray) -> Node:
        """Like `plan`, but shares nothing with any other request: the oracle for reuse."""
        self._plans += 1
        node = Node(self.root, -self._plans, tokens, 0)  # no token is negative, so nothing ever matches it
        self.root.children[node.key] = node
        self._count_plan(node)
        return node

    def hold(self, tokens: np.ndarray) -> Node:
        """Plan the beginning of requests that are yet to come; every hold is ended by one `end_hold`."""
        leaf = self.plan(tokens)
        leaf.held += 1
        self._holds += 1
        return leaf

    def end_hold(self, leaf: Node) -> None:
        """End a hold: what stayed only because of it becomes free."""
        assert leaf.held > 0, "end_hold was called more often than hold"
        leaf.held -= 1
        self._holds -= 1
        for node in reversed(list(leaf.descendants())):
            self._forget_if_unused(node)
            self._offer(node)
        self.finish(leaf)

    def _count_plan(self, leaf: Node) -> None:
        self._plans += 1
        for node in leaf.path():
            node.planned += 1
            node.last_plan = self._plans

    def finish(self, leaf: Node) -> None:
        """End one plan. Nodes that nothing planned needs become evictable, or are forgotten if never computed."""
        for node in reversed(leaf.path()):
            assert node.planned > 0, "finish was called more often than plan"
            node.planned -= 1
            self._forget_if_unused(node)
            self._offer(node)

    def _split(self, node: Node, length: int) -> Node:
        """Cut `node` after `length` tokens. The upper part is a new parent, so handles to `node` stay right."""
        boundary = node.start + length
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.key, node.tokens[:length], node.start)
        upper.planned, upper.locks, upper.owner = node.planned, node.locks, node.owner
        upper.last_used, upper.last_plan = node.last_used, node.last_plan
        upper.computed = min(node.computed, length)
        upper.computed_once = min(node.computed_once, length)
        if upper.computed == length:
            upper.owner = None
        if node.pages:
            first = node.start // self.page_size
            upper.pages = node.pages[: self.pages_for(boundary) - first]
            node.pages = node.pages[boundary // self.page_size - first :]
            if boundary % self.page_size:
                self.pool.retain(upper.pages[-1])
        node.computed -= upper.computed
        node.computed_once -= upper.computed_once
        parent.children[node.key] = upper
        node.parent, node.tokens, node.start = upper, node.tokens[length:], boundary
        node.key = int(node.tokens[0])
        upper.children[node.key] = node
        return upper

    # Running

    def matched_length(self, leaf: Node) -> int:
        """Leading tokens of the prompt that are in the cache."""
        length = 0
        for node in leaf.path():
            if node.state is not NodeState.READY:
                break
            length = node.end
        return length

    def is_blocked(self, leaf: Node) -> bool:
        """True while another request computes the first part of this prompt that is not ready."""
        return any(node.state is NodeState.COMPUTING for node in leaf.path())

    def claim(
        self, leaf: Node, output_tokens: int, owner: object, *, leave: int = 0, evict_planned: bool = False
    ) -> Claim | None:
        """Lock the prompt's nodes and take pages for what is not ready and for the KV of `output_tokens` more.

        Returns None, with nothing changed but evictions, if the pages cannot be had now. Must not be called while
        `is_blocked`. The owner reports progress with `advance` and ends with `release`. `leave` pages stay free
        beside. With `evict_planned`, nodes that later requests need may go too (those needed last go first): the way
        out when nothing else runs.
        """
        path = leaf.path()
        matched = self.matched_length(leaf)
        end = leaf.end + output_tokens
        self._lock(path)  # before evicting, which must not take what this request is about to use
        while self.pool.free < self._pages_to_take(path, matched, end) + leave:
            if not self._evict_one(evict_planned):
                self._unlock(path)
                return None
        fresh = self.pool.allocate(self._pages_to_take(path, matched, end))
        page_table = self._ready_page_table(path, matched)
        tail_copy = None
        if self._must_copy_tail(path, matched, end):
            tail_copy = TailCopy(page_table[-1], fresh[0], matched % self.page_size)
            page_table[-1:] = fresh
        else:
            page_table += fresh
        for node in path:
            if node.start >= matched:
                node.pages = page_table[node.start // self.page_size : self.pages_for(node.end)]
                node.owner = owner
                self._retain(node.pages)
        private_pages = page_table[leaf.end // self.page_size :]
        self._retain(private_pages)
        self._release(fresh)  # their holders are the nodes and the request now
        repeated = sum(node.computed_once for node in path if node.start >= matched)
        return Claim(matched, repeated, page_table, private_pages, tail_copy)

    def advance(self, leaf: Node, owner: object, position: int) -> None:
        """The KV of the prompt's tokens before `position` is there, or will be when the current step ends."""
        for node in reversed(leaf.path()):
            if node.owner is not owner:
                break
            node.computed = max(0, min(position, node.end) - node.start)
            node.computed_once = max(node.computed_once, node.computed)
            if node.end <= position:
                node.owner = None

    def release(self, leaf: Node, owner: object, private_pages: list[int]) -> None:
        """End a claim: unlock the path, give back private pages, and give up what was not computed to its end."""
        self._release(private_pages)
        for node in leaf.path():
            if node.owner is not owner:
                continue
            if 0 < node.computed < len(node.tokens):
                self._split(node, node.computed)
            node.owner = None
            self._release(node.pages)
            node.pages = []
        self._unlock(leaf.path())

    def make_room(self, pages: int, *, evict_planned: bool = False) -> bool:
        """Evict until `pages` are free; False if that cannot be reached."""
        while self.pool.free < pages:
            if not self._evict_one(evict_planned):
                return False
        return True

    def _lock(self, path: list[Node]) -> None:
        self._clock += 1
        for node in path:
            node.locks += 1
            node.last_used = self._clock

    def _unlock(self, path: list[Node]) -> None:
        self._clock += 1
        for node in reversed(path):
            assert node.locks > 0, "release was called more often than claim"
            node.locks -= 1
            node.last_used = self._clock
            self._forget_if_unused(node)
            self._offer(node)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` positions."""
        return -(-tokens // self.page_size)

    def _pages_to_take(self, path: list[Node], matched: int, end: int) -> int:
        copies = 1 if self._must_copy_tail(path, matched, end) else 0
        return self.pages_for(end) - self.pages_for(matched) + copies

    def _must_copy_tail(self, path: list[Node], matched: int, end: int) -> bool:
        """Whether position `matched` lies in a started page in which a node or request off this path may write."""
        if matched % self.page_size == 0 or end == matched:
            return False
        tail = self._ready_page_table(path, matched)[-1]
        holders_on_path = sum(1 for node in path if node.end <= matched and node.pages[-1] == tail)
        return self.pool.holders(tail) > holders_on_path

    def _ready_page_table(self, path: list[Node], matched: int) -> list[int]:
        table: list[int] = []
        for node in path:
            if node.end > matched:
                break
            table[node.start // self.page_size :] = node.pages  # a child's copy of a shared page is the fuller one
        return table

    def _retain(self, pages: list[int]) -> None:
        for page in pages:
            self.pool.retain(page)

    def _release(self, pages: list[int]) -> None:
        for page in pages:
            self.pool.release(page)

    # Eviction

    def evict_all(self) -> None:
        """Drop everything that no running request uses and no planned request needs."""
        while self._evict_one(evict_planned=False):
            pass

    def _is_resident_leaf(self, node: Node) -> bool:
        return bool(node.pages) and node.locks == 0 and not any(child.pages for child in node.children.values())

    def _offer(self, node: Node) -> None:
        if node.parent is None or node.planned > 0 or not self._is_resident_leaf(node):
            return
        if not self.keep_unneeded and not self._is_below_hold(node):
            self._evict(node)
        else:
            self._offers += 1
            heapq.heappush(self._evictable, (node.last_used, self._offers, node))

    def _is_below_hold(self, node: Node) -> bool:
        return self._holds > 0 and any(above.held for above in node.path())

    def _evict_one(self, evict_planned: bool) -> bool:
        while self._evictable:
            last_used, _, node = heapq.heappop(self._evictable)
            if node.last_used == last_used and node.planned == 0 and self._is_resident_leaf(node):
                self._evict(node)
                return True
        if evict_planned:
            if self._give_up_superseded_page():
                return True
            leaves = [node for node in self.nodes() if self._is_resident_leaf(node)]
            if leaves:
                self._evict(max(leaves, key=lambda node: node.last_plan))
                return True
        return False

    def _give_up_superseded_page(self) -> bool:
        """Let go of a page of which every prompt that goes on has a copy; False if there is none.

        Such a page is left when a prompt went on in a copy, because another one wrote in the page, and that one is
        evicted since. Without this a row could need a page more than the pool has.
        """
        for node in self.nodes():
            if not node.pages or node.end % self.page_size == 0:
                continue
            copies = [child.pages[0] for child in node.children.values() if child.pages]
            page = node.pages[-1]
            if copies and page not in copies:
                node.pages[-1] = copies[0]
                self.pool.retain(copies[0])
                self.pool.release(page)
                return True
        return False

    def _evict(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        self._release(node.pages)
        node.pages = []
        node.computed = 0
        self._forget_if_unused(node)
        self._offer(parent)

    def _forget_if_unused(self, node: Node) -> None:
        """Nodes below a hold are remembered, so that what is computed there again is known to be."""
        if node.parent is None or node.planned or node.pages or node.locks or node.children:
            return
        if node.parent.children.get(node.key) is node and not self._is_below_hold(node):
            del node.parent.children[node.key]
