"""A weight matrix in the order in which the native kernel reads it, and the product of rows with it."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from engine import native

_PANEL = 64  # outputs of a panel, as PANEL in attention.h
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


def unavailable_reason(weight: Tensor) -> str | None:
    """Why `PackedWeight` can't hold this matrix, in words for a log; None if it can."""
    if weight.device.type != "cpu":
        return "it runs on the CPU only"
    if weight.shape[1] * weight.element_size() % 4:
        return "the native product wants an even number of inputs"
    if weight.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return "torch uses this CPU's matrix units (AMX), which the native kernel does not"
    return native.unavailable_reason(weight.dtype)


class PackedWeight:
    """W [outputs, inputs] for y = x W^T.

    An element of y is summed in one fixed order: it has the same bits whatever other rows and outputs stand beside it.
    """

    def __init__(self, weight: Tensor) -> None:
        """Ask `unavailable_reason` first. `weight` is copied, not kept."""
        weight = weight.contiguous()
        self.dtype = weight.dtype
        self.outputs, self.inputs = weight.shape
        panels = -(-self.outputs // _PANEL)
        # 32-bit words [panels, words, 64]: a word is one fp32 or two bf16 inputs of an output.
        words = self.inputs * weight.element_size() // 4
        self._panels = torch.empty((panels, words, _PANEL), dtype=torch.int32)
        _functions().docqa_pack_weight(
            weight.data_ptr(),
            self._panels.data_ptr(),
            self.outputs,
            self.inputs,
            torch.get_num_threads(),
            native.ELEMENT_CODES[self.dtype],
        )

    def multiply(self, rows: Tensor, bias: Tensor | None, output_dtype: torch.dtype) -> Tensor:
        """`rows` [n, inputs] W^T + `bias` [outputs]: [n, outputs] of `output_dtype`, which is fp32 or that of W."""
        assert rows.dtype == self.dtype
        assert rows.shape[1] == self.inputs
        assert output_dtype in (self.dtype, torch.float32)
        rows = rows.contiguous()
        output = torch.empty((rows.shape[0], self.outputs), dtype=output_dtype)
        if rows.shape[0] == 0:
            return output
        _functions().docqa_linear(
            rows.data_ptr(),
            self._panels.data_ptr(),
            None if bias is None else bias.data_ptr(),
            output.data_ptr(),
            rows.shape[0],
            self.outputs,
            self.inputs,
            output_dtype == torch.float32,
            torch.get_num_threads(),
            native.ELEMENT_CODES[self.dtype],
        )
        return output


@cache
def _functions() -> ctypes.CDLL:
    """The library with the signatures of the functions used here: 64-bit arguments would be cut off without."""
    library = native.load_library()
    library.docqa_pack_weight.argtypes = [_POINTER, _POINTER, _LONG, _LONG, _INT, _INT]
    library.docqa_linear.argtypes = [*[_POINTER] * 4, _LONG, _LONG, _LONG, _INT, _INT, _INT]
    return library
