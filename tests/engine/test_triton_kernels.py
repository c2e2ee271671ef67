"""The small Triton kernels, in the interpreter, against torch and the CPU sampler."""

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

from engine.errors import EngineError
from engine.request import SamplingParameters
from engine.rotary import rotate
from engine.sampler import mask_words, sample
from engine.triton import row_operations
from engine.triton.sampler import sample_on_device

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def near(result, expected):
    """To two roundings of the dtype: kernels round once, torch's operators one after the other.

    The interpreter rounds bf16 towards zero, a GPU to the nearest.
    """
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    return torch.allclose(result.float(), expected.float(), rtol=4 * torch.finfo(result.dtype).eps, atol=1e-5)


@DTYPES
@pytest.mark.parametrize("size", [128, 100])
def test_add_rms_norm(dtype, size):
    torch.manual_seed(size)
    hidden, addend = torch.randn(7, size).to(dtype), torch.randn(7, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    expected_hidden = hidden + addend
    expected = functional.rms_norm(expected_hidden, (size,), weight, 1e-5)
    assert near(row_operations.add_rms_norm(hidden, addend, weight, 1e-5), expected)
    assert near(hidden, expected_hidden)
    before = hidden.clone()
    assert near(row_operations.add_rms_norm(hidden, None, weight, 1e-5), expected)
    assert torch.equal(hidden, before)
    assert row_operations.add_rms_norm(hidden[:0], None, weight, 1e-5).shape == (0, size)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of sigmoid, right at both infinities
@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh", "gelu"])
def test_gate(dtype, activation):
    torch.manual_seed(1)
    gate_up = (torch.randn(3, 2 * 1100) * 4).to(dtype)
    gate, up = gate_up.float().chunk(2, dim=-1)
    activated = {
        "silu": functional.silu(gate),
        "gelu": functional.gelu(gate),
        "gelu_pytorch_tanh": functional.gelu(gate, approximate="tanh"),
    }[activation]
    result = row_operations.gate(gate_up, activation)
    assert torch.allclose(result.float(), activated * up, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@DTYPES
@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_size"), [(6, 2, 16), (9, 3, 12)])
def test_rotate_and_write(dtype, norms, query_heads, kv_heads, head_size):
    torch.manual_seed(2)
    heads = torch.randn(5, query_heads + 2 * kv_heads, head_size).to(dtype)
    angles = torch.randn(5, 1, head_size // 2)
    cosine, sine = torch.cat((angles.cos(), angles.cos()), dim=-1), angles.sin()
    keys, values, expected_keys, expected_values = torch.zeros(4, 2, kv_heads, 40, head_size, dtype=dtype)
    write_rows = torch.tensor([0, 1, 2, 3, 4, 1])  # one row goes to two slots
    write_slots = torch.tensor([7, 39, 0, 12, 13, 20])
    weights = (torch.randn(head_size).to(dtype), torch.randn(head_size).to(dtype)) if norms else None
    query, key, value = heads.split((query_heads, kv_heads, kv_heads), dim=1)
    if weights is not None:
        query = functional.rms_norm(query.float(), (head_size,), weights[0].float(), 1e-6)
        key = functional.rms_norm(key.float(), (head_size,), weights[1].float(), 1e-6)
    query, key = rotate(query.float(), cosine, sine).to(dtype), rotate(key.float(), cosine, sine).to(dtype)
    expected_keys[1][:, write_slots] = key[write_rows].transpose(0, 1)
    expected_values[1][:, write_slots] = value[write_rows].transpose(0, 1)
    result = row_operations.rotate_and_write(
        heads, cosine, sine, weights, 1e-6, keys[1], values[1], write_rows, write_slots
    )
    assert near(result, query)
    assert near(keys, expected_keys)
    assert torch.equal(values, expected_values)


def random_masks(random, rows, vocabulary, share):
    bits = random.random((rows, mask_words(vocabulary) * 32)) < share
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


PARAMETERS = (
    SamplingParameters(),
    SamplingParameters(temperature=1.0, seed=1),
    SamplingParameters(temperature=0.3, seed=2, top_k=5),
    SamplingParameters(temperature=2.0, seed=3, top_p=0.6),
    SamplingParameters(temperature=1.3, seed=4, top_k=20, top_p=0.8),
    SamplingParameters(temperature=0.8, seed=5, top_k=100_000, top_p=0.05),
)


@pytest.mark.parametrize(("masked", "levels"), [(True, None), (True, 4), (False, None)])
def test_draws_are_those_of_the_cpu_sampler(masked, levels):
    """`levels`: only so many distinct logits, so that every cut falls among equals."""
    random = np.random.default_rng(3)
    each = 2 if levels is not None else 1
    rows, vocabulary = len(PARAMETERS) * each, 301
    logits = torch.from_numpy(random.normal(0, 2, (rows, vocabulary)).astype(np.float32))
    if levels is not None:
        logits = (logits.clamp(-2, 2) * levels / 4).round()
    masks = random_masks(random, rows, vocabulary, 0.3) if masked else None
    parameters = [parameter for parameter in PARAMETERS for _ in range(each)]
    indices = list(range(rows))
    assert sample_on_device(logits, masks, parameters, indices) == sample(logits.clone(), masks, parameters, indices)


def test_extreme_draws():
    """The first and the last token of the order, and a row of one allowed token."""
    logits = torch.tensor([[0.0, 5.0, -3.0, 5.0]]).repeat(3, 1)
    masks = np.array([[0b1111], [0b1111], [0b0100]], dtype=np.int32)
    parameters = [SamplingParameters(temperature=1.0)] * 3
    from engine.triton import sampler

    for uniform, first in ((0.0, 1), (1.0 - 1e-12, 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampler, "draw_uniform", lambda seed, index, uniform=uniform: uniform)
            assert sample_on_device(logits, masks, parameters, [0, 0, 0]) == [first, first, 2]


def test_logits_that_are_not_numbers_are_an_error():
    logits = torch.tensor([[0.0, 1.0], [0.0, float("nan")]])
    with pytest.raises(EngineError, match="not numbers"):
        sample_on_device(logits, None, [SamplingParameters()] * 2, [0, 0])
    allowed = np.array([[1], [1]], dtype=np.int32)  # what is masked may be anything
    assert sample_on_device(logits, allowed, [SamplingParameters()] * 2, [0, 0]) == [0, 0]


def test_a_row_that_allows_nothing_does_not_hang():
    nothing = np.zeros((2, 1), dtype=np.int32)
    parameters = [SamplingParameters(), SamplingParameters(temperature=1.0)]
    assert len(sample_on_device(torch.zeros(2, 20), nothing, parameters, [0, 0])) == 2
