import numpy as np
import pytest
import torch

from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.model_config import ModelConfig
from engine.weights import random_weights

VOCABULARY_SIZE = 64
STOP_ID = 1

TINY_CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def _same_draws():
    """Without it, what torch draws in a test would depend on the tests before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_model():
    """A random two-layer Llama in fp32: (decoder, config)."""
    config = ModelConfig.from_dict(TINY_CONFIG)
    weights = random_weights(config, torch.float32, "cpu", seed=3)
    return Decoder(config, weights), config


@pytest.fixture(scope="session")
def make_engine(tiny_model):
    """make_engine(kv_pages=..., other engine settings) -> Engine over the tiny model."""
    model, config = tiny_model

    def make(kv_pages=400, stop_token_ids=(STOP_ID,), **settings):
        return Engine(model, config, EngineSettings(kv_pages=kv_pages, **settings), stop_token_ids)

    return make


def tokens(*ids):
    return np.array(ids, dtype=np.int32)


def random_prompts(seed, documents=4, questions=5, document_tokens=(20, 90), question_tokens=(1, 12)):
    """Shuffled prompts of a common opening, a document and a question each."""
    random = np.random.default_rng(seed)

    def draw(low, high):
        return random.integers(2, VOCABULARY_SIZE, size=random.integers(low, high), dtype=np.int32)

    opening = draw(5, 40)
    prompts = []
    for _ in range(documents):
        document = draw(*document_tokens)
        prompts += [np.concatenate([opening, document, draw(*question_tokens)]) for _ in range(questions)]
    random.shuffle(prompts)
    return prompts
