"""The tensors behind the page pool: keys and values of every layer, by slot (page * page_size + offset)."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kv_quantization import LARGEST, dequantize
from engine.native.row_operations import write_quantized, write_slots
from engine.page_pool import NULL_PAGE


class KVCache:
    """Keys and values, each [layers, kv_heads, slots, head_size]: the slots of a KV head lie together for attention.

    With a `dtype` of 8 bits they have scales, fp32 [layers, kv_heads, slots] (see `engine.kv_quantization`); else those
    are None. Memory of untouched pages is not touched on the CPU, so a large pool costs only what is used. The null
    page holds zeros: padding reads it, and a value that was never written could be NaN.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, head_size: int, pages: int, page_size: int, dtype: torch.dtype, device: str
    ) -> None:
        shape = (layers, kv_heads, (pages + 1) * page_size, head_size)  # one more: the null page
        self.page_size = page_size
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if dtype in LARGEST:
            self.key_scales = torch.empty(shape[:3], dtype=torch.float32, device=device)
            self.value_scales = torch.empty(shape[:3], dtype=torch.float32, device=device)
        for part in self._parts():
            part[:, :, NULL_PAGE * page_size : (NULL_PAGE + 1) * page_size] = 0

    def scales(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Scales of a layer's keys and of its values, [kv_heads, slots]; None if they are stored as they are."""
        if self.key_scales is None or self.value_scales is None:
            return None
        return self.key_scales[layer], self.value_scales[layer]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Put `key` and `value` [writes, kv_heads, head_size] into `slots` [writes] of a layer."""
        scales = self.scales(layer)
        if scales is None:
            write_slots(self.keys[layer], slots, key)
            write_slots(self.values[layer], slots, value)
        else:
            write_quantized(self.keys[layer], scales[0], slots, key)
            write_quantized(self.values[layer], scales[1], slots, value)

    def read(self, layer: int, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values in `slots` (of any shape) of a layer, each [kv_heads, *slots.shape, head_size] in `dtype`."""
        keys, values = (_pick(part[layer], slots) for part in (self.keys, self.values))
        scales = self.scales(layer)
        if scales is None:
            return keys.to(dtype), values.to(dtype)
        key_scales, value_scales = (_pick(part, slots) for part in scales)
        return dequantize(keys, key_scales, dtype), dequantize(values, value_scales, dtype)

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots in every layer. All sources are read before any target is written."""
        for part in self._parts():
            part.index_copy_(2, targets, part.index_select(2, sources))

    def _parts(self) -> list[Tensor]:
        """Everything that is stored by slot; as bytes where torch has no operators for 8-bit floats."""
        parts = [part for part in (self.keys, self.values, self.key_scales, self.value_scales) if part is not None]
        return [part.view(torch.uint8) if part.dtype == torch.float8_e4m3fn else part for part in parts]


def _pick(by_slot: Tensor, slots: Tensor) -> Tensor:
    """[kv_heads, slots, ...] at `slots` of any shape: [kv_heads, *slots.shape, ...]."""
    is_float8 = by_slot.dtype == torch.float8_e4m3fn
    picked = (by_slot.view(torch.uint8) if is_float8 else by_slot).index_select(1, slots.reshape(-1))
    picked = picked.view(by_slot.shape[0], *slots.shape, *by_slot.shape[2:])
    return picked.view(torch.float8_e4m3fn) if is_float8 else picked
