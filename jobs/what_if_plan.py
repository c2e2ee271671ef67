"""A simulated run of our plan: the engine's own prefix tree over a pool of pages, without a model.

Requests go depth first, and a page is freed when the last request that needs it is done. What is computed and held is
what the engine's cache says; only the tokens' KV is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from engine.page_pool import PagePool
from engine.radix_cache import RadixCache
from engine.radix_node import Node


class PlannedCache:
    """A pool of `pages` pages. `peak_pages` counts pages that anything holds, at their most."""

    def __init__(self, pages: int, page_size: int) -> None:
        self._cache = RadixCache(PagePool(pages), page_size, keep_unneeded=False)
        self.peak_pages = 0

    def ask_all(self, prompts: Iterable[np.ndarray]) -> Iterator[int]:
        """Run prompts in depth-first order, none larger than the pool; gives the tokens that each finds in the cache.

        Each is planned before the one before it ends, as in the engine: what a later one shares with any earlier one,
        it shares with that one.
        """
        current: Node | None = None
        for prompt in prompts:
            leaf = self._cache.plan(np.ascontiguousarray(prompt, dtype=np.int32))
            if current is not None:
                self._cache.finish(current)
            yield self._run(leaf)
            current = leaf
        if current is not None:
            self._cache.finish(current)

    def _run(self, leaf: Node) -> int:
        """Compute what is not there of a planned prompt; it stays as long as it is planned."""
        cache = self._cache
        claim = cache.claim(leaf, 0, self)
        assert claim is not None, "the prompt is larger than the pool, or the order is not depth first"
        self.peak_pages = max(self.peak_pages, cache.pool.total - cache.pool.free)
        cache.advance(leaf, self, leaf.end)
        cache.release(leaf, self, claim.private_pages)
        return claim.matched
