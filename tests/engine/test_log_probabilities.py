"""How likely each token was under the grammar: in every kernel, and the same whatever ran beside a row."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import token_draw
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.log_probabilities import plain_token_log_probabilities, token_log_probabilities
from engine.model_config import ModelConfig
from engine.native import log_probabilities as native
from engine.request import FinishReason, Request, SamplingParameters
from engine.sampler import mask_words
from engine.triton.log_probabilities import log_probabilities_on_device
from engine.weights import random_weights
from tests.engine.conftest import STOP_ID, TINY_CONFIG, VOCABULARY_SIZE, random_prompts
from tests.engine.test_drafts import ScriptGrammar, ScriptState
from tests.engine.tiny_models import PlainAttention

EVERYTHING = frozenset(range(VOCABULARY_SIZE)) - {STOP_ID}


class SayingGrammar(ScriptGrammar):
    """It also says at each place which of the allowed tokens come to the same text: `groups[place]`, lists of them."""

    def __init__(self, allowed, groups=None, **options):
        super().__init__(allowed, **options)
        self.groups = groups or {}

    def start(self):
        return SayingState(self)


class SayingState(ScriptState):
    def same_text(self):
        groups = self.grammar.groups.get(len(self.text), ())
        return {token: group for group in groups for token in group}


def implementations(logits):
    yield plain_token_log_probabilities
    yield log_probabilities_on_device
    if native.is_available(logits):
        yield native.token_log_probabilities


def packed(allowed):
    """bool [rows, words * 32] as masks."""
    return np.packbits(allowed, axis=1, bitorder="little").view(np.int32)


def draw_rows(random, rows, size, share):
    """Logits of which some are -inf, masks, and a finite allowed token of each row."""
    logits = random.normal(0, 6, (rows, size)).astype(np.float32)
    logits[random.random((rows, size)) < 0.1] = -np.inf
    tokens = random.integers(0, size, rows)
    logits[np.arange(rows), tokens] = random.normal(0, 6, rows)
    allowed = random.random((rows, mask_words(size) * 32)) < share
    allowed[np.arange(rows), tokens] = True
    return logits, allowed, tokens


@given(
    rows=st.integers(1, 4),
    size=st.one_of(st.integers(1, 200), st.integers(1000, 2600)),
    share=st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=15, deadline=None)
def test_it_is_the_log_softmax_over_the_allowed_tokens(rows, size, share, seed):
    logits, allowed, tokens = draw_rows(np.random.default_rng(seed), rows, size, share)
    hidden = torch.from_numpy(logits).double().masked_fill(torch.from_numpy(~allowed[:, :size]), -torch.inf)
    expected = torch.log_softmax(hidden, dim=-1).numpy()[np.arange(rows), tokens]
    everything = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).numpy()[np.arange(rows), tokens]
    for function in implementations(torch.from_numpy(logits)):
        result = function(torch.from_numpy(logits), packed(allowed), tokens)
        assert result.dtype == np.float64
        assert np.allclose(result, expected, rtol=1e-6, atol=3e-6), function
        assert (result <= 1e-6).all()
        assert np.allclose(function(torch.from_numpy(logits), None, tokens), everything, rtol=1e-6, atol=3e-6), function


@given(size=st.integers(1, 3000), share=st.sampled_from([0.01, 0.5, 0.98]), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_forbidden_tokens_change_no_bit(size, share, seed):
    """Among a choice of tokens, in another row and beside other rows, the result is what it is among all."""
    random = np.random.default_rng(seed)
    logits, allowed, tokens = draw_rows(random, 3, size, share)
    choices = np.flatnonzero(allowed[:, :size].any(axis=0) | (random.random(size) < 0.2))
    narrow = np.zeros((3, mask_words(len(choices)) * 32), dtype=bool)
    narrow[:, : len(choices)] = allowed[:, choices]
    places = np.searchsorted(choices, tokens)
    for function in implementations(torch.from_numpy(logits)):
        if function is log_probabilities_on_device:  # a GPU always has all logits
            continue
        whole = function(torch.from_numpy(logits), packed(allowed), tokens)
        part = function(torch.from_numpy(np.ascontiguousarray(logits[:, choices])), packed(narrow), places)
        assert part.tobytes() == whole.tobytes()
        alone = function(torch.from_numpy(logits[2:].copy()), packed(allowed[2:]), tokens[2:])
        assert alone.tobytes() == whole[2:].tobytes()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter: inf - inf, log(0)
def test_where_the_logits_do_not_say_it_is_unknown():
    infinite = math.inf
    logits = torch.tensor([[-infinite, -infinite, 0.0], [0.0, infinite, 0.0], [0.0, 1.0, -infinite], [3.0, 0.0, 0.0]])
    masks = np.array([[0b011], [0b111], [0b111], [0b001]], dtype=np.int32)
    for function in implementations(logits):
        result = function(logits, masks, np.array([0, 1, 1, 0]))
        assert np.isnan(result[:2]).all(), function
        assert result[2] == pytest.approx(-math.log1p(math.exp(-1)), abs=1e-6)
        assert result[3] == pytest.approx(0, abs=1e-6)


def make(prompts, grammar, **sampling):
    return [
        Request(
            index, prompt, SamplingParameters(seed=index, **{"max_tokens": 30, **sampling}), grammar,
            log_probabilities=True,
        )
        for index, prompt in enumerate(prompts)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def tied_model():
    """A model of which single rows of the head can be computed."""
    config = ModelConfig.from_dict({**TINY_CONFIG, "hidden_size": 64, "head_dim": 32, "tie_word_embeddings": True})
    return Decoder(config, random_weights(config, torch.float32, "cpu", seed=4)), config


@pytest.fixture(scope="module")
def grammar():
    """Free places, few choices, certain ones, and an end that is the model's to choose."""
    allowed = [{5, 9, 40}, EVERYTHING, {3, 63}, {7}, {8}, EVERYTHING, {7, 8}, {2, 33}] * 2 + [EVERYTHING] * 8
    groups = {0: [[5, 40]], 1: [[3, 4, 5, 43, 19, 60], [7, 9]], 2: [[3, 63]], 14: [[7, 8]], 17: [list(range(2, 40))]}
    return SayingGrammar(allowed, groups, shortest=16)


