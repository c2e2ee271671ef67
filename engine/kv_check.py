"""How much a model's predictions change when its keys and values are stored in 8 bits; and when that is too much.

Most models lose next to nothing. A few have keys with some channels far larger than the rest (large biases, mostly),
and one scale a head then leaves few steps for all other channels. That is found by trying, once, when a model is
loaded.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.attention_choice import make_attention
from engine.decoder import Decoder
from engine.errors import ModelError
from engine.kv_cache import KVCache
from engine.kv_quantization import KV_DTYPES
from engine.step_attention import FusedStepAttention, StepAttention
from engine.work_list import WorkItem

PROBE_TEXT = (
    "The lease begins on 1 March 2024 and runs for thirty-six months. The monthly rent is 1,450 euros, payable by the "
    "third working day of each month to the account named in Annex B; a payment that arrives later than the tenth "
    "carries interest of 5 % a year. The tenant may sublet single rooms, though not the whole flat, if the landlord "
    "agrees in writing. Repairs below 120 euros are the tenant's, all others the landlord's. Either party may end the "
    "contract with three months' notice, the tenant not before 1 March 2025. Keys, meter readings and the deposit of "
    "2,900 euros are handed over at the inspection, of which both sides keep a signed record.\n\n"
    "Question: Who pays for a broken window that costs 300 euros?\n"
    'Answer: {"verdict": "landlord", "quote": "Repairs below 120 euros are the tenant\'s, all others the landlord\'s."}'
    "\n\nQuestion: May the tenant sublet the whole flat?\n"
    'Answer: {"verdict": "no", "quote": "The tenant may sublet single rooms, though not the whole flat, if the '
    'landlord agrees in writing."}\n\nQuestion: When may the tenant end the contract at the earliest?\n'
    'Answer: {"verdict": "2025-03-01", "quote": "the tenant not before 1 March 2025"}\n'
)
"""Read by the model with keys and values as they are, and in 8 bits: a document, questions, and answers that quote."""

MOST_MEAN_DIVERGENCE = 0.02
"""Nats a token above which 8 bits are refused. By Pinsker's inequality two distributions so close differ by at most a
tenth of their probability, on average over the tokens. SmolLM2-135M has 0.0016 with int8 and 0.0063 with fp8, and bf16
alone is 0.0006 from fp32; a model whose keys don't suit the format is far above (benchmarks/RESULTS.md)."""

_PAGE_SIZE = 16
_CHUNK = 32  # rows whose logits are in memory at a time


def check_kv_dtype(decoder: Decoder, token_ids: np.ndarray, kv_dtype: str, dtype: torch.dtype, device: str) -> None:
    """Try `kv_dtype`, "int8" or "fp8", on `token_ids` [n], those of PROBE_TEXT. Raises ModelError if it is too coarse
    for this model."""
    error = mean_divergence(decoder, token_ids, kv_dtype, dtype, device)
    if not error <= MOST_MEAN_DIVERGENCE:  # NaN is refused too
        raise ModelError(
            f"engine.kv_dtype is {kv_dtype}, but on a text of {len(token_ids)} tokens this model's predictions then "
            f"differ by {error:.3g} nats a token, and {MOST_MEAN_DIVERGENCE:g} is the most that is let through; "
            "set engine.kv_dtype to auto."
        )


@torch.inference_mode()
def mean_divergence(decoder: Decoder, token_ids: np.ndarray, kv_dtype: str, dtype: torch.dtype, device: str) -> float:
    """Kullback-Leibler divergence, in nats a token, of the predictions after each of `token_ids` [n] with keys and
    values in `kv_dtype` from those with keys and values as they are."""
    expected = _hidden(decoder, token_ids, "auto", dtype, device)
    changed = _hidden(decoder, token_ids, kv_dtype, dtype, device)
    total = 0.0
    for start in range(0, len(token_ids), _CHUNK):
        rows = slice(start, start + _CHUNK)
        log_p, log_q = (decoder.logits(hidden[rows]).log_softmax(-1) for hidden in (expected, changed))
        total += float((log_p.exp() * (log_p - log_q)).sum())
    return total / len(token_ids)


def _hidden(decoder: Decoder, token_ids: np.ndarray, kv_dtype: str, dtype: torch.dtype, device: str) -> Tensor:
    """Hidden states of all tokens, which attend to what a cache of this dtype gives back."""
    config, count = decoder.config, len(token_ids)
    pages = np.arange(1, -(-count // _PAGE_SIZE) + 1, dtype=np.int32)
    cache = KVCache(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        pages=len(pages),
        page_size=_PAGE_SIZE,
        dtype=KV_DTYPES.get(kv_dtype, dtype),
        device=device,
    )
    attention = make_attention("auto", config, _PAGE_SIZE, dtype, device, deterministic=False, kv_dtype=kv_dtype)
    positions = torch.arange(count)
    attention.prepare([WorkItem(0, count, pages, 0, count, 0)], positions)
    rows, slots = positions.to(device), (positions + _PAGE_SIZE).to(device)
    kind = FusedStepAttention if attention.fuses_rotation else StepAttention
    attend = kind(cache, attention, rows, slots, count)
    return decoder.forward(torch.from_numpy(token_ids.astype(np.int64)).to(device), rows, attend)
