"""Launches the sampling kernel: what `engine.sampler` is on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from engine.errors import EngineError
from engine.request import SamplingParameters
from engine.sampler import draw_uniform
from engine.triton.sampling import sample_kernel

BLOCK = 1024
WARPS = 8
_NOT_A_NUMBER = -1
_LARGEST_UNIFORM = 1.0 - 2.0**-23  # in fp32, so that its product with a sum is always below the sum


def sample_on_device(
    logits: Tensor, masks: np.ndarray | None, parameters: Sequence[SamplingParameters], token_indices: Sequence[int]
) -> list[int]:
    """`engine.sampler.sample` for logits on the device; only the tokens leave it."""
    rows, vocabulary = logits.shape
    if rows == 0:
        return []
    numbers = np.array(
        [
            (
                parameter.temperature,
                parameter.top_k,
                parameter.top_p,
                min(draw_uniform(parameter.seed, index), _LARGEST_UNIFORM) if parameter.temperature > 0 else 0.0,
            )
            for parameter, index in zip(parameters, token_indices, strict=True)
        ],
        dtype=np.float32,
    )
    settings = torch.from_numpy(numbers).to(logits.device, non_blocking=True)
    device_masks = settings if masks is None else torch.from_numpy(masks).to(logits.device, non_blocking=True)
    tokens = torch.empty(rows, dtype=torch.int32, device=logits.device)
    sample_kernel[(rows,)](
        logits,
        logits.stride(0),
        device_masks,
        0 if masks is None else masks.shape[1],
        settings,
        tokens,
        **sampling_constants(vocabulary),
        HAS_MASKS=masks is not None,
        num_warps=WARPS,
    )
    drawn: list[int] = tokens.tolist()
    if _NOT_A_NUMBER in drawn:
        raise EngineError(
            "The model computed logits that are not numbers; its weights are damaged or dtype is too narrow."
        )
    return drawn


def sampling_constants(vocabulary: int) -> dict[str, int]:
    """What `sample_kernel` and `log_probability_kernel` are compiled for, beside their flag."""
    assert vocabulary < 1 << 20, "ids are found in five steps of four bits"
    return {"VOCABULARY": vocabulary, "BLOCK": min(BLOCK, max(32, triton.next_power_of_2(vocabulary)))}
