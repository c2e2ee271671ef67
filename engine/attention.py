"""What an attention backend is, and the one rule by which partial outputs are merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.kv_cache import KVCache
from engine.work_list import WorkItem


class AttentionBackend(Protocol):
    """Executes a work list. `prepare` once a step, then `run` once a layer."""

    @property
    def fuses_rotation(self) -> bool:
        """Whether rotation and KV write are one Triton kernel before `run`, see `engine.step_attention`."""

    def prepare(self, items: Sequence[WorkItem], positions: Tensor) -> None:
        """Take the step's items. `positions` [rows] of all query rows, on the CPU."""

    def run(self, layer: int, query: Tensor, cache: KVCache) -> Tensor:
        """Attention of `query` [rows, heads, head_size] over the layer's keys and values; the same shape."""


def slots_of(item: WorkItem, page_size: int, device: torch.device | str) -> Tensor:
    """Slots of an item's keys, in order: int64 [key_count]."""
    pages = torch.from_numpy(item.pages).to(device=device, dtype=torch.int64)
    slots = pages[:, None] * page_size + torch.arange(page_size, device=device)
    return slots.reshape(-1)[: item.key_count]


class PartialOutputs:
    """Merges partial attention outputs of the same rows by their log-sum-exp (natural log).

    With partials (o, l) the result is sum(exp(l) o) / sum(exp(l)). An empty partial has l = -inf and weight zero; a
    row with no keys at all keeps output zero, never NaN.
    """

    def __init__(self, rows: int, heads: int, head_size: int, device: torch.device | str) -> None:
        self.output = torch.zeros((rows, heads, head_size), dtype=torch.float32, device=device)
        self.log_sum_exp = torch.full((rows, heads), -torch.inf, dtype=torch.float32, device=device)

    def add(self, rows: slice | Tensor, output: Tensor, log_sum_exp: Tensor) -> None:
        """Merge `output` [n, heads, head_size] and `log_sum_exp` [n, heads] into `rows`, which are distinct."""
        old = self.log_sum_exp[rows]
        largest = torch.maximum(old, log_sum_exp)
        reference = largest.masked_fill(largest == -torch.inf, 0.0)  # -inf minus -inf would be NaN
        old_weight = (old - reference).exp_()
        new_weight = (log_sum_exp - reference).exp_()
        total = old_weight + new_weight
        safe_total = total.masked_fill(total == 0, 1.0)
        merged = self.output[rows] * (old_weight / safe_total)[..., None]
        self.output[rows] = merged.addcmul_(output.float(), (new_weight / safe_total)[..., None])
        self.log_sum_exp[rows] = reference + total.log()
