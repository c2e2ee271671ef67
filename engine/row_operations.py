"""What a decoder layer does between its matrix products, by device: norms with the residual, and gated activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as functional
from torch import Tensor

from engine.native import row_operations as native


class RowOperations(Protocol):
    """One implementation of the operations that are not matrix products."""

    def add_rms_norm(self, hidden: Tensor, addend: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
        """Add `addend` to `hidden` [rows, size] in place; the RMSNorm of the sum times `weight` [size], which may be
        of a wider dtype."""

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """activation(gate) * up for `gate_up` [rows, 2 size], gate first: [rows, size]. Names as in config.json."""


class CpuRowOperations:
    """Native kernels where they run, else torch."""

    def add_rms_norm(self, hidden: Tensor, addend: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
        """See `RowOperations`."""
        if weight.dtype == hidden.dtype:
            return native.add_rms_norm(hidden, addend, weight, epsilon)
        if addend is not None:
            hidden += addend
        return functional.rms_norm(hidden.float(), weight.shape, weight.float(), epsilon).to(hidden.dtype)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `RowOperations`."""
        if activation in ("silu", "swish"):
            return native.silu_multiply(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return _ACTIVATIONS[activation](gate).mul_(up)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}


def choose_row_operations(device: torch.device) -> RowOperations:
    """Triton's on a GPU, else those of the CPU."""
    if device.type != "cuda":
        return CpuRowOperations()
    from engine.triton.row_operations import TritonRowOperations  # not at the top: Triton is there on Linux only

    return TritonRowOperations()
