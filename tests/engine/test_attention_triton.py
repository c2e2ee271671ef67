"""The Triton attention kernels, in Triton's interpreter, against the reference and plain attention."""

import numpy as np
import pytest
import torch

from engine import attention_triton
from engine.attention_reference import ReferenceAttention
from engine.attention_triton import FixedPlans, TritonAttention, unavailable_reason
from engine.kv_cache import KVCache
from engine.page_pool import NULL_PAGE
from engine.step import SequenceRows
from engine.work_list import WorkItem, build_work_list

PAGE_SIZE = 16
PREFIXES = (0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 5 * PAGE_SIZE, 300)
# Of results of size 1 and less: fp32 differs by the order of summation, the others by rounding weights and result.
TOLERANCES = {torch.float32: 5e-6, torch.float16: 0.003, torch.bfloat16: 0.02}


@pytest.fixture(autouse=True)
def small_splits(monkeypatch):
    """Ranges of keys are split as if a few blocks were long, so that small steps have partial outputs."""
    monkeypatch.setattr(attention_triton, "LEAST_SPLIT_KEYS", 64)


def sequences(prefixes, counts, shared_pages=0):
    """One sequence a prefix length, with `shared_pages` leading pages in common: rows, positions, number of pages."""
    random = np.random.default_rng(len(prefixes))
    own = sum(-(-(prefix + count) // PAGE_SIZE) for prefix, count in zip(prefixes, counts, strict=True))
    needed = own + shared_pages
    pages = random.permutation(needed + 3).astype(np.int32)
    pages = iter(pages[pages != NULL_PAGE])
    shared = [next(pages) for _ in range(shared_pages)]
    rows, row_start = [], 0
    for prefix, count in zip(prefixes, counts, strict=True):
        first = shared_pages * PAGE_SIZE + prefix
        own = [next(pages) for _ in range(-(-(first + count) // PAGE_SIZE) - shared_pages)]
        rows.append(SequenceRows(row_start, count, first, np.array([*shared, *own], dtype=np.int32)))
        row_start += count
    positions = np.concatenate([np.arange(entry.first_position, entry.key_count) for entry in rows])
    return rows, torch.from_numpy(positions), needed + 3


def random_cache(pages, rows, dtype, kv_heads, head_size):
    """Random keys and values where `rows` have any; NaN in every other slot, those of the null page among them."""
    torch.manual_seed(pages)
    cache = KVCache(
        layers=1, kv_heads=kv_heads, head_size=head_size, pages=pages, page_size=PAGE_SIZE, dtype=dtype, device="cpu"
    )
    used = torch.zeros(cache.keys.shape[2], dtype=torch.bool)
    for entry in rows:
        slots = (entry.page_table[:, None].astype(np.int64) * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)
        used[slots[: entry.key_count]] = True
    for part in (cache.keys, cache.values):
        part.copy_(torch.randn(part.shape))
        part[:, :, ~used] = torch.nan
    return cache


def compare(rows, positions, cache, heads, dtype, window=None, soft_cap=None, share=True, tolerance=None):
    """Run one step through Triton and the reference; returns the plan that Triton ran."""
    head_size = cache.keys.shape[3]
    query = torch.randn(len(positions), heads, head_size).to(dtype)
    items = build_work_list(rows, PAGE_SIZE, share)
    options = {"scale": head_size**-0.5, "windows": [window], "page_size": PAGE_SIZE, "soft_cap": soft_cap}
    results = []
    for backend in (TritonAttention(**options), ReferenceAttention(**options)):
        backend.prepare(items, positions)
        results.append(backend.run(0, query, cache))
        if isinstance(backend, TritonAttention):
            plan = backend._prepared[window].plan
    assert results[0].dtype == dtype
    assert results[0].isfinite().all()
    assert (results[0].float() - results[1].float()).abs().max() < (tolerance or TOLERANCES[dtype])
    return plan


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("group", [1, 2, 7, 64])
def test_prefix_lengths_and_groups(dtype, group):
    rows, positions, pages = sequences(PREFIXES, (1, 1, 2, 1, 1, 3, 1))
    cache = random_cache(pages, rows, dtype, 1, 16)
    plan = compare(rows, positions, cache, group, dtype)
    assert len(plan.merge_parts) > 0
    assert len(plan.units[0]) > 0 or group == 64
    assert len(plan.units[1]) > 0 or group < 7


@pytest.mark.parametrize("head_size", [12, 64, 96, 128, 256])
def test_head_sizes(head_size):
    rows, positions, pages = sequences((3, 70, 200), (1, 40, 2))
    cache = random_cache(pages, rows, torch.bfloat16, 2, head_size)
    compare(rows, positions, cache, 4, torch.bfloat16)


@pytest.mark.parametrize("share", [True, False])
def test_shared_pages_are_read_once_or_by_each(share):
    rows, positions, pages = sequences((3, 20, 0, 1), (1, 1, 5, 1), shared_pages=20)
    cache = random_cache(pages, rows, torch.float32, 2, 16)
    plan = compare(rows, positions, cache, 4, torch.float32, share=share)
    assert sum(len(units) for units in plan.units) >= 4


@pytest.mark.parametrize("window", [1, 7, 100, 5000])
def test_windows(window):
    rows, positions, pages = sequences((0, 17, 150), (30, 1, 4), shared_pages=12)
    cache = random_cache(pages, rows, torch.float32, 1, 16)
    compare(rows, positions, cache, 3, torch.float32, window=window)


def test_soft_caps():
    rows, positions, pages = sequences((0, 200), (5, 3))
    cache = random_cache(pages, rows, torch.float32, 1, 16)
    cache.keys *= 30  # scores well beyond the cap
    compare(rows, positions, cache, 2, torch.float32, soft_cap=20.0)


def test_padded_rows_and_plans_change_nothing():
    """The same step over memory of fixed size: padding is skipped, and rows that are none have output zero."""
    rows, positions, pages = sequences((3, 20, 0, 1), (1, 1, 2, 1), shared_pages=20)
    cache = random_cache(pages, rows, torch.float32, 2, 16)
    items = build_work_list(rows, PAGE_SIZE, True)
    query = torch.randn(8, 4, 16)
    query[5:] = torch.nan
    attention = TritonAttention(scale=0.25, windows=[None, 100], page_size=PAGE_SIZE)
    cache.keys, cache.values = cache.keys.expand(2, -1, -1, -1), cache.values.expand(2, -1, -1, -1)
    fixed = FixedPlans(8, 100, [None, 100], 4, 2, 16, query)
    for _ in range(2):  # the second step finds what the first left behind
        assert attention.prepare_fixed(items, positions, fixed)
        padded = [attention.run(layer, query, cache) for layer in range(2)]
        attention.prepare(items, positions)
        for layer in range(2):
            assert torch.equal(padded[layer][:5], attention.run(layer, query[:5], cache))
            assert not padded[layer][5:].any()
        fixed.scratch[0].fill_(torch.nan)
    assert not attention.prepare_fixed(items, positions, FixedPlans(8, 5, [None], 4, 2, 16, query))


def test_large_and_small_scores():
    """Scores of hundreds along the keys: the running maximum moves, and nothing overflows."""
    rows, positions, pages = sequences((400,), (3,))
    cache = random_cache(pages, rows, torch.float32, 1, 16)
    cache.keys *= torch.linspace(-100, 100, cache.keys.shape[2])[:, None]
    compare(rows, positions, cache, 1, torch.float32, tolerance=1e-4)  # scores of 200 have that much less precision


def test_rows_without_keys_are_zero():
    attention = TritonAttention(scale=0.25, windows=[4], page_size=PAGE_SIZE)
    reference = ReferenceAttention(scale=0.25, windows=[4], page_size=PAGE_SIZE)
    cache = KVCache(
        layers=1, kv_heads=1, head_size=16, pages=10, page_size=PAGE_SIZE, dtype=torch.float32, device="cpu"
    )
    cache.keys.normal_()
    cache.values.normal_()
    positions = torch.tensor([3, 100, 50])
    query = torch.randn(3, 2, 16)
    pages = np.array([7, 9], dtype=np.int32)
    # Row 0 sees the four keys of both items, row 1 none of them through its window, row 2 has no item.
    items = [WorkItem(0, 2, pages[:1], 0, 2, None), WorkItem(0, 2, pages[1:], 2, 2, None)]
    for backend in (attention, reference):
        backend.prepare(items, positions)
    result = attention.run(0, query, cache)
    assert torch.allclose(result, reference.run(0, query, cache), atol=5e-6)
    assert result[0].any()
    assert not result[1:].any()
    attention.prepare([], positions)
    assert not attention.run(0, query, cache).any()


def test_a_query_that_is_a_view_of_wider_rows():
    rows, positions, pages = sequences((20, 3), (1, 2))
    cache = random_cache(pages, rows, torch.float32, 2, 16)
    wide = torch.randn(len(positions), 8, 16)
    attention = TritonAttention(scale=0.25, windows=[None], page_size=PAGE_SIZE)
    attention.prepare(build_work_list(rows, PAGE_SIZE, True), positions)
    assert torch.equal(attention.run(0, wide[:, 2:6], cache), attention.run(0, wide[:, 2:6].contiguous(), cache))


def test_reasons_why_it_cannot_run():
    assert unavailable_reason(32, 8, 128) is None
    assert "up to 256" in unavailable_reason(8, 8, 320)
    assert "too many" in unavailable_reason(200, 1, 64)
