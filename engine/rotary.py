"""Rotary positions (Su et al., RoFormer): angles from positions, and the half rotation of queries and keys."""

import math

import torch
from torch import Tensor

from engine.model_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_size: int) -> Tensor:
    """Radians a position for each pair of a head, fp32 [head_size / 2], on the CPU.

    Formulas: default theta^(-2i/d) (RoFormer, section 3.4.2); linear divides by the factor; llama3 as in Meta's
    Llama 3.1 release; yarn after Peng et al., YaRN, section 3.2 ("NTK-by-parts").
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32) / head_size
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    if rope.kind == "yarn":
        return _yarn(frequencies, rope, head_size)
    assert rope.kind == "default", rope.kind
    return frequencies


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    turns = rope.original_context_length * frequencies / (2 * math.pi)
    span = rope.high_frequency_factor - rope.low_frequency_factor
    kept = ((turns - rope.low_frequency_factor) / span).clamp(0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * frequencies / rope.factor


def _yarn(frequencies: Tensor, rope: RopeConfig, head_size: int) -> Tensor:
    """Pairs that turn more than `beta_fast` times in the original context are kept, below `beta_slow` stretched."""

    def pair_that_turns(times: float) -> float:
        wavelengths = rope.original_context_length / (times * 2 * math.pi)
        return head_size * math.log(wavelengths) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    ramp = (torch.arange(head_size // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    stretched = ramp.clamp(0.0, 1.0)
    return stretched * frequencies / rope.factor + (1.0 - stretched) * frequencies


class Rotary:
    """Cosines and sines for the positions of a step, computed once a step and used by every layer.

    They are computed rather than looked up: for a step of T tokens that is T x head_size / 2 values, while a table
    for a context of 128k tokens would hold tens of megabytes.
    """

    def __init__(self, rope: RopeConfig, head_size: int, device: torch.device | str = "cpu"):
        self._frequencies = inverse_frequencies(rope, head_size).to(device)
        self._cosine_scale = rope.cosine_scale

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine [T, 1, head_size] and sine [T, 1, head_size / 2] of `positions` [T], both fp32.

        The cosine is repeated for both halves, which saves `rotate` an operation a layer.
        """
        angles = positions.to(torch.float32)[:, None, None] * self._frequencies
        cosine, sine = angles.cos(), angles.sin()
        if self._cosine_scale != 1.0:
            cosine, sine = cosine * self._cosine_scale, sine * self._cosine_scale
        return torch.cat((cosine, cosine), dim=-1), sine


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate `heads` [T, heads, head_size] by the angles of `Rotary.angles`, in fp32; returns the dtype of `heads`.

    Pair i is (first half[i], second half[i]), the layout of Hugging Face weights: (a cos - b sin, b cos + a sin).
    """
    values = heads.float()
    half = values.shape[-1] // 2
    rotated = values * cosine
    rotated[..., :half].addcmul_(values[..., half:], sine, value=-1)
    rotated[..., half:].addcmul_(values[..., :half], sine)
    return rotated.to(heads.dtype)
