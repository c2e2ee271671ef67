"""How likely a token was among those that the grammar allowed: what the confidence of an answer is made of.

With z the logits and A the allowed tokens of a row, token t in A: log p(t) = z(t) - log(sum of e^z(a) over a in A),
the model's distribution at temperature 1, cut to A and made whole again. How the token was drawn does not matter.

A grammar may know that other tokens come to the same text as t (`GrammarState.same_text`): they are one choice, and
their probabilities add up. With S the ones that do, t among them, it is log p(S) = log p(t in A) - log p(t in S).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from engine.native import log_probabilities as native


def token_log_probabilities(logits: Tensor, masks: np.ndarray | None, tokens: np.ndarray) -> np.ndarray:
    """fp64 [rows]: of each row's token, at most 0; NaN where the logits don't say (an infinite one, nothing allowed).

    `logits` fp32 [rows, vocabulary]; `masks` int32 [rows, words] of allowed tokens, 32 a word, or None for all;
    `tokens` [rows], each allowed. On a CPU a row's result depends on its allowed logits alone, to the bit: not on other
    rows, and not on which forbidden tokens have logits here.
    """
    if logits.is_cuda:
        from engine.triton.log_probabilities import log_probabilities_on_device  # Triton is there on Linux only

        return log_probabilities_on_device(logits, masks, tokens)
    if native.is_available(logits):
        return native.token_log_probabilities(logits, masks, tokens)
    return plain_token_log_probabilities(logits, masks, tokens)


def same_text_masks(
    masks: np.ndarray, tokens: np.ndarray, same_text: Sequence[Mapping[int, Sequence[int]]]
) -> np.ndarray:
    """Packed masks, as `masks`, of the tokens in them that come to the same text as each row's token, itself included.

    `same_text` has what the grammar of each row said.
    """
    found = np.zeros_like(masks)
    words = found.view(np.uint32)
    for row, token in enumerate(tokens.tolist()):
        ids = np.array([token, *same_text[row].get(token, ())], dtype=np.int64)
        np.bitwise_or.at(words[row], ids // 32, np.left_shift(1, ids % 32).astype(np.uint32))
    return found & masks


def plain_token_log_probabilities(logits: Tensor, masks: np.ndarray | None, tokens: np.ndarray) -> np.ndarray:
    """The same row by row, summed in fp64: what runs without the native kernel, and its oracle."""
    values = logits.numpy()
    result = np.empty(len(values), dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        for row, token in enumerate(tokens.tolist()):
            allowed = values[row]
            if masks is not None:
                bits = np.unpackbits(masks[row].view(np.uint8), bitorder="little", count=values.shape[1])
                allowed = allowed[bits.astype(bool)]
            largest = allowed.max(initial=-np.inf)
            weight = np.exp(allowed - largest).sum(dtype=np.float64)
            result[row] = np.float64(values[row, token]) - largest - np.log(weight)
    return result
