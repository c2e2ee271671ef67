"""Deterministic mode: in bf16 too, an answer does not depend on what else runs, how it is cut, or what is cached."""

import itertools

import numpy as np
import pytest
import torch

from engine import attention_native
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.errors import ModelError
from engine.linear import Linear, matrix_product_rows
from engine.model_config import ModelConfig
from engine.request import Request, SamplingParameters
from engine.weights import load_weights, random_weights
from tests.engine.conftest import TINY_CONFIG, random_prompts

SHAPE = {**TINY_CONFIG, "hidden_size": 64, "head_dim": 32}


def needs_native(dtype, heads=4, kv_heads=2, head_size=32):
    reason = attention_native.unavailable_reason(dtype, heads, kv_heads, head_size)
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("rows", [1, 2, 7, 63, 64, 65, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("packed", [True, False])
def test_a_products_row_depends_on_that_row_alone(rows, dtype, packed):
    torch.manual_seed(0)
    linear = Linear(torch.randn(96, 160).to(dtype))
    if packed and not linear.pack().is_packed:
        pytest.skip("the native product can't run here")
    inputs = torch.randn(300, 160).to(dtype)
    with torch.inference_mode(), matrix_product_rows(None if packed else 64):
        whole = linear(inputs)
        assert torch.equal(linear(inputs[:rows]), whole[:rows])
        assert torch.equal(linear(inputs[-rows:]), whole[-rows:])


# Tokens of a step, rows of a step, and the order of the rows, forward or backward.
RUNS = list(itertools.product((33, 4096), (1, 5, 64), (1, -1)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(
    "runs", [RUNS[::4] + RUNS[3::4], pytest.param(RUNS, marks=pytest.mark.slow)], ids=["half", "all"]
)
def test_hidden_states_are_the_same_bits_however_rows_are_run(dtype, window, runs):
    needs_native(dtype)
    shape = SHAPE | ({"model_type": "mistral", "sliding_window": window} if window else {})
    config = ModelConfig.from_dict(shape)
    model = Decoder(config, random_weights(config, dtype, "cpu", seed=3))
    prompts = random_prompts(seed=2, documents=3, questions=4, document_tokens=(200, 420))
    requests = [Request(i, p, SamplingParameters(max_tokens=12, seed=i)) for i, p in enumerate(prompts)]
    kept = {}
    for run, (step_tokens, max_rows, direction) in enumerate(runs):
        settings = EngineSettings(
            kv_pages=600, step_tokens=step_tokens, max_rows=max_rows, deterministic=True, drafts=run % 2 == 0
        )
        engine = Engine(model, config, settings, (), dtype=dtype)
        hidden = record_hidden(engine)
        for _ in range(2):  # cold, then warm
            completions = engine.run(requests[::direction], sort=False)
        for (request_id, index), state in hidden.items():
            expected = kept.setdefault((request_id, index), state)
            assert torch.equal(state, expected), (run, request_id, index)
        outputs = {c.request_id: c.output_tokens for c in completions}
        assert outputs == kept.setdefault("outputs", outputs)
        assert sum(c.cached_tokens for c in completions) > 0


def record_hidden(engine):
    """Hidden states by request and output index, filled while the engine runs; a second run must give equal ones."""
    hidden = {}
    launch = engine._token_draw.launch

    def recording(sequences, states):
        row = 0
        for sequence in sequences:
            key = (sequence.request.request_id, len(sequence.output))
            if key in hidden:
                assert torch.equal(hidden[key], states[row]), ("warm", key)
            hidden[key] = states[row].clone()
            row += 1 + len(sequence.draft)
        return launch(sequences, states)

    engine._token_draw.launch = recording
    return hidden


def test_it_is_refused_where_it_cannot_be_had(make_engine):
    with pytest.raises(ModelError, match=r"engine\.deterministic"):
        make_engine(deterministic=True, attention="torch")


@pytest.mark.slow
def test_the_real_model_in_bfloat16_answers_the_same_in_every_order_and_batch(shared_data, embedded_folder):
    """3 shuffles x batch 1, 8, 64 x cold and warm on 4 agreements x 17 questions: no differing answer."""
    needs_native(torch.bfloat16, 9, 3, 64)
    import tempfile
    from pathlib import Path

    from benchmarks.workloads import write_job
    from jobs.job_file import load_job
    from jobs.run import prepare

    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(load_job(write_job("contracts", 4, Path(folder), [])))
    config = ModelConfig.from_folder(embedded_folder)
    model = Decoder(config, load_weights(embedded_folder, config, torch.bfloat16, "cpu"))
    requests = [
        Request(i, row.prompt, SamplingParameters(max_tokens=120), row.schema.grammar)
        for i, row in enumerate(prepared.plan.rows)
    ]
    assert len(requests) == 68
    first = None
    for seed, max_rows in itertools.product(range(3), (1, 8, 64)):
        engine = Engine(
            model, config, EngineSettings(2400, max_rows=max_rows, deterministic=True), (2,), dtype=torch.bfloat16
        )
        shuffled = [requests[i] for i in np.random.default_rng(seed).permutation(len(requests))]
        for _ in range(2):
            completions = engine.run(shuffled, sort=seed > 0)
            answers = {c.request_id: c.output_tokens for c in completions}
            first = first or answers
            differing = [i for i in answers if answers[i] != first[i]]
            assert not differing, (seed, max_rows, differing)
        assert sum(c.cached_tokens for c in completions) > 100_000
