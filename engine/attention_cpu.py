"""The CPU backend: large items through torch's flash attention, the many small ones as a few padded batches.

A step of 32 decoding rows has 32 items of a few dozen keys each; run one by one they would cost more in calls than in
arithmetic, so items of similar size become one batched product. Query heads that share a KV head are packed as rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention import PartialOutputs, slots_of
from engine.kv_cache import KVCache
from engine.page_pool import NULL_PAGE
from engine.work_list import WorkItem

SMALL_ROWS = 48
SMALL_KEYS = 1024
BATCH_SCORES = 1 << 20
"""Causal items of at most SMALL_ROWS rows and SMALL_KEYS keys are batched, BATCH_SCORES row-key pairs at a time."""

_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True)
class _LargeItem:
    """One item, its keys by slot: rows [row_start, row_end) and for each row whether keys are causal or all visible."""

    rows: slice
    slots: Tensor  # int64 [keys]
    positions: Tensor  # int64 [rows]
    first_key: int
    first_position: int | None


@dataclass(frozen=True)
class _Batch:
    """Small items side by side, padded with the null page: `hidden` marks padding and later keys."""

    rows: Tensor  # int64 [items, rows]; padding repeats a real row and is not read back
    slots: Tensor  # int64 [items, keys]
    hidden: Tensor  # bool [items, rows, keys]
    row_positions: Tensor  # int64 [items, rows]
    key_positions: Tensor  # int64 [items, keys]
    real: Tensor  # int64 [real rows]: which of the flattened rows are real
    targets: Tensor  # int64 [real rows]: where they go


class CpuAttention:
    """`windows[layer]` is the number of most recent keys a row sees (itself included), or None for all."""

    fuses_rotation = False

    def __init__(self, *, scale: float, windows: Sequence[int | None], page_size: int) -> None:
        self._scale = scale
        self._windows = windows
        self._page_size = page_size
        self._large: list[_LargeItem] = []
        self._batches: list[_Batch] = []

    def prepare(self, items: Sequence[WorkItem], positions: Tensor) -> None:
        """See `AttentionBackend`."""
        small = [item for item in items if _is_small(item)]
        self._large = [
            _LargeItem(
                rows=slice(item.row_start, item.row_start + item.row_count),
                slots=slots_of(item, self._page_size, positions.device),
                positions=positions[item.row_start : item.row_start + item.row_count],
                first_key=item.first_key,
                first_position=item.first_position,
            )
            for item in items
            if not _is_small(item)
        ]
        self._batches = [self._batch(group, positions) for group in _similar(small)]

    def run(self, layer: int, query: Tensor, cache: KVCache) -> Tensor:
        """See `AttentionBackend`."""
        rows, heads, head_size = query.shape
        partials = PartialOutputs(rows, heads, head_size, query.device)
        window = self._windows[layer]
        for item in self._large:
            keys, values = cache.read(layer, item.slots, query.dtype)
            self._run_large(item, query[item.rows], keys, values, window, partials)
        for batch in self._batches:
            self._run_batch(batch, query, *cache.read(layer, batch.slots, torch.float32), window, partials)
        return partials.output.to(query.dtype)

    def _run_large(
        self,
        item: _LargeItem,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        window: int | None,
        partials: PartialOutputs,
    ) -> None:
        if window is not None and int(item.positions.max()) - item.first_key >= window:
            self._run_windowed(item, query, keys, values, window, partials)
            return
        earlier = keys.shape[1] if item.first_position is None else item.first_position - item.first_key
        if earlier:
            packed = _pack_heads(query, keys.shape[0])
            output, log_sum_exp = _flash_attention(
                packed[None], keys[None, :, :earlier], values[None, :, :earlier], 0.0, False, scale=self._scale
            )
            partials.add(item.rows, *_unpack_heads(output[0], log_sum_exp[0], query.shape[0]))
        if item.first_position is not None:
            group = query.shape[1] // keys.shape[0]
            output, log_sum_exp = _flash_attention(
                query.transpose(0, 1)[None],
                keys[None, :, earlier:].repeat_interleave(group, dim=1),
                values[None, :, earlier:].repeat_interleave(group, dim=1),
                0.0,
                True,
                scale=self._scale,
            )
            partials.add(item.rows, output[0].transpose(0, 1), log_sum_exp[0].transpose(0, 1))

    def _run_windowed(
        self, item: _LargeItem, query: Tensor, keys: Tensor, values: Tensor, window: int, partials: PartialOutputs
    ) -> None:
        key_positions = torch.arange(item.first_key, item.first_key + keys.shape[1], device=query.device)
        hidden = key_positions[None, :] > item.positions[:, None]
        hidden |= key_positions[None, :] <= item.positions[:, None] - window
        output, log_sum_exp = _masked_attention(
            _pack_heads(query, keys.shape[0]).float(),
            keys.float(),
            values.float(),
            hidden.repeat_interleave(query.shape[1] // keys.shape[0], dim=0),
            self._scale,
        )
        partials.add(item.rows, *_unpack_heads(output, log_sum_exp, query.shape[0]))

    def _run_batch(
        self, batch: _Batch, query: Tensor, keys: Tensor, values: Tensor, window: int | None, partials: PartialOutputs
    ) -> None:
        """`keys` and `values` [kv_heads, items, keys, head_size] in fp32."""
        items, rows = batch.rows.shape
        _, heads, head_size = query.shape
        kv_heads, group = keys.shape[0], heads // keys.shape[0]
        hidden = batch.hidden
        if window is not None:
            hidden = hidden | (batch.key_positions[:, None, :] <= batch.row_positions[:, :, None] - window)
        gathered = query[batch.rows].view(items, rows, kv_heads, group, head_size)
        packed = gathered.permute(0, 2, 1, 3, 4).reshape(items, kv_heads, rows * group, head_size)
        output, log_sum_exp = _masked_attention(
            packed.float(),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            hidden.repeat_interleave(group, dim=1)[:, None],
            self._scale,
        )
        output = output.view(items, kv_heads, rows, group, head_size).transpose(1, 2).reshape(-1, heads, head_size)
        log_sum_exp = log_sum_exp.view(items, kv_heads, rows, group).transpose(1, 2).reshape(-1, heads)
        partials.add(batch.targets, output[batch.real], log_sum_exp[batch.real])

    def _batch(self, items: Sequence[WorkItem], positions: Tensor) -> _Batch:
        count = len(items)
        most_rows = max(item.row_count for item in items)
        most_keys = max(item.key_count for item in items)
        rows = np.empty((count, most_rows), dtype=np.int64)
        slots = np.full((count, most_keys), NULL_PAGE * self._page_size, dtype=np.int64)
        real = np.zeros((count, most_rows), dtype=bool)
        key_counts = np.array([item.key_count for item in items])
        first_keys = np.array([item.first_key for item in items])
        offsets = np.arange(self._page_size)
        for index, item in enumerate(items):
            rows[index, : item.row_count] = np.arange(item.row_start, item.row_start + item.row_count)
            rows[index, item.row_count :] = item.row_start
            real[index, : item.row_count] = True
            item_slots = item.pages[:, None].astype(np.int64) * self._page_size + offsets
            slots[index, : item.key_count] = item_slots.reshape(-1)[: item.key_count]
        row_positions = positions.numpy()[rows]
        key_positions = first_keys[:, None] + np.arange(most_keys)
        hidden = key_positions[:, None, :] > row_positions[:, :, None]
        hidden |= (np.arange(most_keys) >= key_counts[:, None])[:, None, :]
        flat_real = np.flatnonzero(real)
        return _Batch(
            rows=torch.from_numpy(rows),
            slots=torch.from_numpy(slots),
            hidden=torch.from_numpy(hidden),
            row_positions=torch.from_numpy(row_positions),
            key_positions=torch.from_numpy(key_positions),
            real=torch.from_numpy(flat_real),
            targets=torch.from_numpy(rows.reshape(-1)[flat_real]),
        )


def _is_small(item: WorkItem) -> bool:
    return item.first_position is not None and item.row_count <= SMALL_ROWS and item.key_count <= SMALL_KEYS


def _similar(items: Sequence[WorkItem]) -> Iterator[list[WorkItem]]:
    """Group items of one row, and of more rows, each by key count, so that padding stays below about half."""
    for single_row in (True, False):
        ordered = sorted(
            (item for item in items if (item.row_count == 1) == single_row), key=lambda item: item.key_count
        )
        group: list[WorkItem] = []
        for item in ordered:
            most_rows = max(item.row_count, *(other.row_count for other in group)) if group else item.row_count
            scores = (len(group) + 1) * most_rows * item.key_count
            if group and (item.key_count > 2 * group[0].key_count + 32 or scores > BATCH_SCORES):
                yield group
                group = []
            group.append(item)
        if group:
            yield group


def _pack_heads(query: Tensor, kv_heads: int) -> Tensor:
    """[rows, heads, head_size] to [kv_heads, rows * group, head_size]: heads of one KV head become rows."""
    rows, heads, head_size = query.shape
    grouped = query.view(rows, kv_heads, heads // kv_heads, head_size)
    return grouped.transpose(0, 1).reshape(kv_heads, rows * (heads // kv_heads), head_size)


def _unpack_heads(output: Tensor, log_sum_exp: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The reverse of `_pack_heads`, for an output and its log-sum-exp."""
    kv_heads, packed, head_size = output.shape
    group = packed // rows
    output = output.reshape(kv_heads, rows, group, head_size).transpose(0, 1).reshape(rows, -1, head_size)
    return output, log_sum_exp.reshape(kv_heads, rows, group).transpose(0, 1).reshape(rows, -1)


def _masked_attention(
    query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Dense fp32 attention with a mask; a row with nothing visible gives zero and a log-sum-exp of -inf."""
    scores = (query @ keys.transpose(-1, -2)).mul_(scale).masked_fill_(hidden, -torch.inf)
    log_sum_exp = scores.logsumexp(dim=-1)
    reference = log_sum_exp.masked_fill(log_sum_exp == -torch.inf, 0.0)
    return scores.sub_(reference[..., None]).exp_() @ values, log_sum_exp
