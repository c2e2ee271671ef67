"""Keys and values in 8 bits: how exact they are, and that every backend reads and writes the same ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import language as tl
from triton.runtime import interpreter

from engine import attention_native, attention_triton
from engine.attention_cpu import CpuAttention
from engine.attention_native import NativeAttention
from engine.attention_reference import ReferenceAttention
from engine.attention_triton import TritonAttention
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.errors import ModelError
from engine.kv_cache import KVCache
from engine.kv_check import check_kv_dtype, mean_divergence
from engine.kv_memory import kv_page_bytes
from engine.kv_quantization import KV_DTYPES, dequantize, quantize
from engine.model_config import ModelConfig
from engine.native import row_operations
from engine.page_pool import NULL_PAGE
from engine.request import Request, SamplingParameters
from engine.rotary import rotate
from engine.step import SequenceRows
from engine.triton.row_operations import TritonRowOperations, rotate_and_write
from engine.weights import random_weights
from engine.work_list import build_work_list
from tests.engine.conftest import STOP_ID, TINY_CONFIG, random_prompts

PAGE_SIZE = 16
FORMATS = pytest.mark.parametrize("kv_dtype", KV_DTYPES.values(), ids=KV_DTYPES.keys())
# Of results of size 1 and less, against fp32 attention over what the cache gives back: the formats hold whole numbers
# exactly, so what is left is the rounding of weights and results, as without them.
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 0.03, torch.float16: 0.004}


def make_cache(dtype, kv_heads=2, head_size=32, pages=20, layers=1):
    return KVCache(
        layers=layers, kv_heads=kv_heads, head_size=head_size, pages=pages, page_size=PAGE_SIZE, dtype=dtype,
        device="cpu",
    )  # fmt: skip


@given(
    values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40),
    size=st.sampled_from([1e-35, 1e-20, 1.0, 1e20]),
)
@settings(max_examples=30, deadline=None)
def test_what_is_read_is_near_what_was_written(values, size):
    head = torch.tensor(values) * size
    largest = float(head.abs().max())
    for name, dtype in KV_DTYPES.items():
        stored, scale = quantize(head, dtype)
        error = (dequantize(stored, scale, torch.float32) - head).abs()
        if name == "int8":  # half a step
            bound = torch.full_like(head, largest / 254)
        else:  # half of the last of three bits of fraction; below the least exponent, half of its step
            bound = torch.maximum(head.abs() / 16, torch.tensor(largest / 448 / 1024))
        assert (error <= bound * 1.0001 + 1e-30).all()


@FORMATS
@pytest.mark.parametrize("damage", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_head_that_is_no_number_never_reads_as_one(kv_dtype, damage, dtype):
    rows = torch.ones(3, 2, 32, dtype=dtype)
    rows[1, 0, 5] = damage
    cache = make_cache(kv_dtype)
    slots = torch.tensor([16, 40, 41])
    cache.write(0, slots, rows, rows)
    for part in cache.read(0, slots, torch.float32):
        assert not part[0, 1].isfinite().any()
        assert part[1].isfinite().all()
        assert part[0, ::2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_size", [16, 48, 64, 20])
def test_the_native_write_has_the_bits_of_the_plain_one(dtype, head_size):
    torch.manual_seed(head_size)
    wide = torch.randn(34, 7, head_size).to(dtype) * torch.logspace(-6, 3, 34)[:, None, None].to(dtype)
    rows = wide[:, 2:5]
    rows[3] = 0
    rows[4] = 1e-38 if dtype != torch.float16 else 0
    slots = torch.randperm(200)[:34]
    cache, scales = torch.zeros(2, 3, 200, head_size, dtype=torch.int8), torch.zeros(2, 3, 200)
    row_operations.write_quantized(cache[1], scales[1], slots, rows)
    expected, expected_scales = quantize(rows, torch.int8)
    assert torch.equal(cache[1][:, slots], expected.transpose(0, 1))
    assert torch.equal(scales[1][:, slots], expected_scales.transpose(0, 1))
    assert not cache[0].any()
    assert not cache[1][:, [slot for slot in range(200) if slot not in slots]].any()


@FORMATS
def test_copies_of_slots_have_their_scales(kv_dtype):
    cache = make_cache(kv_dtype, layers=2)
    slots = torch.arange(16, 48)
    for layer in range(2):
        cache.write(layer, slots, torch.randn(32, 2, 32) * 7, torch.randn(32, 2, 32))
    cache.copy(slots, slots + 100)
    for layer in range(2):
        originals, copies = (cache.read(layer, where, torch.float32) for where in (slots, slots + 100))
        for original, copied in zip(originals, copies, strict=True):
            assert torch.equal(original, copied)
            assert original.any()
        null = torch.arange(NULL_PAGE * PAGE_SIZE, (NULL_PAGE + 1) * PAGE_SIZE)
        assert not any(part.any() for part in cache.read(layer, null, torch.float32))


def test_pages_take_the_bytes_that_are_planned():
    config = ModelConfig.from_dict(TINY_CONFIG)
    for dtype in (torch.bfloat16, torch.float32, *KV_DTYPES.values()):
        cache = make_cache(dtype, config.kv_heads, config.head_size, pages=9, layers=config.layers)
        parts = [
            cache.keys,
            cache.values,
            *(part for part in (cache.key_scales, cache.value_scales) if part is not None),
        ]
        assert sum(part.nbytes for part in parts) == 10 * kv_page_bytes(config, PAGE_SIZE, dtype.itemsize)


def random_step(kv_dtype, dtype, kv_heads, head_size):
    """Decode, extension and prefill after common pages; scales are NaN, and values any, where no row has a key."""
    random = np.random.default_rng(3)
    shared, prefixes, counts = 6, (0, 15, 16, 70), (1, 20, 1, 2)
    rows, row_start, next_page = [], 0, 1 + shared
    for prefix, count in zip(prefixes, counts, strict=True):
        own = -(-(prefix + count) // PAGE_SIZE)
        pages = np.array([*range(1, 1 + shared), *range(next_page, next_page + own)], dtype=np.int32)
        next_page += own
        rows.append(SequenceRows(row_start, count, shared * PAGE_SIZE + prefix, pages))
        row_start += count
    positions = np.concatenate([np.arange(entry.first_position, entry.key_count) for entry in rows])
    torch.manual_seed(1)
    cache = make_cache(kv_dtype, kv_heads, head_size, pages=next_page)
    cache.keys.view(torch.int8).random_(-128, 127)
    cache.values.view(torch.int8).random_(-128, 127)
    cache.key_scales.fill_(torch.nan)
    cache.value_scales.fill_(torch.nan)
    used = {int(page) * PAGE_SIZE + offset for entry in rows for place, page in enumerate(entry.page_table)
            for offset in range(PAGE_SIZE) if place * PAGE_SIZE + offset < entry.key_count}  # fmt: skip
    slots = torch.tensor(sorted(used))
    sizes = torch.from_numpy(random.lognormal(0, 0.5, len(slots)).astype(np.float32))[:, None, None]
    key, value = (torch.randn(len(slots), kv_heads, head_size) * sizes for _ in range(2))
    cache.write(0, slots, key.to(dtype), value.to(dtype))
    return build_work_list(rows, PAGE_SIZE, True), torch.from_numpy(positions), cache


def compare(make, kv_dtype, dtype, heads, kv_heads, head_size, window=None):
    items, positions, cache = random_step(kv_dtype, dtype, kv_heads, head_size)
    if make is CpuAttention:  # it reads the null page as padding, which holds zeros
        for part in (cache.keys.view(torch.int8), cache.values.view(torch.int8), cache.key_scales, cache.value_scales):
            part[:, :, :PAGE_SIZE] = 0
    query = torch.randn(len(positions), heads, head_size).to(dtype)
    results = []
    for kind in (make, ReferenceAttention):
        attention = kind(scale=head_size**-0.5, windows=[window], page_size=PAGE_SIZE)
        attention.prepare(items, positions)
        results.append(attention.run(0, query, cache))
    assert results[0].dtype == dtype
    assert (results[0].float() - results[1].float()).abs().max() < TOLERANCES[dtype] * float(results[1].abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("group", "head_size"), [(1, 16), (3, 64), (2, 80), (4, 128), (2, 256)])
def test_native_attention_agrees_with_the_reference(dtype, window, group, head_size):
    reason = attention_native.unavailable_reason(dtype, 2 * group, 2, head_size)
    if reason is not None:
        pytest.skip(reason)
    compare(NativeAttention, torch.int8, dtype, 2 * group, 2, head_size, window)


@FORMATS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_attention_agrees_with_the_reference(kv_dtype, dtype):
    compare(CpuAttention, kv_dtype, dtype, 6, 2, 32)


@FORMATS
@pytest.mark.parametrize(
    ("dtype", "group", "head_size", "window"),
    [
        (torch.float32, 1, 16, None),
        (torch.bfloat16, 7, 12, 20),
        (torch.float16, 1, 16, None),
        pytest.param(torch.float32, 7, 12, 20, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, 1, 16, None, marks=pytest.mark.slow),
        pytest.param(torch.float16, 7, 12, 20, marks=pytest.mark.slow),
    ],
)
def test_triton_attention_agrees_with_the_reference(kv_dtype, dtype, group, head_size, window, monkeypatch):
    monkeypatch.setattr(attention_triton, "LEAST_SPLIT_KEYS", 64)
    compare(TritonAttention, kv_dtype, dtype, 2 * group, 2, head_size, window)


@FORMATS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("norms", "query_heads", "kv_heads", "head_size"), [(True, 6, 2, 16), (False, 9, 3, 12)])
def test_the_triton_write_agrees_with_the_plain_one(kv_dtype, dtype, norms, query_heads, kv_heads, head_size):
    torch.manual_seed(2)
    heads = torch.randn(5, query_heads + 2 * kv_heads, head_size).to(dtype)
    heads[3, query_heads] = 0
    angles = torch.randn(5, 1, head_size // 2)
    cosine, sine = torch.cat((angles.cos(), angles.cos()), dim=-1), angles.sin()
    weights = (torch.randn(head_size).to(dtype), torch.randn(head_size).to(dtype)) if norms else None
    ours, expected = (make_cache(kv_dtype, kv_heads, head_size, pages=4) for _ in range(2))
    write_rows, slots = torch.tensor([0, 1, 2, 3, 4, 1]), torch.tensor([7, 39, 16, 12, 13, 20])
    _, key, value = heads.split((query_heads, kv_heads, kv_heads), dim=1)
    if weights is not None:
        key = torch.nn.functional.rms_norm(key.float(), (head_size,), weights[1].float(), 1e-6)
    key = rotate(key.float(), cosine, sine).to(dtype)
    expected.write(0, slots, key[write_rows], value[write_rows])
    rotate_and_write(
        heads, cosine, sine, weights, 1e-6, ours.keys[0], ours.values[0], write_rows, slots, ours.scales(0)
    )
    for mine, theirs in zip(ours.read(0, slots, torch.float32), expected.read(0, slots, torch.float32), strict=True):
        # A key that is rounded to the other side may be stored a step away.
        step = theirs.abs().amax(dim=-1, keepdim=True) / (100 if kv_dtype == torch.int8 else 14)
        assert ((mine - theirs).abs() <= step + 1e-6).all()
        if dtype != torch.bfloat16:  # to which the interpreter rounds towards zero
            assert ((mine - theirs).abs() > 1e-6).float().mean() < 0.02


@pytest.fixture(autouse=True)
def right_conversion_to_fp8(monkeypatch):
    """The interpreter converts to fp8 wrongly: what is small to zero, and not up to the next power of two."""
    original = interpreter._convert_float

    def convert(data, input_dtype, output_dtype, rounding_mode):
        if input_dtype == tl.float32 and output_dtype == tl.float8e4nv:
            numbers = torch.from_numpy(np.ascontiguousarray(data).view(np.float32))
            return numbers.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return original(data, input_dtype, output_dtype, rounding_mode)

    monkeypatch.setattr(interpreter, "_convert_float", convert)


def answers(model, config, requests, **options):
    engine = Engine(model, config, EngineSettings(kv_pages=400, **options), (STOP_ID,))
    completions = engine.run(requests)
    engine.check()
    return [completion.output_tokens for completion in completions]


def small_job(max_tokens=10):
    prompts = random_prompts(7, documents=2, questions=4, document_tokens=(40, 90))
    return [
        Request(index, prompt, SamplingParameters(temperature=float(index % 2), seed=index, max_tokens=max_tokens))
        for index, prompt in enumerate(prompts)
    ]


@FORMATS
def test_answers_do_not_depend_on_batch_chunks_or_reuse(kv_dtype, tiny_model):
    name = "int8" if kv_dtype == torch.int8 else "fp8"
    requests = small_job()
    expected = answers(*tiny_model, requests, kv_dtype=name, attention="reference", reuse=False, max_rows=1)
    for options in ({}, {"step_tokens": 7}, {"max_rows": 2, "drafts": False}, {"reuse": False}, {"page_size": 4}):
        assert answers(*tiny_model, requests, kv_dtype=name, **options) == expected, options


@FORMATS
def test_a_job_over_triton_gives_the_answers_of_the_reference(kv_dtype):
    name = "int8" if kv_dtype == torch.int8 else "fp8"
    config = ModelConfig.from_dict({**TINY_CONFIG, "num_hidden_layers": 1})
    weights = random_weights(config, torch.float32, "cpu", seed=3)
    requests = small_job(max_tokens=3)[:2]
    expected = answers(Decoder(config, weights), config, requests, kv_dtype=name, attention="reference")
    decoder = Decoder(config, random_weights(config, torch.float32, "cpu", seed=3), TritonRowOperations())
    assert answers(decoder, config, requests, kv_dtype=name, attention="triton", step_tokens=90) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deterministic_mode_gives_the_same_bits(dtype):
    config = ModelConfig.from_dict({**TINY_CONFIG, "hidden_size": 64, "head_dim": 32})
    reason = attention_native.unavailable_reason(dtype, 4, 2, 32)
    if reason is not None:
        pytest.skip(reason)
    model = Decoder(config, random_weights(config, dtype, "cpu", seed=3))
    kept = {}
    for step_tokens, max_rows in ((33, 5), (4096, 64), (4096, 1)):
        options = {"kv_dtype": "int8", "deterministic": True, "step_tokens": step_tokens, "max_rows": max_rows}
        engine = Engine(model, config, EngineSettings(kv_pages=600, **options), (), dtype=dtype)
        forward = engine._runner.forward

        def recording(step, forward=forward):
            hidden, items = forward(step)
            row = 0
            for rows in step.sampled:
                key = rows.sequence.request.request_id, len(rows.sequence.output)
                assert torch.equal(kept.setdefault(key, hidden[row].clone()), hidden[row]), key
                row += rows.row_count
            return hidden, items

        engine._runner.forward = recording
        engine.run(small_job())
    assert len(kept) > 40


def test_a_model_with_lopsided_keys_is_refused():
    """A large bias in the channel that turns slowest: the same for all keys, it means nothing, but sets the scale."""
    config = ModelConfig.from_dict({**TINY_CONFIG, "attention_bias": True, "rope_theta": 1e6})
    weights = random_weights(config, torch.float32, "cpu", seed=3)
    ids = np.random.default_rng(0).integers(2, 60, 100)
    for layer in weights.layers:  # predictions as sure as a real model's, and attention that looks somewhere
        for linear in (layer.qkv, layer.output):
            linear.weight *= 15
    weights.head.weight *= 10
    decoder = Decoder(config, weights)
    for name in KV_DTYPES:
        check_kv_dtype(decoder, ids, name, torch.float32, "cpu")
    assert mean_divergence(decoder, ids, "auto", torch.float32, "cpu") == 0
    for layer in weights.layers:
        keys = layer.qkv.bias.view(-1, config.head_size)[config.heads : config.heads + config.kv_heads]
        keys[:, config.head_size // 2 - 1] += 100
    check_kv_dtype(decoder, ids, "fp8", torch.float32, "cpu")  # it has steps for small values beside large ones
    with pytest.raises(
        ModelError, match=r"engine.kv_dtype is int8, .* differ by \S+ nats a token, and 0.02 is the most"
    ):
        check_kv_dtype(decoder, ids, "int8", torch.float32, "cpu")
