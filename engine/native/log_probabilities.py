"""Log-probabilities of tokens among those that a grammar allows, in one pass over the logits."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import torch
from torch import Tensor

from engine import native

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


def is_available(logits: Tensor) -> bool:
    """Whether `token_log_probabilities` takes these logits here."""
    return logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous() and _supported()


def token_log_probabilities(logits: Tensor, masks: np.ndarray | None, tokens: np.ndarray) -> np.ndarray:
    """`engine.log_probabilities.token_log_probabilities` by the native kernel."""
    rows, size = logits.shape
    tokens = np.ascontiguousarray(tokens, dtype=np.int64)
    assert len(tokens) == rows
    output = np.empty(rows, dtype=np.float64)
    words = 0
    if masks is not None:
        masks = np.ascontiguousarray(masks)
        words = masks.shape[1]
        assert words * 32 >= size
    _function()(
        logits.data_ptr(),
        None if masks is None else masks.ctypes.data,
        tokens.ctypes.data,
        output.ctypes.data,
        rows,
        size,
        words,
        torch.get_num_threads(),
    )
    return output


@cache
def _supported() -> bool:
    return native.unavailable_reason(torch.float32) is None


@cache
def _function() -> ctypes._NamedFuncPointer:
    function = native.load_library().docqa_log_probabilities
    function.argtypes = [*[_POINTER] * 4, _LONG, _LONG, _LONG, _INT]
    function.restype = None
    return function
