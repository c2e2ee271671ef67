"""The order that computes every shared token once: a sort (Zheng et al., SGLang, section 3).

Requests sorted by their token sequence visit the prefix tree depth first, so a cache that holds the longest single
path computes every distinct prefix position once.
"""

from collections.abc import Sequence

import numpy as np


def common_prefix_length(first: np.ndarray, second: np.ndarray) -> int:
    """Number of leading tokens that two int32 sequences share."""
    length = min(len(first), len(second))
    different = first[:length] != second[:length]
    position = int(different.argmax()) if length else 0
    return position if length and different[position] else length


def sort_key(token_ids: np.ndarray) -> bytes:
    """Bytes that compare as sequences of non-negative ids do; a prefix comes before its extensions."""
    return np.asarray(token_ids, dtype=">u4").tobytes()


def depth_first_order(prompts: Sequence[np.ndarray]) -> list[int]:
    """Indices of `prompts` (int32 sequences) in depth-first order of their prefix tree; equal ones keep their order."""
    keys = [sort_key(prompt) for prompt in prompts]
    return sorted(range(len(keys)), key=keys.__getitem__)


def first_positions(ordered_prompts: Sequence[np.ndarray]) -> list[int]:
    """For each prompt of a depth-first sequence, how many of its positions no earlier prompt has.

    The sum is the number of distinct token positions in the prefix tree: the least that any engine must compute.
    """
    counts = []
    previous = np.empty(0, dtype=np.int32)
    for prompt in ordered_prompts:
        counts.append(len(prompt) - common_prefix_length(previous, prompt))
        previous = prompt
    return counts
