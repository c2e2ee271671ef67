"""Launches the kernel of log-probabilities: what `engine.log_probabilities` is on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.triton.sampler import WARPS, sampling_constants
from engine.triton.sampling import log_probability_kernel


def log_probabilities_on_device(logits: Tensor, masks: np.ndarray | None, tokens: np.ndarray) -> np.ndarray:
    """`engine.log_probabilities.token_log_probabilities` for logits on the device; only the result leaves it."""
    rows, vocabulary = logits.shape
    if rows == 0:
        return np.empty(0, dtype=np.float64)
    device_tokens = torch.from_numpy(tokens.astype(np.int32)).to(logits.device, non_blocking=True)
    device_masks = device_tokens
    if masks is not None:
        device_masks = torch.from_numpy(masks).to(logits.device, non_blocking=True)
    output = torch.empty(rows, dtype=torch.float32, device=logits.device)
    log_probability_kernel[(rows,)](
        logits,
        logits.stride(0),
        device_masks,
        0 if masks is None else masks.shape[1],
        device_tokens,
        output,
        **sampling_constants(vocabulary),
        HAS_MASKS=masks is not None,
        num_warps=WARPS,
    )
    return output.double().cpu().numpy()
