"""Integrity of cache and pool: every counter recomputed from scratch. For tests, and after every job."""

from __future__ import annotations

from dataclasses import dataclass

from engine.radix_cache import RadixCache
from engine.radix_node import NodeState


@dataclass(frozen=True)
class PageCounts:
    """Where the pages of the pool are: `free + cached + in_use == total`."""

    free: int
    cached: int  # held by unlocked nodes only
    in_use: int  # held by a locked node or a running request
    total: int


def page_counts(cache: RadixCache) -> PageCounts:
    """Counts every page from scratch. Walks the whole tree: for checks and reports, not for every step."""
    cached: set[int] = set()
    locked: set[int] = set()
    for node in cache.nodes():
        (locked if node.locks else cached).update(node.pages)
    used = cache.pool.total - cache.pool.free
    cached -= locked
    held_by_nodes: dict[int, int] = {}
    for node in cache.nodes():
        for page in node.pages:
            held_by_nodes[page] = held_by_nodes.get(page, 0) + 1
    cached = {page for page in cached if cache.pool.holders(page) == held_by_nodes[page]}
    return PageCounts(cache.pool.free, len(cached), used - len(cached), cache.pool.total)


def check_cache(cache: RadixCache, private_pages: list[list[int]]) -> None:
    """Recompute every counter from tree and running requests' `private_pages`; AssertionError if one is off."""
    holders: dict[int, int] = {}
    for node in cache.nodes():
        parent = node.parent
        assert parent is not None
        assert parent.children[node.key] is node
        assert node.start == parent.end
        needed = node.planned + node.locks > 0 or node.pages or any(above.held for above in node.path())
        assert needed, "a node that nothing needs must be forgotten"
        assert parent is cache.root or parent.planned >= node.planned
        assert parent is cache.root or parent.locks >= node.locks
        if node.pages:
            assert len(node.pages) == cache.pages_for(node.end) - node.start // cache.page_size
            assert parent is cache.root or parent.pages, "a resident node must be reachable through resident ones"
            assert parent.state is not NodeState.COMPUTING or node.state is NodeState.COMPUTING
        expected = {NodeState.READY: len(node.tokens), NodeState.PLANNED: 0}.get(node.state, node.computed)
        assert node.computed == expected
        assert node.computed <= node.computed_once <= len(node.tokens)
        if node.computed_once:
            assert parent is cache.root or parent.computed_once == len(parent.tokens), "computed from the root on"
        for page in node.pages:
            holders[page] = holders.get(page, 0) + 1
    for pages in private_pages:
        for page in pages:
            holders[page] = holders.get(page, 0) + 1
    for page in range(1, cache.pool.total + 1):
        assert cache.pool.holders(page) == holders.get(page, 0), f"page {page} has a wrong holder count"
    assert cache.pool.free == cache.pool.total - len(holders)
