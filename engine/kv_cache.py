"""The tensors behind the page pool: keys and values of every layer, by slot (page * page_size + offset)."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.native.row_operations import write_slots
from engine.page_pool import NULL_PAGE


class KVCache:
    """Keys and values, each [layers, kv_heads, slots, head_size]: the slots of a KV head lie together for attention.

    Memory of untouched pages is not touched on the CPU, so a large pool costs only what is used. The null page holds
    zeros: padding reads it, and a value that was never written could be NaN.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, head_size: int, pages: int, page_size: int, dtype: torch.dtype, device: str
    ) -> None:
        shape = (layers, kv_heads, (pages + 1) * page_size, head_size)  # one more: the null page
        self.page_size = page_size
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        null_slots = slice(NULL_PAGE * page_size, (NULL_PAGE + 1) * page_size)
        self.keys[:, :, null_slots] = 0
        self.values[:, :, null_slots] = 0

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Put `key` and `value` [writes, kv_heads, head_size] into `slots` [writes] of a layer."""
        write_slots(self.keys[layer], slots, key)
        write_slots(self.values[layer], slots, value)

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots in every layer. All sources are read before any target is written."""
        self.keys.index_copy_(2, targets, self.keys.index_select(2, sources))
        self.values.index_copy_(2, targets, self.values.index_select(2, sources))
