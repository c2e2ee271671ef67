"""Launches the kernel of log-probabilities: what `engine.log_probabilities` is on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.device_stream import stream_of
from engine.triton.sampler import WARPS, sampling_constants
from engine.triton.sampling import log_probability_kernel


def log_probabilities_on_device(logits: Tensor, masks: np.ndarray | None, tokens: np.ndarray) -> np.ndarray:
    """`engine.log_probabilities.token_log_probabilities` for logits on the device; only the result leaves it."""
    send = stream_of(logits.device).send
    device_masks = None if masks is None else send(masks)
    return launch_log_probabilities(logits, device_masks, send(tokens.astype(np.int32))).double().cpu().numpy()


def launch_log_probabilities(logits: Tensor, masks: Tensor | None, tokens: Tensor) -> Tensor:
    """fp32 [rows] on the device, not waited for; `masks` and `tokens` (int32) are there too. A token below 0, which is
    none, has that of token 0."""
    rows, vocabulary = logits.shape
    output = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return output
    log_probability_kernel[(rows,)](
        logits,
        logits.stride(0),
        tokens if masks is None else masks,
        0 if masks is None else masks.shape[1],
        tokens.clamp(min=0),
        output,
        **sampling_constants(vocabulary),
        HAS_MASKS=masks is not None,
        num_warps=WARPS,
    )
    return output
