"""What the decoder calls once a layer of a step: keys and values go to the cache, and the queries attend."""

from __future__ import annotations

from torch import Tensor

from engine.attention import AttentionBackend
from engine.kv_cache import KVCache


class StepAttention:
    """An `engine.decoder.Attend` for one step: row `write_rows[i]` puts its KV into slot `write_slots[i]`."""

    def __init__(
        self, cache: KVCache, attention: AttentionBackend, write_rows: Tensor, write_slots: Tensor, rows: int
    ) -> None:
        """`write_rows` and `write_slots` int64 [writes]; every one of `rows` rows is named, in order unless twice."""
        self._cache = cache
        self._attention = attention
        self._write_rows = write_rows
        self._write_slots = write_slots
        self._every_row_once = len(write_rows) == rows

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `engine.decoder.Attend`."""
        if not self._every_row_once:
            key, value = key[self._write_rows], value[self._write_rows]
        self._cache.write(layer, self._write_slots, key, value)
        return self._attention.run(layer, query, self._cache)


class FusedStepAttention(StepAttention):
    """An `engine.decoder.RotatingAttend`: norms, rotation and the KV write are one Triton kernel."""

    def rotate_and_attend(
        self,
        layer: int,
        heads: Tensor,
        cosine: Tensor,
        sine: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        epsilon: float,
    ) -> Tensor:
        """See `engine.decoder.RotatingAttend`."""
        from engine.triton.row_operations import rotate_and_write  # not at the top: Triton is there on Linux only

        keys, values = self._cache.keys[layer], self._cache.values[layer]
        scales = self._cache.scales(layer)
        query = rotate_and_write(
            heads, cosine, sine, norms, epsilon, keys, values, self._write_rows, self._write_slots, scales
        )
        return self._attention.run(layer, query, self._cache)
