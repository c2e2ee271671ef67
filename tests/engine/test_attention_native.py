"""The native kernels against plain attention, the reference and torch; attention is skipped where it cannot run."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from engine import native
from engine.attention_native import NativeAttention, unavailable_reason
from engine.attention_reference import ReferenceAttention
from engine.kv_cache import KVCache
from engine.native import row_operations
from engine.rotary import rotate
from engine.step import SequenceRows
from engine.work_list import WorkItem, build_work_list

PAGES = 600
# fp32 differs by the order of summation; bf16 by the rounding of weights and of the result.
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 0.03}


def native_attention(dtype, heads, kv_heads, head_size, window, page_size=16):
    reason = unavailable_reason(dtype, heads, kv_heads, head_size)
    if reason is not None:
        pytest.skip(reason)
    return NativeAttention(scale=head_size**-0.5, windows=[window], page_size=page_size)


def random_rows(seed, page_size=16):
    """Three documents with questions that decode, extend or prefill: rows and the positions of all."""
    random = np.random.default_rng(seed)
    free_pages = iter(random.permutation(np.arange(1, PAGES + 1)))
    rows, row_start = [], 0
    for _document in range(3):
        shared = [next(free_pages) for _ in range(random.integers(0, 40))]
        for _ in range(random.integers(1, 7)):
            own_start = len(shared) * page_size + int(random.integers(0, 40))
            count = int(random.choice([1, 1, 1, 3, 20, 70]))
            pages = shared + [next(free_pages) for _ in range(-(-(own_start + count) // page_size) - len(shared))]
            rows.append(SequenceRows(row_start, count, own_start, np.array(pages, dtype=np.int32)))
            row_start += count
    positions = np.concatenate([np.arange(entry.first_position, entry.key_count) for entry in rows])
    return rows, torch.from_numpy(positions)


def random_cache(seed, dtype, kv_heads, head_size, page_size=16):
    torch.manual_seed(seed)
    cache = KVCache(
        layers=1, kv_heads=kv_heads, head_size=head_size, pages=PAGES, page_size=page_size, dtype=dtype, device="cpu"
    )
    cache.keys.copy_(torch.randn(cache.keys.shape))
    cache.values.copy_(torch.randn(cache.values.shape))
    return cache


def random_query(positions, heads, head_size, dtype):
    return torch.randn(len(positions), heads, head_size).to(dtype)


def plain_attention(rows, cache, query, window):
    """fp64 attention of each sequence over its own keys, without work list, tiles or merging."""
    _, heads, head_size = query.shape
    page_size, group = cache.page_size, heads // cache.keys.shape[1]
    parts = []
    for entry in rows:
        slots = (entry.page_table[:, None].astype(np.int64) * page_size + np.arange(page_size)).reshape(-1)
        slots = torch.from_numpy(slots[: entry.key_count])
        keys = cache.keys[0][:, slots].double().repeat_interleave(group, dim=0)
        values = cache.values[0][:, slots].double().repeat_interleave(group, dim=0)
        distance = torch.arange(entry.first_position, entry.key_count)[:, None] - torch.arange(entry.key_count)
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        rows_query = query[entry.row_start : entry.row_start + entry.row_count].double().transpose(0, 1)
        scores = (rows_query @ keys.transpose(1, 2) * head_size**-0.5).masked_fill(hidden, -torch.inf)
        parts.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(parts)


def run(attention, items, positions, query, cache):
    attention.prepare(items, positions)
    return attention.run(0, query, cache)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("window", [None, 1, 7, 100, 5000])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_plain_attention(dtype, window, share, seed):
    attention = native_attention(dtype, 6, 2, 32, window)
    rows, positions = random_rows(seed)
    cache = random_cache(seed, dtype, 2, 32)
    query = random_query(positions, 6, 32, dtype)
    result = run(attention, build_work_list(rows, 16, share), positions, query, cache)
    assert result.dtype == dtype
    assert (result.double() - plain_attention(rows, cache, query, window)).abs().max() < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("group", "head_size"), [(1, 16), (2, 48), (3, 64), (8, 64), (2, 80), (3, 128), (1, 256)])
def test_agrees_with_the_reference_for_shapes_of_heads(dtype, group, head_size):
    heads, kv_heads, window = 2 * group, 2, 300
    attention = native_attention(dtype, heads, kv_heads, head_size, window)
    rows, positions = random_rows(10 + group)
    cache = random_cache(group, dtype, kv_heads, head_size)
    query = random_query(positions, heads, head_size, dtype)
    items = build_work_list(rows, 16, True)
    reference = ReferenceAttention(scale=head_size**-0.5, windows=[window], page_size=16)
    expected = run(reference, items, positions, query, cache).float()
    result = run(attention, items, positions, query, cache).float()
    assert (result - expected).abs().max() < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_long_prefill_spans_tiles_and_blocks_of_keys(dtype):
    attention = native_attention(dtype, 3, 1, 64, None)
    rows = [SequenceRows(0, 500, 1000, np.random.default_rng(0).permutation(PAGES)[:94].astype(np.int32) + 1)]
    positions = torch.arange(1000, 1500)
    cache = random_cache(0, dtype, 1, 64)
    query = random_query(positions, 3, 64, dtype)
    result = run(attention, build_work_list(rows, 16, True), positions, query, cache)
    assert (result.double() - plain_attention(rows, cache, query, None)).abs().max() < TOLERANCES[dtype]


@pytest.mark.parametrize("page_size", [1, 8, 16, 24])
def test_pages_of_any_size(page_size):
    attention = native_attention(torch.float32, 4, 2, 16, 100, page_size)
    rows = [
        SequenceRows(0, 3, 70, np.arange(1, 1 + -(-73 // page_size), dtype=np.int32)[::-1]),
        SequenceRows(3, 1, 99, np.arange(200, 200 + -(-100 // page_size), dtype=np.int32)),
    ]
    positions = torch.tensor([70, 71, 72, 99])
    cache = random_cache(0, torch.float32, 2, 16, page_size)
    query = random_query(positions, 4, 16, torch.float32)
    result = run(attention, build_work_list(rows, page_size, True), positions, query, cache)
    assert (result.double() - plain_attention(rows, cache, query, 100)).abs().max() < 2e-5


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_large_and_small_scores(dtype):
    """Scores of hundreds, growing and shrinking along the keys: the running maximum moves, and nothing overflows."""
    attention = native_attention(dtype, 1, 1, 64, None)
    rows = [SequenceRows(0, 4, 1500, np.arange(1, 95, dtype=np.int32))]
    positions = torch.arange(1500, 1504)
    cache = random_cache(0, dtype, 1, 64)
    size = torch.linspace(-1, 1, cache.keys.shape[2])[:, None]
    cache.keys.copy_((30 * size).expand(cache.keys.shape[1:]))
    query = torch.tensor([1.0, -1.0, 0.01, 0.0])[:, None, None].expand(4, 1, 64).to(dtype).contiguous()
    result = run(attention, build_work_list(rows, 16, True), positions, query, cache)
    assert (result.double() - plain_attention(rows, cache, query, None)).abs().max() < 10 * TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_slots_that_no_item_covers_do_not_matter(dtype):
    attention = native_attention(dtype, 6, 2, 64, None)
    rows, positions = random_rows(2)
    cache = random_cache(2, dtype, 2, 64)
    query = random_query(positions, 6, 64, dtype)
    items = build_work_list(rows, 16, True)
    expected = run(attention, items, positions, query, cache)
    covered = torch.zeros(cache.keys.shape[2], dtype=torch.bool)
    for entry in rows:
        slots = (entry.page_table[:, None].astype(np.int64) * 16 + np.arange(16)).reshape(-1)
        covered[slots[: entry.key_count]] = True
    cache.keys[:, :, ~covered] = torch.nan
    cache.values[:, :, ~covered] = torch.nan
    assert torch.equal(run(attention, items, positions, query, cache), expected)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_same_bits_on_any_number_of_threads(dtype):
    attention = native_attention(dtype, 6, 2, 64, 400)
    rows, positions = random_rows(4)
    cache = random_cache(4, dtype, 2, 64)
    query = random_query(positions, 6, 64, dtype)
    items = build_work_list(rows, 16, True)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            results.append(run(attention, items, positions, query, cache))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rows_without_keys_are_zero(dtype):
    attention = native_attention(dtype, 2, 1, 16, 4)
    cache = random_cache(0, dtype, 1, 16)
    positions = torch.tensor([3, 100, 50])
    query = random_query(positions, 2, 16, dtype)
    pages = np.array([7, 9], dtype=np.int32)
    # Row 0 sees the four keys of both items, row 1 none of them through its window, row 2 has no item.
    items = [WorkItem(0, 2, pages[:1], 0, 2, None), WorkItem(0, 2, pages[1:], 2, 2, None)]
    result = run(attention, items, positions, query, cache)
    reference = ReferenceAttention(scale=0.25, windows=[4], page_size=16)
    assert (result - run(reference, items, positions, query, cache)).abs().max() < TOLERANCES[dtype]
    assert not result[1:].any()
    assert not run(attention, [], positions, query, cache).any()
    assert run(attention, [], positions[:0], query[:0], cache).shape == (0, 2, 16)


def test_a_query_that_is_a_view_of_wider_rows():
    attention = native_attention(torch.float32, 4, 2, 16, None)
    rows, positions = random_rows(3)
    cache = random_cache(3, torch.float32, 2, 16)
    wide = torch.randn(len(positions), 8, 16)
    items = build_work_list(rows, 16, True)
    expected = run(attention, items, positions, wide[:, 2:6].contiguous(), cache)
    assert torch.equal(run(attention, items, positions, wide[:, 2:6], cache), expected)


def test_layers_with_different_windows_share_a_step():
    native_attention(torch.float32, 4, 2, 16, None)
    attention = NativeAttention(scale=0.25, windows=[None, 9, None], page_size=16)
    reference = ReferenceAttention(scale=0.25, windows=[None, 9, None], page_size=16)
    rows, positions = random_rows(5)
    cache = KVCache(layers=3, kv_heads=2, head_size=16, pages=PAGES, page_size=16, dtype=torch.float32, device="cpu")
    cache.keys.normal_()
    cache.values.normal_()
    query = torch.randn(len(positions), 4, 16)
    for backend in (attention, reference):
        backend.prepare(build_work_list(rows, 16, True), positions)
    for layer in range(3):
        assert torch.allclose(attention.run(layer, query, cache), reference.run(layer, query, cache), atol=2e-5)


def test_one_openmp_runtime_serves_torch_and_the_kernels():
    """In a process of its own: other libraries of the tests bring runtimes too."""
    if native.unavailable_reason(torch.float32) is not None:
        pytest.skip(native.unavailable_reason(torch.float32))
    program = (
        "import engine, torch; from engine import native; native.load_library(); torch.ones(9, 9) @ torch.ones(9, 9)\n"
        "lines = open('/proc/self/maps').read().splitlines()\n"
        "print(len({line.split(maxsplit=5)[5] for line in lines if '/libgomp' in line}))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(result.stdout) <= 1


def test_reasons_why_it_cannot_run(monkeypatch, tmp_path):
    assert "multiples of 16" in unavailable_reason(torch.float32, 1, 1, 24)
    assert "float16" in native.unavailable_reason(torch.float16)
    native._load.cache_clear()
    try:
        monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
        assert "not built" in native.unavailable_reason(torch.float32)
        native._load.cache_clear()
        (tmp_path / ("_kernels" + native.EXTENSION_SUFFIXES[0])).write_bytes(b"no library")
        assert "cannot be loaded" in native.unavailable_reason(torch.float32)
    finally:
        native._load.cache_clear()


# Row operations (engine/native/row_operations.py): native or fallback, each must agree with torch's own operators.

ROW_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
ROW_COUNTS = pytest.mark.parametrize("rows", [0, 1, 34, 1024])


def near(result, expected):
    """To two roundings of the dtype: the native code rounds once, torch's operators one after the other."""
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    return torch.allclose(result.float(), expected.float(), rtol=4 * torch.finfo(result.dtype).eps, atol=1e-5)


