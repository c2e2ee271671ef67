"""Executes a step: KV writes, attention through a backend, the decoder, and logits for the rows that need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.attention import AttentionBackend
from engine.decoder import Attend
from engine.device_stream import DeviceStream, stream_of
from engine.kv_cache import KVCache
from engine.linear import matrix_product_rows
from engine.step import Step
from engine.step_attention import FusedStepAttention, StepAttention
from engine.work_list import WorkItem, build_work_list

if TYPE_CHECKING:
    from engine.padded_decode import PaddedDecode


class Model(Protocol):
    """What the runner needs of a decoder; tests put a stub here."""

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, needed_rows: Tensor | None = None
    ) -> Tensor:
        """Hidden states [needed rows, hidden_size] after the final norm."""

    @property
    def has_partial_logits(self) -> bool:
        """Whether `logits` takes token ids."""

    @property
    def partial_logits_are_exact(self) -> bool:
        """Whether logits of some tokens have the same bits as among those of all."""

    def logits(self, hidden: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """fp32 logits of hidden states [n, hidden_size], of all tokens or of `token_ids` [m] only."""


class Runner:
    """Turns steps into hidden states. `share_prefixes` lets rows with common pages read them as one item.

    With `row_block`, every matrix product runs over exactly that many rows at a time. `padded` takes the decoding steps
    that it can.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        attention: AttentionBackend,
        *,
        vocabulary_size: int,
        share_prefixes: bool,
        row_block: int | None,
        padded: PaddedDecode | None = None,
        stream: DeviceStream | None = None,
    ) -> None:
        """`stream` is by default that of the cache's device."""
        self._model = model
        self.vocabulary_size = vocabulary_size
        self._row_block = row_block
        self._cache = cache
        self._attention = attention
        self._share_prefixes = share_prefixes
        self._padded = padded
        self.stream = stream or stream_of(cache.keys.device)

    def forward(self, step: Step) -> tuple[Tensor, list[WorkItem]]:
        """Hidden states [sampled rows, hidden_size] of the rows that predict a token, and the work list used.

        The step's KV is in the cache afterwards.
        """
        send = self.stream.send
        if len(step.copy_targets):
            self._cache.copy(send(step.copy_sources), send(step.copy_targets))
        items = build_work_list(step.rows, self._cache.page_size, self._share_prefixes)
        sampled_rows = [row for rows in step.sampled for row in range(rows.row_start, rows.row_start + rows.row_count)]
        needed_rows = send(np.array(sampled_rows, dtype=np.int64))
        if self._padded is not None and (padded := self._padded.forward(step, items)) is not None:
            return padded[needed_rows], items
        self._attention.prepare(items, torch.from_numpy(step.positions))
        positions, write_slots, write_rows = send(step.positions), send(step.write_slots), send(step.write_rows)
        kind = FusedStepAttention if self._attention.fuses_rotation else StepAttention
        attend = kind(self._cache, self._attention, write_rows, write_slots, len(step.token_ids))
        with matrix_product_rows(self._row_block):
            hidden = self._model.forward(send(step.token_ids), positions, attend, needed_rows)
        return hidden, items

    @property
    def has_partial_logits(self) -> bool:
        """Whether `logits` computes a choice of tokens for less. With `row_block` only if their sums do not differ."""
        exact = self._row_block is None or self._model.partial_logits_are_exact
        return self._model.has_partial_logits and exact

    def logits(self, hidden: Tensor, token_ids: np.ndarray | None = None) -> Tensor:
        """fp32 logits of hidden states [n, hidden_size]: [n, vocabulary_size], or of `token_ids` [m] only, [n, m]."""
        with matrix_product_rows(self._row_block):
            return self._model.logits(hidden, None if token_ids is None else torch.from_numpy(token_ids))
