"""Launches the sampling kernel: what `engine.sampler` is on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from engine.device_stream import stream_of
from engine.errors import EngineError
from engine.request import SamplingParameters
from engine.triton.sampling import sample_kernel
from engine.uniform_draw import draw_uniform

BLOCK = 1024
WARPS = 8
_NOT_A_NUMBER = -1
_LARGEST_UNIFORM = 1.0 - 2.0**-23  # in fp32, so that its product with a sum is always below the sum


def sample_on_device(
    logits: Tensor, masks: np.ndarray | None, parameters: Sequence[SamplingParameters], token_indices: Sequence[int]
) -> list[int]:
    """`engine.sampler.sample` for logits on the device; only the tokens leave it."""
    device_masks = None if masks is None else stream_of(logits.device).send(masks)
    tokens = launch_sampling(logits, device_masks, parameters, token_indices).cpu().numpy()
    check_numbers(tokens)
    return tokens.tolist()


def launch_sampling(
    logits: Tensor, masks: Tensor | None, parameters: Sequence[SamplingParameters], token_indices: Sequence[int]
) -> Tensor:
    """int32 [rows] on the device, not waited for: tokens as `engine.sampler.sample` draws them, for `check_numbers`.

    `masks` int32 [rows, words] is on the device.
    """
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows == 0:
        return tokens
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
    settings = stream_of(logits.device).send(numbers)
    sample_kernel[(rows,)](
        logits,
        logits.stride(0),
        settings if masks is None else masks,
        0 if masks is None else masks.shape[1],
        settings,
        tokens,
        **sampling_constants(vocabulary),
        HAS_MASKS=masks is not None,
        num_warps=WARPS,
    )
    return tokens


def check_numbers(tokens: np.ndarray) -> None:
    """Raises EngineError if a row of `launch_sampling` had logits that are not numbers."""
    if _NOT_A_NUMBER in tokens:
        raise EngineError(
            "The model computed logits that are not numbers; its weights are damaged or dtype is too narrow."
        )


def sampling_constants(vocabulary: int) -> dict[str, int]:
    """What `sample_kernel` and `log_probability_kernel` are compiled for, beside their flag."""
    assert vocabulary < 1 << 20, "ids are found in five steps of four bits"
    return {"VOCABULARY": vocabulary, "BLOCK": min(BLOCK, max(32, triton.next_power_of_2(vocabulary)))}
