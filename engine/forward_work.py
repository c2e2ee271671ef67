"""The arithmetic of computing tokens, to share out measured seconds. Plain numbers: reports use it without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from engine.model_config import ModelConfig


@dataclass(frozen=True)
class ForwardWork:
    """Floating-point operations of one token in all layers, the LM head left out: few rows need it.

    A token costs `token_flops` in matrix products, wherever it stands, and `key_flops` for each key that it attends
    to. Layers differ in how many keys that can be at most: `key_flops` is by that window, 0 for none. A product of n
    values and a matrix of n x m costs 2 n m operations; scores and their sum of values 4 a key, head and head size.
    """

    token_flops: int
    key_flops: Mapping[int, int]

    @classmethod
    def of(cls, config: ModelConfig) -> ForwardWork:
        """The work of a model."""
        attention = config.head_size * config.hidden_size * (2 * config.heads + 2 * config.kv_heads)
        mlp = 3 * config.hidden_size * config.intermediate_size
        layers_by_window = Counter(window or 0 for window in config.windows)
        key_flops = 4 * config.heads * config.head_size
        return cls(
            2 * config.layers * (attention + mlp),
            {window: layers * key_flops for window, layers in layers_by_window.items()},
        )

    def flops(self, first_position: int, tokens: int) -> int:
        """What `tokens` from `first_position` on cost; the token at position p attends to p + 1 keys."""
        end = first_position + tokens
        attended = sum(cost * (_keys(end, window) - _keys(first_position, window))
                       for window, cost in self.key_flops.items())  # fmt: skip
        return tokens * self.token_flops + attended


def _keys(tokens: int, window: int) -> int:
    """Keys that the first `tokens` tokens attend to, together: 1 + 2 + ... up to the window, and then the window."""
    growing = min(tokens, window) if window else tokens
    return growing * (growing + 1) // 2 + (tokens - growing) * window
