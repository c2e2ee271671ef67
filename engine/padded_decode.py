"""Decoding steps over buffers of fixed size, so that a CUDA graph can replay them: one launch in place of hundreds.

A step is padded to the next of a few numbers of rows. A padding row has no keys, so its attention is zero, and writes
its own key and value to the null page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention_triton import FixedPlans, TritonAttention
from engine.device_stream import stream_of
from engine.kv_cache import KVCache
from engine.model_config import ModelConfig
from engine.page_pool import NULL_PAGE
from engine.step import Step
from engine.step_attention import FusedStepAttention
from engine.work_list import WorkItem

Forward = Callable[[Tensor, Tensor, FusedStepAttention], Tensor]
"""(token_ids [rows], positions [rows], attend) -> hidden states [rows, hidden_size]."""


def row_buckets(most_rows: int) -> list[int]:
    """Numbers of rows that steps are padded to: 1, 2, 4, 8, then multiples of 16."""
    small = [rows for rows in (1, 2, 4, 8) if rows < most_rows]
    return [*small, *range(16, most_rows, 16), most_rows]


@dataclass
class _Bucket:
    """Buffers of one number of rows, and the graph over them once it is captured."""

    token_ids: Tensor  # int64 [rows], as all of them
    positions: Tensor
    write_slots: Tensor
    attend: FusedStepAttention
    plans: FixedPlans
    graph: torch.cuda.CUDAGraph | None = None
    hidden: Tensor | None = None  # what the graph writes


class PaddedDecode:
    """Runs steps of decoding rows over fixed buffers, `replay` from CUDA graphs, captured when first needed."""

    def __init__(
        self,
        forward: Forward,
        config: ModelConfig,
        cache: KVCache,
        attention: TritonAttention,
        *,
        dtype: torch.dtype,
        most_rows: int,
        replay: bool,
    ) -> None:
        """`forward` is a decoder's, of all rows, with queries of `dtype`. Steps of more than `most_rows` rows are left
        to the caller."""
        self._forward = forward
        self._config = config
        self._cache = cache
        self._attention = attention
        self._queries = torch.empty(0, dtype=dtype, device=cache.keys.device)
        self._replay = replay
        self._row_buckets = row_buckets(most_rows)
        self._buckets: dict[int, _Bucket] = {}
        self._largest = self._make_plans(most_rows, None)
        self._memory = torch.cuda.graph_pool_handle() if replay else None

    def forward(self, step: Step, items: Sequence[WorkItem]) -> Tensor | None:
        """Hidden states [rows, hidden_size] of a step's rows, or None where it is not one that can be padded.

        The result is overwritten by the next step of the same size.
        """
        rows = len(step.token_ids)
        if step.prompt_rows or not 0 < rows <= self._row_buckets[-1] or len(step.write_rows) != rows:
            return None
        size = self._row_buckets[bisect_left(self._row_buckets, rows)]
        if size not in self._buckets:
            self._buckets[size] = self._make_bucket(size)
        bucket = self._buckets[size]
        if not self._attention.prepare_fixed(items, torch.from_numpy(step.positions), bucket.plans):
            return None
        _fill(bucket.token_ids, step.token_ids, 0)
        _fill(bucket.positions, step.positions, 0)
        _fill(bucket.write_slots, step.write_slots, NULL_PAGE * self._cache.page_size)
        if not self._replay:
            return self._forward(bucket.token_ids, bucket.positions, bucket.attend)[:rows]
        if bucket.graph is None:
            self._capture(bucket)
        assert bucket.graph is not None
        assert bucket.hidden is not None
        bucket.graph.replay()
        return bucket.hidden[:rows]

    def _make_bucket(self, rows: int) -> _Bucket:
        device = self._cache.keys.device
        token_ids, positions, write_slots = torch.zeros((3, rows), dtype=torch.int64, device=device)
        write_rows = torch.arange(rows, device=device)
        plans = self._largest if rows == self._largest.rows else self._make_plans(rows, self._largest)
        attend = FusedStepAttention(self._cache, self._attention, write_rows, write_slots, rows)
        return _Bucket(token_ids, positions, write_slots, attend, plans)

    def _make_plans(self, rows: int, larger: FixedPlans | None) -> FixedPlans:
        config = self._config
        # Shared pages are named once, and beyond them a row names its own, of which there are no more than in the pool.
        pages = 2 * self._cache.keys.shape[2] // self._cache.page_size + 2 * rows
        return FixedPlans(
            rows,
            pages,
            config.windows,
            config.heads,
            config.kv_heads,
            config.head_size,
            self._queries,
            larger,
            is_8_bit=self._cache.key_scales is not None,
        )

    def _capture(self, bucket: _Bucket) -> None:
        """Run once, so that kernels are compiled and workspaces allocated, then record. Both write the same KV."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._forward(bucket.token_ids, bucket.positions, bucket.attend)
        torch.cuda.current_stream().wait_stream(stream)
        bucket.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(bucket.graph, pool=self._memory):
            bucket.hidden = self._forward(bucket.token_ids, bucket.positions, bucket.attend)


def _fill(buffer: Tensor, values: np.ndarray, padding: int) -> None:
    """Copy `values` to the front of `buffer`, and `padding` behind them."""
    padded = np.full(len(buffer), padding, dtype=np.int64)
    padded[: len(values)] = values
    stream_of(buffer.device).send(padded, buffer)
