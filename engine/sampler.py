"""Logits to tokens: grammar mask, temperature, top-k, top-p, and a draw that depends on the row alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.native import masked_argmax
from engine.request import SamplingParameters
from engine.uniform_draw import draw_uniform


def mask_words(vocabulary_size: int) -> int:
    """Length of a packed mask row: 32 tokens an int32 word."""
    return -(-vocabulary_size // 32)


def sample(
    logits: Tensor, masks: np.ndarray | None, parameters: Sequence[SamplingParameters], token_indices: Sequence[int]
) -> list[int]:
    """One token a row.

    `logits` fp32 [rows, vocabulary]. `masks` int32 [rows, words] of allowed tokens, or None.
    `token_indices[i]` is how many tokens row i has drawn before.
    """
    if logits.is_cuda:
        from engine.triton.sampler import sample_on_device  # not at the top: Triton is there on Linux only

        return sample_on_device(logits, masks, parameters, token_indices)
    tokens = _most_likely(logits, masks)
    for row, (parameter, index) in enumerate(zip(parameters, token_indices, strict=True)):
        if parameter.temperature > 0:
            allowed = logits[row : row + 1]
            if masks is not None:
                allowed = allowed.masked_fill(_forbidden(masks[row : row + 1], allowed), -torch.inf)
            tokens[row] = _draw(allowed[0], parameter, draw_uniform(parameter.seed, index))
    return tokens


def _most_likely(logits: Tensor, masks: np.ndarray | None) -> list[int]:
    if masked_argmax.is_available(logits):
        tokens = masked_argmax.masked_argmax(logits, masks)
    else:
        if masks is not None:
            logits = logits.masked_fill(_forbidden(masks, logits), -torch.inf)
        largest, places = logits.max(dim=-1)
        tokens = None if bool(largest.isnan().any()) else places.tolist()
    if tokens is None:
        raise EngineError(
            "The model computed logits that are not numbers; its weights are damaged or dtype is too narrow."
        )
    return tokens


def _forbidden(masks: np.ndarray, logits: Tensor) -> Tensor:
    """Packed masks [rows, words] as bool [rows, vocabulary], True where a token is not allowed."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
    return torch.from_numpy(bits == 0).to(logits.device)


def _draw(logits: Tensor, parameter: SamplingParameters, uniform: float) -> int:
    """Inverse of the cumulative distribution over the most likely tokens, after top-k and then top-p."""
    ordered, tokens = torch.sort(logits.double() / parameter.temperature, descending=True, stable=True)
    if parameter.top_k > 0:
        ordered, tokens = ordered[: parameter.top_k], tokens[: parameter.top_k]
    probabilities = torch.softmax(ordered, dim=-1)
    cumulative = torch.cumsum(probabilities, dim=-1)
    if parameter.top_p < 1.0:  # keep tokens until their sum reaches top_p, the first always
        kept = int((cumulative - probabilities < parameter.top_p).sum())
        probabilities, cumulative = probabilities[:kept], cumulative[:kept]
    possible = int((probabilities > 0).sum())
    choice = int(torch.searchsorted(cumulative[:possible], uniform * cumulative[possible - 1], right=True))
    return int(tokens[min(choice, possible - 1)])
