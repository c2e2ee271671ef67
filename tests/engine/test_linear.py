"""The native matrix product against torch's."""

import pytest
import torch

from engine.linear import Linear
from engine.native import packed_weight

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}  # of the largest value; one rounding to bf16 is 2^-8


def packed_linear(weight, bias=None):
    reason = packed_weight.unavailable_reason(weight)
    if reason:
        pytest.skip(reason)
    linear = Linear(weight, bias).pack()
    assert linear.is_packed
    return linear


def random(*shape, dtype):
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 95, 96, 97, 200])
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [(64, 64), (1, 2), (17, 10), (96, 160), (200, 34), (65, 2100)],  # 2100: a panel in several parts
)
def test_the_product_is_torchs(dtype, rows, outputs, inputs):
    torch.manual_seed(rows * outputs)
    weight, bias = random(outputs, inputs, dtype=dtype), random(outputs, dtype=dtype)
    values = random(rows, inputs, dtype=dtype)
    expected = values.double() @ weight.double().T + bias.double()
    with torch.inference_mode():
        for output_dtype in (dtype, torch.float32):
            result = packed_linear(weight, bias)(values, output_dtype)
            assert result.dtype == output_dtype
            assert result.shape == expected.shape
            scale = float(expected.abs().max()) if rows else 1.0
            tolerance = TOLERANCE[output_dtype] if dtype == output_dtype else 1e-5
            torch.testing.assert_close(result.double(), expected, atol=tolerance * scale, rtol=0)


def test_rows_need_not_be_dense():
    weight = random(48, 32, dtype=torch.float32)
    values = random(64, 9, dtype=torch.float32)[:32].T
    torch.testing.assert_close(packed_linear(weight)(values), values @ weight.T, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_some_outputs_have_the_bits_that_they_have_among_all(dtype):
    torch.manual_seed(1)
    weight, values = random(300, 96, dtype=dtype), random(9, 96, dtype=dtype)
    chosen = torch.tensor([299, 0, 64, 63, 130, 7])
    whole = packed_linear(weight)(values, torch.float32)
    assert torch.equal(packed_linear(weight[chosen])(values, torch.float32), whole[:, chosen])


def test_more_products_than_one_thread_takes_have_the_same_bits():
    torch.manual_seed(2)
    weight, values = random(512, 256, dtype=torch.float32), random(100, 256, dtype=torch.float32)
    linear = packed_linear(weight)
    alone = torch.cat([linear(values[row : row + 1]) for row in range(100)])
    assert torch.equal(linear(values), alone)


def test_an_odd_number_of_bf16_inputs_is_left_to_torch():
    weight, values = random(8, 7, dtype=torch.bfloat16), random(3, 7, dtype=torch.bfloat16)
    linear = Linear(weight).pack()
    assert not linear.is_packed
    assert torch.equal(linear(values), values @ weight.T)
