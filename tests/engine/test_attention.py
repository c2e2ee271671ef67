"""Every backend against plain attention over each row's own keys, on random steps."""

import functools

import numpy as np
import pytest
import torch

from engine.attention import PartialOutputs
from engine.attention_cpu import CpuAttention
from engine.attention_reference import ReferenceAttention
from engine.kv_cache import KVCache
from engine.step import SequenceRows
from engine.work_list import build_work_list
from tests.thorough import in_part

HEADS, KV_HEADS, HEAD_SIZE, PAGE_SIZE = 6, 2, 16, 16


def random_step(seed, dtype=torch.float32):
    """Three documents of several pages with rows of decode, extension and prefill: (rows, cache, query, positions)."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    cache = KVCache(
        layers=1, kv_heads=KV_HEADS, head_size=HEAD_SIZE, pages=600, page_size=PAGE_SIZE, dtype=dtype, device="cpu"
    )
    cache.keys.copy_(torch.randn_like(cache.keys, dtype=torch.float32))
    cache.values.copy_(torch.randn_like(cache.values, dtype=torch.float32))
    free_pages = iter(random.permutation(np.arange(1, 601)))
    rows, row_start = [], 0
    for _document in range(3):
        shared = [next(free_pages) for _ in range(random.integers(0, 40))]
        for _ in range(random.integers(1, 7)):
            own_start = len(shared) * PAGE_SIZE + int(random.integers(0, 40))
            count = int(random.choice([1, 1, 1, 3, 20, 70]))
            pages = shared + [next(free_pages) for _ in range(-(-(own_start + count) // PAGE_SIZE) - len(shared))]
            rows.append(SequenceRows(row_start, count, own_start, np.array(pages, dtype=np.int32)))
            row_start += count
    positions = np.concatenate([np.arange(r.first_position, r.key_count) for r in rows])
    query = torch.randn(row_start, HEADS, HEAD_SIZE).to(dtype)
    return rows, cache, query, torch.from_numpy(positions)


def plain_attention(rows, cache, query, window):
    parts = []
    for entry in rows:
        slots = (entry.page_table[:, None].astype(np.int64) * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)
        slots = torch.from_numpy(slots[: entry.key_count])
        keys, values = cache.keys[0][:, slots].double(), cache.values[0][:, slots].double()
        for row in range(entry.row_count):
            end = entry.first_position + row + 1
            start = 0 if window is None else max(0, end - window)
            for head in range(HEADS):
                kv_head = head // (HEADS // KV_HEADS)
                scores = keys[kv_head, start:end] @ query[entry.row_start + row, head].double() * HEAD_SIZE**-0.5
                parts.append(scores.softmax(0) @ values[kv_head, start:end])
    return torch.stack(parts).view(query.shape)


@functools.cache
def step_and_plain_attention(seed, window):
    """A random step, which no backend changes, and what it should give."""
    rows, cache, query, positions = random_step(seed)
    return rows, cache, query, positions, plain_attention(rows, cache, query, window)


@pytest.mark.parametrize("backend", [ReferenceAttention, CpuAttention])
@pytest.mark.parametrize("window", [None, 1, 7, 100, 5000])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_backends_agree_with_plain_attention(backend, window, share, seed):
    rows, cache, query, positions, expected = step_and_plain_attention(seed, window)
    attention = backend(scale=HEAD_SIZE**-0.5, windows=[window], page_size=PAGE_SIZE)
    items = build_work_list(rows, PAGE_SIZE, share)
    attention.prepare(items, positions)
    result = attention.run(0, query, cache)
    assert torch.allclose(result.double(), expected, atol=2e-5)
    if share:
        assert any(item.first_position is None for item in items) or seed != 0


def test_bfloat16_stays_near_the_reference():
    rows, cache, query, positions = random_step(1, torch.bfloat16)
    items = build_work_list(rows, PAGE_SIZE, True)
    results = []
    for backend in (CpuAttention, ReferenceAttention):
        attention = backend(scale=HEAD_SIZE**-0.5, windows=[None], page_size=PAGE_SIZE)
        attention.prepare(items, positions)
        results.append(attention.run(0, query, cache).float())
    assert (results[0] - results[1]).abs().max() < 0.03


@pytest.mark.parametrize("seed", in_part(range(20), 8))
def test_the_work_list_covers_every_key_of_every_row_once(seed):
    rows, _, query, _ = random_step(seed)
    for share in (True, False):
        seen = [[] for _ in range(len(query))]
        for item in build_work_list(rows, PAGE_SIZE, share):
            assert len(item.pages) == -(-item.key_count // PAGE_SIZE)
            for row in range(item.row_count):
                keys = item.key_count
                if item.first_position is not None:
                    keys = item.first_position + row + 1 - item.first_key
                page_of_key = np.repeat(item.pages, PAGE_SIZE)
                seen[item.row_start + row] += [(item.first_key + key, int(page_of_key[key])) for key in range(keys)]
        for entry in rows:
            for row in range(entry.row_count):
                expected = [(p, int(entry.page_table[p // PAGE_SIZE])) for p in range(entry.first_position + row + 1)]
                assert sorted(seen[entry.row_start + row]) == expected


def test_nested_prefixes_are_shared_level_by_level():
    def entry(index, *pages):
        return SequenceRows(index, 1, 16 * len(pages) + 2, np.array([*pages, 900 + index], dtype=np.int32))

    opening, first, second = range(10), range(20, 40), range(50, 70)
    rows = [
        entry(0, *opening, *first),
        entry(1, *opening, *first),
        entry(2, *opening, *second),
        entry(3, *opening, *second),
    ]
    items = build_work_list(rows, 16, True)
    shared = sorted(
        (item.row_start, item.row_count, item.first_key, item.key_count)
        for item in items
        if item.first_position is None
    )
    assert shared == [(0, 2, 160, 320), (0, 4, 0, 160), (2, 2, 160, 320)]
    assert sum(item.key_count for item in items if item.first_position is not None) == 4 * 3


def test_empty_partials_weigh_nothing():
    partials = PartialOutputs(2, 1, 4, "cpu")
    nothing = torch.full((2, 1), -torch.inf)
    partials.add(slice(0, 2), torch.zeros(2, 1, 4), nothing)
    assert not partials.output.isnan().any()
    value = torch.arange(8.0).view(2, 1, 4)
    partials.add(slice(0, 2), value, torch.tensor([[0.5], [3.0]]))
    partials.add(slice(0, 2), torch.zeros(2, 1, 4), nothing)
    assert torch.equal(partials.output, value)
    partials.add(torch.tensor([1]), torch.zeros(1, 1, 4), torch.tensor([[3.0]]))
    assert torch.allclose(partials.output[1], value[1] / 2)
    assert torch.allclose(partials.log_sum_exp[1], torch.tensor([3.0]) + np.log(2))
