"""The most likely token that a grammar allows, in one pass over the logits and without a copy of them."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import torch
from torch import Tensor

from engine import native

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


def is_available(logits: Tensor) -> bool:
    """Whether `masked_argmax` takes these logits here."""
    return logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous() and _supported()


def masked_argmax(logits: Tensor, masks: np.ndarray | None) -> list[int] | None:
    """For each row of `logits`, fp32 [rows, vocabulary], the first of the most likely tokens; None if one is no number.

    `masks` int32 [rows, words] of allowed tokens, 32 a word, or None for all. A row that allows nothing gives 0.
    """
    rows, size = logits.shape
    tokens = np.zeros(rows, dtype=np.int64)
    words = 0
    if masks is not None:
        masks = np.ascontiguousarray(masks)
        words = masks.shape[1]
        assert words * 32 >= size
    are_numbers = _function()(
        logits.data_ptr(),
        None if masks is None else masks.ctypes.data,
        tokens.ctypes.data,
        rows,
        size,
        words,
        torch.get_num_threads(),
    )
    return tokens.tolist() if are_numbers else None


@cache
def _supported() -> bool:
    return native.unavailable_reason(torch.float32) is None


@cache
def _function() -> ctypes._NamedFuncPointer:
    function = native.load_library().docqa_masked_argmax
    function.argtypes = [*[_POINTER] * 3, _LONG, _LONG, _LONG, _INT]
    function.restype = _INT
    return function
