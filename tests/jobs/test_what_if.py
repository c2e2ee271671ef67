"""The simulated caches of `docqa plan --what-if`: small cases by hand, what must always hold, and the real engine."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docqa.what_if_view import what_if_summary
from engine.kv_memory import kv_page_bytes
from engine.prefix_order import depth_first_order, first_positions
from jobs import what_if as what_if_module
from jobs.job_file import load_job
from jobs.observe import StopRequest
from jobs.prepare import prepare
from jobs.run import run_job
from jobs.what_if import TooLargeToSimulate, simulation, what_if
from jobs.what_if_block_cache import BlockCache, BlockNames
from jobs.what_if_plan import PlannedCache
from jobs.what_if_radix_cache import RecencyRadixCache
from tests.job_fixtures import sample_rows
from tests.jobs.test_after import program_rows

BLOCK = 4
AMPLE = 10_000


def prompts_of(*lists):
    return [np.array(tokens, dtype=np.int32) for tokens in lists]


def block_reuse(prompts, pages=AMPLE, block=BLOCK):
    names, cache = BlockNames(block), BlockCache(pages, block)
    return [cache.ask(names.of(prompt)) for prompt in prompts], cache.peak_pages


def radix_reuse(prompts, tokens=AMPLE):
    cache = RecencyRadixCache(tokens)
    return [cache.ask(prompt) for prompt in prompts], cache.peak_tokens


def planned_reuse(prompts, pages=AMPLE, page=BLOCK):
    """In depth-first order, as our plan has them."""
    cache = PlannedCache(pages, page)
    return list(cache.ask_all(prompts[index] for index in depth_first_order(prompts))), cache.peak_pages


def minimum(prompts):
    return sum(first_positions([prompts[index] for index in depth_first_order(prompts)]))


THREE = prompts_of([*range(10, 16), 20, 21], [*range(10, 16), 30, 31], [*range(10, 16), 20, 40])


def test_blocks_share_whole_blocks_and_the_tree_shares_tokens():
    assert block_reuse(THREE)[0] == [0, 4, 4]
    assert radix_reuse(THREE)[0] == [0, 6, 7]
    assert sum(planned_reuse(THREE)[0]) == 13


@pytest.mark.parametrize("reuse", [
    lambda prompts: block_reuse(prompts, pages=16), lambda prompts: radix_reuse(prompts, tokens=64),
])  # fmt: skip
def test_handbooks_in_turn_are_read_eight_times_and_grouped_four_times(reuse):
    """A B C D A B C D, 32 tokens each, with room for two."""
    handbooks = [np.arange(32, dtype=np.int32) + 100 * number for number in range(4)]
    in_turn = handbooks * 2
    grouped = [handbook for handbook in handbooks for _ in range(2)]
    assert [found // 32 for found in reuse(in_turn)[0]] == [0] * 8
    assert [found // 32 for found in reuse(grouped)[0]] == [0, 1] * 4
    # Our plan groups them itself, and needs room for one.
    found, peak_pages = planned_reuse(in_turn, pages=8)
    assert (found, peak_pages) == ([0, 32] * 4, 8)


def test_what_is_used_longest_ago_goes_first():
    a, b, c = (np.arange(8, dtype=np.int32) + 100 * number for number in range(3))
    assert radix_reuse([a, b, a, c, a, b], tokens=16)[0] == [0, 0, 8, 0, 8, 0]
    assert block_reuse([a, b, a, c, a, b], pages=4)[0] == [0, 0, 8, 0, 8, 0]


def test_a_block_needs_all_tokens_before_it():
    first, second = prompts_of([1, 2, 3, 4, 9, 9, 9, 9], [5, 6, 7, 8, 9, 9, 9, 9])
    assert block_reuse([first, second])[0] == [0, 0]


def test_a_pool_that_is_half_full_of_a_longer_prompt():
    """Of a cached prompt's blocks the last go first, so that its beginning can still be found."""
    long, other = np.arange(16, dtype=np.int32), np.arange(100, 108, dtype=np.int32)
    assert block_reuse([long, other, long], pages=4)[0] == [0, 0, 8]


# Few tokens, so that prompts share beginnings of every length.
some_prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=16).map(
    lambda lists: prompts_of(*lists)
)


@settings(deadline=None, max_examples=60)
@given(some_prompts)
def test_with_room_for_all_the_tree_computes_the_least_and_blocks_no_less(prompts):
    total = sum(map(len, prompts))
    in_tree, peak_tokens = radix_reuse(prompts)
    in_blocks, _ = block_reuse(prompts)
    assert all(blocks <= tree for blocks, tree in zip(in_blocks, in_tree, strict=True))
    assert all(blocks % BLOCK == 0 for blocks in in_blocks)
    assert total - sum(in_tree) == minimum(prompts) == peak_tokens


