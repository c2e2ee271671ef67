"""Keys and values in 8 bits: each head of each token by itself, with a scale of its own.

A head x is stored as q = round(x L / m) with m = max |x| and the scale m / L, and read as q times the scale; L is the
largest number of the format. Nothing but the head itself decides how it is stored, so pages only ever grow, and an
answer doesn't depend on what else is in the step, how a prompt is cut, or who computed a shared prefix.
"""

from __future__ import annotations

import torch
from torch import Tensor

KV_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""By the names of engine.kv_dtype. int8 has steps of m / 127, fp8 (e4m3) 3 bits of fraction at every size."""

LEAST_FP8_CAPABILITY = 89
"""Compute capability of the oldest cards that convert fp8 (Ada, Hopper); older ones take int8."""

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""L: the largest number of each format that is used."""

LEAST_MAGNITUDE = 1e-30
"""A head of smaller values is stored as zeros: the factor that would spread them is no number in fp32."""


def quantize(heads: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`heads` [..., head_size] in `dtype`, and their scales fp32 [...]. A head with NaN or infinity has no finite
    scale, so what reads it is NaN too."""
    values = heads.float()
    largest = values.abs().amax(dim=-1)
    # A number over a tensor would be the number times a reciprocal, which is rounded twice.
    factor = torch.where(largest > LEAST_MAGNITUDE, torch.full_like(largest, LARGEST[dtype]) / largest, 0.0)
    scaled = values * factor[..., None]
    if dtype == torch.int8:
        scaled = scaled.round().clamp_(-LARGEST[dtype], LARGEST[dtype])  # the clamp is for what is no number
    return scaled.to(dtype), largest / LARGEST[dtype]


def dequantize(quantized: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """What `quantize` stored, [..., head_size] in `dtype`."""
    return (quantized.float() * scales[..., None]).to(dtype)
