"""NEEDS.md case 38: rows of several schemas, and of none, in one batch answer as they do alone."""

import json

import pytest
import torch

from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.model_config import ModelConfig
from engine.request import FinishReason, Request, SamplingParameters
from engine.weights import random_weights
from grammars import TokenVocabulary, compile_schema
from tests.engine.conftest import TINY_CONFIG, random_prompts
from tests.grammars.helpers import is_valid

CHARACTERS = '{}[]",:\\-+.eE0123456789truefalsn wqoiabc'
STOP_ID = 63
SCHEMAS = [
    {"type": "object", "properties": {"answer": {"type": "string"}, "n": {"type": "integer"}}, "required": ["answer"]},
    {"type": "array", "items": {"enum": ["true", "false", 1, None]}, "minItems": 1},
    {"type": "object", "properties": {"quote": {"type": "string", "maxLength": 9}, "sure": {"type": "boolean"}},
     "required": ["quote", "sure"], "additionalProperties": False},
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    config = ModelConfig.from_dict(TINY_CONFIG)
    return Decoder(config, random_weights(config, torch.float32, "cpu", seed=8)), config


@pytest.fixture(scope="module")
def vocabulary():
    tokens = {index + 2: character.encode() for index, character in enumerate(dict.fromkeys(CHARACTERS))}
    return TokenVocabulary(tokens | {60: b'{"', 61: b'":', 62: b'"}'}, 64)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_64_rows_of_three_schemas_and_none(model, vocabulary, temperature):
    # The tiny vocabulary spells ASCII only, so llguidance is no choice here.
    grammars = [compile_schema(schema, vocabulary, backend="index") for schema in SCHEMAS]
    prompts = random_prompts(seed=3, documents=8, questions=8)
    requests = [
        Request(
            index, prompt, SamplingParameters(temperature=temperature, seed=index, max_tokens=48),
            grammars[index % 4] if index % 4 < 3 else None,
        )
        for index, prompt in enumerate(prompts)
    ]  # fmt: skip
    decoder, config = model
    batch = Engine(decoder, config, EngineSettings(kv_pages=800), (STOP_ID,))
    together = batch.run(requests)
    batch.check()
    for request, completion in list(zip(requests, together, strict=True))[int(temperature) :: 2]:
        alone = Engine(decoder, config, EngineSettings(kv_pages=100), (STOP_ID,)).run([request])[0]
        assert alone.output_tokens == completion.output_tokens
        assert alone.finish_reason == completion.finish_reason
        if request.grammar is not None:
            assert completion.finish_reason is FinishReason.STOP
            text = b"".join(vocabulary.tokens[token] for token in completion.output_tokens).decode()
            assert is_valid(request.grammar.schema, text), text
            json.loads(text)
