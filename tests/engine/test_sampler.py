import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.native import masked_argmax
from engine.request import SamplingParameters
from engine.sampler import mask_words, sample
from engine.uniform_draw import draw_uniform


def frequencies(logits, draws=4000, **settings):
    """Share of each token over many seeds."""
    counts = np.zeros(len(logits))
    for seed in range(draws):
        parameter = SamplingParameters(seed=seed, **settings)
        counts[sample(torch.tensor([logits]), None, [parameter], [0])[0]] += 1
    return counts / draws


def test_greedy_takes_the_first_of_the_most_likely():
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]])
    assert sample(logits, None, [SamplingParameters()] * 2, [0, 0]) == [1, 0]


def test_the_mask_allows_set_bits_only():
    logits = torch.zeros(2, 70)
    logits[:, 69] = 9.0
    masks = np.zeros((2, mask_words(70)), dtype=np.int32)
    masks[0].view(np.uint8)[40 // 8] |= 1 << 40 % 8
    masks[1].view(np.uint8)[69 // 8] |= 1 << 69 % 8
    assert sample(logits, masks, [SamplingParameters()] * 2, [0, 0]) == [40, 69]


def test_temperature_follows_the_distribution():
    logits = [0.0, 1.0, 2.0]
    expected = torch.softmax(torch.tensor(logits) / 0.7, 0).numpy()
    assert np.abs(frequencies(logits, temperature=0.7) - expected).max() < 0.03


def test_top_k_and_top_p_cut_the_tail():
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert (frequencies(logits, 500, temperature=1.0, top_k=2)[2:] == 0).all()
    kept = frequencies(logits, 3000, temperature=1.0, top_p=0.6)
    assert (kept[2:] == 0).all()
    assert abs(kept[0] - 0.5 / 0.8) < 0.04
    assert frequencies(logits, 300, temperature=1.0, top_p=0.5)[0] == 1.0


def test_a_masked_token_is_never_drawn():
    masks = np.array([[0b101]], dtype=np.int32)
    for seed in range(300):
        parameter = SamplingParameters(temperature=5.0, seed=seed)
        assert sample(torch.tensor([[0.0, 9.0, 0.0]]), masks, [parameter], [0]) != [1]


def test_draws_depend_on_seed_and_index_only():
    assert draw_uniform(1, 2) == draw_uniform(1, 2)
    values = [draw_uniform(seed, index) for seed in range(40) for index in range(40)]
    assert len(set(values)) == 1600
    assert all(0 <= value < 1 for value in values)
    assert abs(np.mean(values) - 0.5) < 0.03


def test_logits_that_are_not_numbers_are_an_error():
    with pytest.raises(EngineError, match="not numbers"):
        sample(torch.tensor([[0.0, float("nan")]]), None, [SamplingParameters()], [0])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_native_argmax_is_torchs(data):
    rows, size = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 200))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = torch.from_numpy(random.integers(-3, 3, (rows, size)).astype(np.float32))  # many are equal
    logits[random.random((rows, size)) < 0.1] = -torch.inf
    if not masked_argmax.is_available(logits):
        pytest.skip("the native kernels can't run here")
    masks = None
    hidden = logits.clone()
    if data.draw(st.booleans()):
        allowed = random.random((rows, mask_words(size) * 32)) < data.draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
        masks = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
        hidden[torch.from_numpy(~allowed[:, :size])] = -torch.inf
    expected = [int(np.argmax(row)) for row in hidden.numpy()]
    assert masked_argmax.masked_argmax(logits, masks) == expected


def test_a_forbidden_logit_that_is_no_number_does_no_harm():
    masks = np.array([[0b001]], dtype=np.int32)
    assert sample(torch.tensor([[0.0, float("nan"), 1.0]]), masks, [SamplingParameters()], [0]) == [0]