@settings(deadline=None, max_examples=60)
@given(some_prompts, st.integers(0, 40))
def test_our_plan_computes_the_least_wherever_the_longest_prompt_fits(prompts, more_pages):
    longest = max(-(-len(prompt) // BLOCK) for prompt in prompts)
    found, peak_pages = planned_reuse(prompts, pages=longest + more_pages)
    assert sum(map(len, prompts)) - sum(found) == minimum(prompts)
    assert peak_pages == longest  # and more room is not even used


@settings(deadline=None, max_examples=60)
@given(some_prompts, st.integers(0, 12), st.integers(1, 12))
def test_more_room_never_makes_blocks_compute_more(prompts, more_pages, still_more):
    """Recency alone decides among blocks of one size, so what a smaller pool holds, a larger one holds too.

    That can't be said of the tree: it gives up whole edges, and what it cuts depends on what it gave up before.
    """
    pages = max(-(-len(prompt) // BLOCK) for prompt in prompts) + more_pages
    small, _ = block_reuse(prompts, pages=pages)
    large, _ = block_reuse(prompts, pages=pages + still_more)
    assert all(less <= more for less, more in zip(small, large, strict=True))


@settings(deadline=None, max_examples=60)
@given(some_prompts, st.integers(0, 24))
def test_no_pool_holds_more_than_it_has_room_for_or_computes_less_than_the_least(prompts, more_tokens):
    tokens = max(map(len, prompts)) + more_tokens
    pages = -(-tokens // BLOCK)
    in_tree, peak_tokens = radix_reuse(prompts, tokens=tokens)
    in_blocks, peak_pages = block_reuse(prompts, pages=pages)
    assert max(map(len, prompts)) <= peak_tokens <= tokens
    assert peak_pages <= pages
    for found in (in_tree, in_blocks):
        assert minimum(prompts) <= sum(map(len, prompts)) - sum(found) <= sum(map(len, prompts))
        assert all(0 <= reused <= len(prompt) for reused, prompt in zip(found, prompts, strict=True))


@settings(deadline=None, max_examples=60)
@given(some_prompts, st.integers(0, 24))
def test_the_tree_finds_what_a_search_among_all_kept_beginnings_finds(prompts, more_tokens):
    """Against a plain model that keeps a set of cached positions, where nothing is ever given up."""
    kept = set()
    expected = []
    for prompt in prompts:
        beginnings = [tuple(prompt[:length]) for length in range(1, len(prompt) + 1)]
        expected.append(sum(beginning in kept for beginning in beginnings))
        kept.update(beginnings)
    assert radix_reuse(prompts, tokens=len(kept) + max(map(len, prompts)) + more_tokens)[0] == expected


def test_a_job_computes_what_its_plan_says_in_every_pool(make_job):
    """The simulation of our plan against the real engine over real weights."""
    path = make_job(sample_rows(), sampling={"max_tokens": 6})
    prepared = prepare(load_job(path, []))
    simulated, notes = simulation(prepared.plan.rows, prepared.data.rows, 16)
    assert notes == []
    smallest = prepared.plan.pages_for_longest_row(16)
    for pages in (smallest, smallest + 9, 4 * smallest):
        kv_bytes = (pages + 1) * kv_page_bytes(prepared.model.config, 16, 4)
        job = load_job(path, [f"engine.kv_memory={kv_bytes}", f"output.database=pool-{pages}.duckdb"])
        run = run_job(job, command="test", stop=StopRequest()).run
        assert (run.rows_ok + run.rows_failed, run.rows_pending) == (20, 0)
        outcome = simulated.our_plan(pages)
        assert run.computed_tokens == outcome.computed_tokens == prepared.plan.minimum_tokens
        assert run.prompt_tokens == simulated.no_reuse(pages).computed_tokens


def test_a_small_pool_reads_documents_once_in_whatever_order_rows_come(make_job):
    """Case 34: rows by question, the first one of all documents and so on, and room for three documents."""
    by_document = [row | {"question": f"{row['question']} {row['doc_id']}"} for row in sample_rows(documents=10)]
    by_document.sort(key=lambda row: (row["doc_id"], row["question_id"]))
    by_question = sorted(by_document, key=lambda row: (row["question_id"], row["doc_id"]))
    for name, rows in (("document", by_document), ("question", by_question)):
        path = make_job(rows, sampling={"max_tokens": 6})
        prepared = prepare(load_job(path, []))
        pages = 3 * prepared.plan.pages_for_longest_row(16)
        simulated, _ = simulation(prepared.plan.rows, prepared.data.rows, 16)
        ours, recency = simulated.our_plan(pages), simulated.radix_recency(pages)
        assert ours.computed_tokens == prepared.plan.minimum_tokens
        if name == "question":  # every document is given up just before it is needed again
            assert recency.computed_tokens > 3 * ours.computed_tokens
        else:
            assert recency.computed_tokens == ours.computed_tokens
        kv_bytes = (pages + 1) * kv_page_bytes(prepared.model.config, 16, 4)
        job = load_job(path, [f"engine.kv_memory={kv_bytes}", f"output.database=by-{name}.duckdb"])
        assert run_job(job, command="test", stop=StopRequest()).run.computed_tokens == ours.computed_tokens


def test_the_whole_comparison(make_job):
    prepared = prepare(load_job(make_job(sample_rows()), []))
    found = what_if(prepared.plan.rows, prepared.data.rows, 16)
    assert (found.rows, found.prompt_tokens) == (20, prepared.plan.prompt_tokens)
    assert found.minimum_tokens == prepared.plan.minimum_tokens
    assert found.working_set_pages == -(-found.minimum_tokens // 16)
    ways = {strategy.name: strategy.pools for strategy in found.strategies}
    assert list(ways) == ["no reuse", "block hash", "radix LRU", "our plan"]
    assert [pool.computed_tokens for pool in ways["no reuse"]] == [found.prompt_tokens] * 3
    assert [pool.computed_tokens for pool in ways["our plan"]] == [found.minimum_tokens] * 3
    assert ways["radix LRU"][0].computed_tokens == found.minimum_tokens
    assert ways["radix LRU"][2].computed_tokens > 1.5 * found.minimum_tokens  # the rows come shuffled
    assert ways["block hash"][0].computed_tokens > found.minimum_tokens
    pages = [pool.pool_pages for pool in ways["our plan"]]
    assert pages[0] == found.working_set_pages
    assert all(way.peak_pages <= way.pool_pages for strategy in found.strategies for way in strategy.pools)


def test_pools_hold_the_longest_prompt_at_least(make_job):
    prepared = prepare(load_job(make_job(sample_rows(documents=1)), []))
    found = what_if(prepared.plan.rows, prepared.data.rows, 16)
    assert "raised" in found.notes[0]
    longest = -(-max(row.prompt_tokens for row in prepared.plan.rows) // 16)
    assert [pool.pool_pages for pool in found.strategies[0].pools] == [found.working_set_pages, longest, longest]


def test_of_too_much_every_nth_document_is_simulated_and_one_document_refused(make_job, monkeypatch):
    prepared = prepare(load_job(make_job(sample_rows(documents=8)), []))
    tokens = prepared.plan.prompt_tokens
    monkeypatch.setattr(what_if_module, "MOST_TOKENS", tokens // 2)
    found = what_if(prepared.plan.rows, prepared.data.rows, 16)
    assert found.rows % 5 == 0
    assert 0 < found.rows < 40
    assert f"the prompts have {tokens:,} tokens; {found.prompt_tokens:,} were simulated" in found.notes[0]
    monkeypatch.setattr(what_if_module, "MOST_TOKENS", 400)
    with pytest.raises(TooLargeToSimulate, match="try a part of the input"):
        what_if(prepared.plan.rows, prepared.data.rows, 16)


def test_pieces_of_documents_are_simulated_and_rows_that_wait_are_said_to_be_left_out(make_job):
    long = [row | {"document": row["document"] * 8} for row in sample_rows(2, 2)]
    path = make_job(long, run={"on_too_long": "split"}, sampling={"max_tokens": 40})
    prepared = prepare(load_job(path, []))
    assert prepared.plan.rows_split == 4
    found = what_if(prepared.plan.rows, prepared.data.rows, 16)
    assert found.rows == len(prepared.plan.rows) > 4
    assert found.strategies[-1].pools[2].computed_tokens == found.minimum_tokens == prepared.plan.minimum_tokens
    notes = what_if_summary(prepare(load_job(make_job(program_rows()), [])))["notes"]
    assert "6 rows that wait for answers of others are left out: their prompts are not known" in notes


def test_simulating_imports_no_torch(make_job):
    path = make_job(sample_rows())
    code = "import sys\nfrom docqa.main import main\ntry: main()\nexcept SystemExit as e: assert not e.code\n"
    code += "assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, "plan", str(path), "--what-if", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["what_if"]
    assert found["refused"] is None
    assert [strategy["name"] for strategy in found["strategies"]][-1] == "our plan"
    assert found["strategies"][-1]["pools"][2]["computed_tokens"] == json.loads(done.stdout)["minimum_tokens"]