@pytest.fixture(scope="module")
def prompts():
    loops = np.array([3, 43] * 6 + [1, 19, 30] * 4, dtype=np.int32)
    return [np.concatenate([loops, prompt]) for prompt in random_prompts(seed=11, documents=2, questions=3)]


def expected_of(model, config, completion, prompt, grammar):
    """Log-probabilities from one plain pass over prompt and answer."""
    tokens = torch.from_numpy(np.concatenate([prompt, completion.output_tokens]).astype(np.int64))
    hidden = model.forward(tokens, torch.arange(len(tokens)), PlainAttention(config))
    logits = model.logits(hidden[len(prompt) - 1 :]).double()
    state = grammar.start()
    expected = []
    stopped = len(completion.log_probabilities) > len(completion.output_tokens)
    for place, token in enumerate([*completion.output_tokens, *[STOP_ID] * stopped]):
        allowed = sorted({*state.choices(), *([STOP_ID] if state.may_stop else [])})
        same = state.same_text().get(token, [token])
        likely = torch.log_softmax(logits[place, allowed], 0)
        expected.append(float(torch.logsumexp(likely[[allowed.index(one) for one in same]], 0)))
        if token != STOP_ID:
            state.advance(token)
    return expected


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_engine_gives_the_probability_of_every_token(tied_model, prompts, grammar, temperature, monkeypatch):
    model, config = tied_model
    monkeypatch.setattr(token_draw, "FEW_CHOICES", 4)
    engine = Engine(model, config, EngineSettings(400, attention="reference"), (STOP_ID,))
    completions = engine.run(make(prompts, grammar, temperature=temperature))
    for completion, prompt in zip(completions, prompts, strict=True):
        assert completion.finish_reason is FinishReason.STOP
        with torch.inference_mode():
            expected = expected_of(model, config, completion, prompt, grammar)
        assert np.allclose(completion.log_probabilities, expected, atol=2e-4)
        assert completion.log_probabilities[2:5] == [0.0, 0.0, 0.0]
        assert min(completion.log_probabilities) < -1
    if temperature:
        assert any(len(c.log_probabilities) == len(c.output_tokens) + 1 for c in completions), "a stop id was drawn"


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_it_depends_on_the_row_alone(tied_model, prompts, grammar, temperature, monkeypatch):
    """With and without drafts, partial logits, neighbours and preemption: the same bits, in deterministic mode."""
    model, config = tied_model
    requests = make(prompts, grammar, temperature=temperature)
    found = {}
    for variant, few in (
        ({}, 4),
        ({"drafts": False}, 4),
        ({}, -1),
        ({"max_rows": 1, "step_tokens": 7}, 4),
        ({"kv_pages": 14, "reserved_output": 0.2}, 4),
    ):
        monkeypatch.setattr(token_draw, "FEW_CHOICES", few)
        engine = Engine(
            model, config, EngineSettings(**{"kv_pages": 400, "deterministic": True, **variant}), (STOP_ID,)
        )
        for completion in engine.run(requests):
            result = (completion.output_tokens, completion.log_probabilities)
            assert found.setdefault(completion.request_id, result) == result, variant
    assert len(found) == len(prompts)


def test_only_those_who_ask_get_it(make_engine, prompts, grammar):
    asking, silent = make(prompts[:2], grammar)
    silent = Request(silent.request_id, silent.prompt, silent.sampling, silent.grammar)
    first, second = make_engine().run([asking, silent])
    assert len(first.log_probabilities) >= len(first.output_tokens)
    assert second.log_probabilities is None


def test_the_dispatcher_takes_what_runs_here():
    logits = torch.randn(2, 100)
    tokens = np.array([3, 99])
    expected = plain_token_log_probabilities(logits, None, tokens)
    assert np.allclose(token_log_probabilities(logits, None, tokens), expected, atol=1e-6)
    strided = torch.randn(2, 200)[:, ::2]  # the native kernel wants dense rows
    expected = torch.log_softmax(strided, dim=-1)[torch.arange(2), tokens]
    assert np.allclose(token_log_probabilities(strided, None, tokens), expected, atol=1e-5)
