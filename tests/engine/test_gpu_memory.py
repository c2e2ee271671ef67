"""How the KV cache is sized on a GPU, with torch's figures made up."""

import pytest
import torch

from engine.errors import ModelError
from engine.gpu_memory import explained_out_of_memory, kv_memory_bytes, run_largest_step


def test_running_out_of_gpu_memory_says_what_to_lower():
    with (
        pytest.raises(ModelError, match=r"memory for a step of 9 tokens; lower engine.step_tokens. \(Tried 2 GiB.\)"),
        explained_out_of_memory("a step of 9 tokens", "lower engine.step_tokens"),
    ):
        raise torch.OutOfMemoryError("Tried 2 GiB. If reserved but unallocated memory is large, try ...")


def test_the_kv_cache_gets_what_the_largest_step_leaves(tiny_model, monkeypatch):
    decoder, _ = tiny_model
    logits = run_largest_step(decoder, 50, 7)
    assert logits.shape == (7, decoder.config.vocabulary_size)
    for name in ("empty_cache", "reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 150)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1050, 2000))
    assert kv_memory_bytes(decoder, step_tokens=50, sampled_rows=7) == 900
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10, 2000))
    assert kv_memory_bytes(decoder, step_tokens=50, sampled_rows=7) == 0
