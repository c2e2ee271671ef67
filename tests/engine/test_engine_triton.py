"""The engine over the Triton kernels, in the interpreter: the same answers as over the reference."""

import pytest
import torch

from engine import token_draw
from engine.attention_choice import make_attention
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.errors import ModelError
from engine.model_config import ModelConfig
from engine.padded_decode import PaddedDecode, row_buckets
from engine.request import Request, SamplingParameters
from engine.triton.row_operations import TritonRowOperations
from engine.triton.sampler import sample_on_device
from engine.weights import random_weights
from tests.engine.conftest import STOP_ID, TINY_CONFIG, random_prompts

LLAMA = ModelConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 1})
GEMMA = ModelConfig.from_dict(
    {
        **TINY_CONFIG,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 50,
        "sliding_window_pattern": 2,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
        "tie_word_embeddings": True,
    }
)


def run(config, attention, operations=None):
    """Answers and statistics of a small job: a document of several pages, greedy and drawn rows, reuse, drafts."""
    decoder = Decoder(config, random_weights(config, torch.float32, "cpu", seed=3), operations)
    settings = EngineSettings(kv_pages=400, step_tokens=90, attention=attention)
    engine = Engine(decoder, config, settings, (STOP_ID,))
    prompts = random_prompts(5, documents=1, questions=3, document_tokens=(90, 100))
    requests = [
        Request(index, prompt, SamplingParameters(temperature=float(index % 2), seed=index, max_tokens=4))
        for index, prompt in enumerate(prompts)
    ]
    completions = engine.run(requests)
    engine.check()
    return [completion.output_tokens for completion in completions], engine.statistics


@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "gemma3"])
def test_a_job_gives_the_answers_of_the_reference(config, monkeypatch):
    expected, _ = run(config, "reference")
    monkeypatch.setattr(token_draw, "sample", sample_on_device)
    ours, statistics = run(config, "triton", TritonRowOperations())
    assert ours == expected
    assert statistics.shared_items > 0
    assert len({tuple(answer) for answer in ours}) > 1


def choose(name, config=LLAMA, device="cpu", dtype=torch.float32, deterministic=False):
    return make_attention(name, config, 16, dtype, device, deterministic=deterministic)


def test_which_backend_is_chosen(monkeypatch):
    assert type(choose("triton")).__name__ == "TritonAttention"
    assert type(choose("auto", device="cuda")).__name__ == "TritonAttention"
    assert type(choose("auto")).__name__ in ("NativeAttention", "CpuAttention")
    assert type(choose("auto", GEMMA)).__name__ == "ReferenceAttention", "no other CPU backend has soft caps"
    with pytest.raises(ModelError, match="soft caps"):
        choose("torch", GEMMA)
    with pytest.raises(ModelError, match="soft caps"):
        choose("native", GEMMA)
    with pytest.raises(ModelError, match="soft caps"):
        choose("auto", GEMMA, deterministic=True)
    with pytest.raises(ModelError, match="one of auto, native, torch, triton, reference"):
        choose("cuda")


def test_why_triton_cannot_be_chosen(monkeypatch):
    from triton import knobs

    with monkeypatch.context() as patch:
        patch.setattr(knobs.runtime, "interpret", False)
        with pytest.raises(ModelError, match="on a GPU only"):
            choose("triton")
    wide = ModelConfig.from_dict({**TINY_CONFIG, "head_dim": 320})
    with pytest.raises(ModelError, match="head sizes up to 256, not 320"):
        choose("auto", wide, device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr("engine.triton.find_spec", lambda name: None)
        with pytest.raises(ModelError, match="triton is not installed"):
            choose("auto", device="cuda")


def test_decoding_over_padded_buffers_gives_the_same_answers(monkeypatch):
    """What a CUDA graph would replay, run without one: steps padded to a bucket, over memory of fixed size."""
    expected, _ = run(LLAMA, "reference")
    padded_steps = []

    def padded_decode(engine, model, cache, attention, dtype):
        padded = PaddedDecode(model.forward, LLAMA, cache, attention, dtype=torch.float32, most_rows=8, replay=False)
        original = padded.forward
        padded.forward = lambda step, items: padded_steps.append(original(step, items)) or padded_steps[-1]
        return padded

    monkeypatch.setattr(Engine, "_padded_decode", padded_decode)
    ours, _ = run(LLAMA, "triton")
    assert ours == expected
    assert sum(hidden is not None for hidden in padded_steps) >= 2
    assert any(hidden is None for hidden in padded_steps), "prefill is not padded"


def test_row_buckets():
    assert row_buckets(1) == [1]
    assert row_buckets(8) == [1, 2, 4, 8]
    assert row_buckets(40) == [1, 2, 4, 8, 16, 32, 40]