@ROW_DTYPES
@ROW_COUNTS
@pytest.mark.parametrize("size", [576, 100])
def test_add_rms_norm(dtype, rows, size):
    torch.manual_seed(rows)
    hidden, addend = torch.randn(rows, size).to(dtype), torch.randn(rows, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    expected_hidden = hidden + addend
    expected = torch.nn.functional.rms_norm(expected_hidden, (size,), weight, 1e-5)
    assert near(row_operations.add_rms_norm(hidden, addend, weight, 1e-5), expected)
    assert torch.equal(hidden, expected_hidden)
    assert near(row_operations.add_rms_norm(hidden, None, weight, 1e-5), expected)
    assert torch.equal(hidden, expected_hidden)


@ROW_DTYPES
@ROW_COUNTS
@pytest.mark.parametrize("head_size", [64, 80])
def test_rotate(dtype, rows, head_size):
    torch.manual_seed(rows)
    wide = torch.randn(rows, 7, head_size).to(dtype)
    angles = torch.randn(rows, 1, head_size // 2)
    cosine, sine = torch.cat((angles.cos(), angles.cos()), dim=-1), angles.sin()
    for heads in (wide, wide[:, 1:5]):
        assert near(row_operations.rotate(heads, cosine, sine), rotate(heads, cosine, sine))


@ROW_DTYPES
@ROW_COUNTS
@pytest.mark.parametrize("size", [1536, 50])
def test_silu_multiply(dtype, rows, size):
    torch.manual_seed(rows)
    gate_up = (torch.randn(rows, 2 * size) * 40).to(dtype)
    gate, up = gate_up.float().chunk(2, dim=-1)
    expected = (torch.nn.functional.silu(gate) * up).to(dtype)
    assert near(row_operations.silu_multiply(gate_up), expected)


@ROW_DTYPES
def test_write_slots(dtype):
    cache = torch.zeros(2, 3, 200, 16, dtype=dtype)
    expected = cache.clone()
    rows = torch.randn(34, 7, 16).to(dtype)[:, 2:5]
    slots = torch.randperm(200)[:34]
    row_operations.write_slots(cache[1], slots, rows)
    expected[1][:, slots] = rows.transpose(0, 1)
    assert torch.equal(cache, expected)
