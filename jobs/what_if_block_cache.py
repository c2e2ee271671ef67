"""A simulated prefix cache of full blocks, as vLLM has it: a block is found by its tokens and all those before it.

Only full blocks can be shared; what a prompt has beyond its last full block, or beyond the last block that it shares
whole, is computed. Blocks that no running row uses stay until their room is wanted; the one used longest ago goes
first, and of one row's blocks the last (Kwon et al., PagedAttention; vLLM's automatic prefix caching). Holds names of
blocks, never KV.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """The names of a prompt's full blocks (int32), and how many tokens the prompt has."""

    names: np.ndarray
    tokens: int


class BlockNames:
    """Gives blocks their names: two are the same if and only if their tokens and all tokens before them are."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._names: dict[tuple[int, bytes], int] = {}

    def of(self, prompt: np.ndarray) -> PromptBlocks:
        """The blocks of a prompt (token ids)."""
        full = len(prompt) // self.block_size
        data = np.ascontiguousarray(prompt[: full * self.block_size], dtype=np.int32).tobytes()
        width = 4 * self.block_size
        names = np.empty(full, dtype=np.int32)
        name = -1
        for block in range(full):
            key = (name, data[block * width : (block + 1) * width])
            name = names[block] = self._names.setdefault(key, len(self._names))
        return PromptBlocks(names, len(prompt))


class BlockCache:
    """A pool of `pages` blocks of `block_size` tokens. `peak_pages` counts cached and running blocks at their most."""

    def __init__(self, pages: int, block_size: int) -> None:
        self._pages = pages
        self._block_size = block_size
        self._cached: OrderedDict[int, None] = OrderedDict()  # the one used longest ago first
        self.peak_pages = 0

    def ask(self, prompt: PromptBlocks) -> int:
        """Run a prompt, which is not larger than the pool; returns the tokens that it finds in the cache."""
        names: Sequence[int] = prompt.names.tolist()
        cached = self._cached
        partial = 1 if prompt.tokens % self._block_size else 0
        assert len(names) + partial <= self._pages, "the prompt is larger than the pool"
        found = 0
        while found < len(names) and names[found] in cached:
            found += 1
        for name in reversed(names):
            if name in cached:
                cached.move_to_end(name)
            else:
                cached[name] = None
        while len(cached) + partial > self._pages:
            cached.popitem(last=False)
        self.peak_pages = max(self.peak_pages, len(cached) + partial)
        return found * self._block_size
