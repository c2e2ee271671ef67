"""y = x W^T + b, with W in the order that suits the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as functional
from torch import Tensor

from engine.native import packed_weight
from engine.native.packed_weight import PackedWeight

_row_block: ContextVar[int | None] = ContextVar("row_block", default=None)


@contextmanager
def matrix_product_rows(block: int | None) -> Iterator[None]:
    """Inside, torch's products in a `Linear` run over exactly `block` rows at a time, padded with zeros.

    Libraries choose how to sum by the number of rows; with one number, a row's result depends on that row alone, as it
    always does in the native kernel.
    """
    token = _row_block.set(block)
    try:
        yield
    finally:
        _row_block.reset(token)


class Linear:
    """y = x W^T + b. `pack` reorders W for the native kernel; torch does the work until then, and elsewhere."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        """`weight` is [outputs, inputs], `bias` [outputs]."""
        self.weight: Tensor | None = weight
        self.bias = bias
        self._packed: PackedWeight | None = None

    def pack(self) -> Linear:
        """Replace the weight by a packed copy where the native kernel runs; measured in benchmarks/RESULTS.md."""
        if self.weight is not None and packed_weight.unavailable_reason(self.weight) is None:
            self._packed, self.weight = PackedWeight(self.weight), None
        return self

    @property
    def is_packed(self) -> bool:
        """Whether the native kernel multiplies: elements then have the same bits whatever stands beside them."""
        return self._packed is not None

    def __call__(self, rows: Tensor, output_dtype: torch.dtype | None = None) -> Tensor:
        """[n, inputs] -> [n, outputs], of the dtype of `rows` or of fp32 where `output_dtype` says so."""
        dtype = output_dtype or rows.dtype
        if self._packed is not None:
            return self._packed.multiply(rows, self.bias, dtype)
        assert self.weight is not None
        block = _row_block.get()
        if block is None:
            return functional.linear(rows, self.weight, self.bias).to(dtype)
        count = rows.shape[0]
        padded = functional.pad(rows, (0, 0, 0, -count % block))
        products = [functional.linear(part, self.weight, self.bias) for part in padded.split(block)]
        return torch.cat(products)[:count].to(dtype)
