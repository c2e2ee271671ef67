"""How much GPU memory is left for the KV cache, found by running the largest step once; and what to do without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.decoder import Decoder
from engine.errors import ModelError

SHARE_OF_FREE_GPU_MEMORY = 0.9
"""Of what a largest step leaves free; the rest is for CUDA graphs and for what the allocator can't place well."""


@contextmanager
def explained_out_of_memory(what: str, advice: str) -> Iterator[None]:
    """Inside, running out of GPU memory is a ModelError: "The GPU has too little memory for `what`; `advice`."."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # Its text has sizes, and pages of advice on allocators after the first sentence or two.
        detail = str(error).partition("If reserved but")[0].strip()
        raise ModelError(f"The GPU has too little memory for {what}; {advice}. ({detail})") from error


@torch.inference_mode()
def kv_memory_bytes(decoder: Decoder, *, step_tokens: int, sampled_rows: int) -> int:
    """Bytes that the KV cache may take beside weights and the largest step: `step_tokens` rows, `sampled_rows` of which
    need logits. Raises ModelError if not even that step fits."""
    device = decoder.weights.device
    with explained_out_of_memory(f"a step of {step_tokens} tokens", "lower engine.step_tokens"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run_largest_step(decoder, step_tokens, sampled_rows)
        torch.cuda.synchronize(device)
    step_bytes = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return int(SHARE_OF_FREE_GPU_MEMORY * max(0, free_bytes - step_bytes))


def run_largest_step(decoder: Decoder, step_tokens: int, sampled_rows: int) -> torch.Tensor:
    """The forward pass of a step without attention, which takes little memory of its own. Returns the logits."""
    device = decoder.weights.device
    token_ids = torch.zeros(step_tokens, dtype=torch.int64, device=device)
    positions = torch.arange(step_tokens, device=device)
    needed_rows = positions[: min(step_tokens, sampled_rows)]
    hidden = decoder.forward(token_ids, positions, lambda _layer, query, _key, _value: query.clone(), needed_rows)
    return decoder.logits(hidden)
