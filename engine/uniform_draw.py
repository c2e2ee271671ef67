"""The chance in sampling: a number that a row's seed and a token's place decide."""

from __future__ import annotations

import hashlib


def draw_uniform(seed: int, token_index: int) -> float:
    """A number in [0, 1) that depends on the row's seed and the token's index only, not on batch or machine."""
    digest = hashlib.blake2b(f"{seed}:{token_index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)
