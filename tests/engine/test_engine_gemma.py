"""Gemma 3's local and global layers over every CPU backend: the answers of the reference."""

import pytest
import torch

from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.model_config import ModelConfig
from engine.request import Request, SamplingParameters
from engine.weights import random_weights
from tests.engine.conftest import STOP_ID, TINY_CONFIG, random_prompts

CONFIG = ModelConfig.from_dict(
    {
        **TINY_CONFIG,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "num_hidden_layers": 3,
        "sliding_window": 40,
        "sliding_window_pattern": 3,
        "tie_word_embeddings": True,
    }
)


def answers(attention, **settings):
    decoder = Decoder(CONFIG, random_weights(CONFIG, torch.float32, "cpu", seed=3))
    engine = Engine(decoder, CONFIG, EngineSettings(kv_pages=400, attention=attention, **settings), (STOP_ID,))
    requests = [
        Request(index, prompt, SamplingParameters(temperature=float(index % 2), seed=index, max_tokens=12))
        for index, prompt in enumerate(random_prompts(5, documents=3, document_tokens=(60, 200)))
    ]
    completions = engine.run(requests)
    engine.check()
    return [completion.output_tokens for completion in completions]


@pytest.mark.parametrize("attention", ["auto", "torch"])
def test_windows_in_some_layers(attention):
    expected = answers("reference", reuse=False, share_prefixes=False, max_rows=1)
    assert answers(attention) == expected
    assert answers(attention, step_tokens=23) == expected
    assert len({tuple(answer) for answer in expected}) > 5
