"""The oracle: each work item in fp32, written so that it is obviously right. Not fast."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention import PartialOutputs, slots_of
from engine.kv_cache import KVCache
from engine.work_list import WorkItem


class ReferenceAttention:
    """`windows[layer]` is the number of most recent keys a row sees (itself included), or None for all.

    `soft_cap` c turns scores s into c tanh(s / c), as Gemma 2 does.
    """

    fuses_rotation = False

    def __init__(
        self, *, scale: float, windows: Sequence[int | None], page_size: int, soft_cap: float | None = None
    ) -> None:
        self._scale = scale
        self._soft_cap = soft_cap
        self._windows = windows
        self._page_size = page_size
        self._items: Sequence[WorkItem] = ()
        self._positions = torch.empty(0, dtype=torch.int64)

    def prepare(self, items: Sequence[WorkItem], positions: Tensor) -> None:
        """See `AttentionBackend`."""
        self._items = items
        self._positions = positions

    def run(self, layer: int, query: Tensor, cache: KVCache) -> Tensor:
        """See `AttentionBackend`."""
        rows, heads, head_size = query.shape
        partials = PartialOutputs(rows, heads, head_size, query.device)
        for item in self._items:
            row_range = slice(item.row_start, item.row_start + item.row_count)
            slots = slots_of(item, self._page_size, query.device)
            keys, values = cache.read(layer, slots, torch.float32)
            group = heads // keys.shape[0]
            keys = keys.repeat_interleave(group, dim=0)  # [heads, keys, head_size]
            values = values.repeat_interleave(group, dim=0)
            scores = torch.einsum("rhd,hkd->rhk", query[row_range].float(), keys) * self._scale
            if self._soft_cap is not None:
                scores = self._soft_cap * torch.tanh(scores / self._soft_cap)
            row_positions = self._positions[row_range].to(query.device)
            key_positions = torch.arange(item.first_key, item.first_key + item.key_count, device=query.device)
            hidden = key_positions[None, :] > row_positions[:, None]
            window = self._windows[layer]
            if window is not None:
                hidden |= key_positions[None, :] <= row_positions[:, None] - window
            scores = scores.masked_fill(hidden[:, None, :], -torch.inf)
            log_sum_exp = scores.logsumexp(dim=-1)
            weights = (scores - log_sum_exp.masked_fill(log_sum_exp == -torch.inf, 0.0)[..., None]).exp()
            partials.add(row_range, torch.einsum("rhk,hkd->rhd", weights, values), log_sum_exp)
        return partials.output.to(query.dtype)
