"""The cache against a plain model: a dictionary of what is planned and running, and every counter recomputed."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from engine.cache_check import check_cache, page_counts
from engine.page_pool import PagePool
from engine.prefix_order import common_prefix_length, depth_first_order, first_positions
from engine.radix_cache import RadixCache
from engine.radix_node import NodeState
from tests.engine.conftest import tokens
from tests.thorough import examples


class Job:
    """What the test knows of one planned prompt: nothing of it comes from the cache."""

    def __init__(self, prompt, leaf):
        self.prompt = prompt
        self.leaf = leaf
        self.claim = None
        self.output_tokens = 0
        self.position = 0


class CacheMachine(RuleBasedStateMachine):
    keep_unneeded = True
    jobs = Bundle("jobs")

    @st.composite
    @staticmethod
    def prompts(draw):
        # Few token values and few lengths, so that prompts share, split and nest often.
        return np.array(draw(st.lists(st.integers(0, 2), min_size=1, max_size=14)), dtype=np.int32)

    def __init__(self):
        super().__init__()
        self.page_size = 4
        self.pool = PagePool(12)
        self.cache = RadixCache(self.pool, self.page_size, keep_unneeded=self.keep_unneeded)
        self.active = []
        self.contents = {}  # (page, offset) -> (position, token, everything before): what the KV there would depend on

    @rule(target=jobs, prompt=prompts())
    def plan(self, prompt):
        job = Job(prompt, self.cache.plan(prompt))
        self.active.append(job)
        assert job.leaf.end == len(prompt)
        path_tokens = np.concatenate([node.tokens for node in job.leaf.path()])
        assert path_tokens.tolist() == prompt.tolist()
        return job

    @rule(job=jobs, output_tokens=st.integers(0, 9), evict_planned=st.booleans())
    def claim(self, job, output_tokens, evict_planned):
        if job not in self.active or job.claim is not None or self.cache.is_blocked(job.leaf):
            return
        matched = self.cache.matched_length(job.leaf)
        job.claim = self.cache.claim(job.leaf, output_tokens, job, evict_planned=evict_planned)
        if job.claim is None:
            return
        job.output_tokens = output_tokens
        job.position = job.claim.matched
        assert job.claim.matched == matched
        assert len(job.claim.page_table) == -(-(len(job.prompt) + output_tokens) // self.page_size)
        copy = job.claim.tail_copy
        if copy is not None:
            for offset in range(copy.slots):
                self.contents[copy.target, offset] = self.contents[copy.source, offset]

    @rule(job=jobs, count=st.integers(1, 6))
    def advance(self, job, count):
        """Write KV of the next tokens, prompt first and then output."""
        if job.claim is None:
            return
        end = min(job.position + count, len(job.prompt) + job.output_tokens)
        for position in range(job.position, end):
            page = job.claim.page_table[position // self.page_size]
            history = (job.prompt[: position + 1].tobytes(), id(job) if position >= len(job.prompt) else None)
            self.contents[page, position % self.page_size] = (position, history)
        job.position = end
        self.cache.advance(job.leaf, job, min(end, len(job.prompt)))

    @rule(job=jobs)
    def release(self, job):
        """Preempt: the plan stays."""
        if job.claim is not None:
            self.cache.release(job.leaf, job, job.claim.private_pages)
            job.claim = None

    @rule(job=consumes(jobs))
    def finish(self, job):
        if job in self.active:
            self.release(job)
            self.cache.finish(job.leaf)
            self.active.remove(job)

    @rule(pages=st.integers(0, 12))
    def make_room(self, pages):
        self.cache.make_room(pages)

    @precondition(lambda self: not self.active)
    @rule()
    def evict_all(self):
        self.cache.evict_all()
        assert self.pool.free == self.pool.total
        assert not list(self.cache.nodes())

    @invariant()
    def counters_are_right(self):
        check_cache(self.cache, [job.claim.private_pages for job in self.active if job.claim])
        counts = page_counts(self.cache)
        assert counts.free + counts.cached + counts.in_use == counts.total == 12
        for node in self.cache.nodes():
            prefix = np.concatenate([part.tokens for part in node.path()])
            through = [job for job in self.active if common_prefix_length(job.prompt, prefix) == len(prefix)]
            assert node.planned == len(through)
            assert node.locks == sum(job.claim is not None for job in through)

    @invariant()
    def pages_hold_what_their_readers_expect(self):
        """No page of a ready node or of a running job is freed, or overwritten by anybody else."""
        for job in self.active:
            if job.claim is None:
                continue
            for position in range(job.position):
                page = job.claim.page_table[position // self.page_size]
                assert self.pool.holders(page) > 0
                kept, (history, owner) = self.contents[page, position % self.page_size]
                assert kept == position
                assert history == job.prompt[: position + 1].tobytes()
                assert owner == (id(job) if position >= len(job.prompt) else None)
        for node in self.cache.nodes():
            prefix = np.concatenate([part.tokens for part in node.path()])
            for position in range(node.start, node.start + node.computed):
                page = node.pages[position // self.page_size - node.start // self.page_size]
                assert self.contents[page, position % self.page_size][1] == (prefix[: position + 1].tobytes(), None)

    @invariant()
    def at_most_one_computes(self):
        for node in self.cache.nodes():
            if node.state is NodeState.COMPUTING:
                assert any(job is node.owner for job in self.active if job.claim)


class ForgetfulCacheMachine(CacheMachine):
    keep_unneeded = False

    @invariant()
    def nothing_unneeded_is_kept(self):
        assert all(node.planned > 0 for node in self.cache.nodes())


TestCacheMachine = CacheMachine.TestCase
TestForgetfulCacheMachine = ForgetfulCacheMachine.TestCase
for case in (TestCacheMachine, TestForgetfulCacheMachine):
    case.settings = examples(40, stateful_step_count=40)


def compute(cache, leaf, output_tokens=1):
    owner = object()
    claim = cache.claim(leaf, output_tokens, owner)
    cache.advance(leaf, owner, leaf.end)
    cache.release(leaf, owner, claim.private_pages)
    return claim


def test_a_planned_node_outlives_a_newer_one_that_nobody_plans():
    cache = RadixCache(PagePool(4), 4)
    needed = [cache.plan(tokens(1, 2, 3, 4)), cache.plan(tokens(1, 2, 3, 4))]
    compute(cache, needed[0], 0)
    cache.finish(needed[0])
    unneeded = cache.plan(tokens(9, 9, 9, 9))
    compute(cache, unneeded, 0)
    cache.finish(unneeded)
    assert cache.make_room(3)
    assert cache.matched_length(needed[1]) == 4
    assert not cache.make_room(4)


def test_recency_decides_among_what_nobody_plans():
    cache = RadixCache(PagePool(3), 4)
    prompts = [tokens(first, 7, 7, 7) for first in (1, 2, 3)]
    for prompt in [*prompts, prompts[0]]:
        leaf = cache.plan(prompt)
        compute(cache, leaf, 0)
        cache.finish(leaf)
    assert cache.make_room(2)
    again = [cache.plan(prompt) for prompt in prompts]
    assert [cache.matched_length(leaf) for leaf in again] == [4, 0, 0]


def test_a_prompt_continues_a_started_page_only_while_it_is_alone():
    cache = RadixCache(PagePool(8), 4)
    leaves = [cache.plan(tokens(1, 2, 3, 4, 5, 6, last)) for last in (7, 8)]
    first_owner, second_owner = object(), object()
    first = cache.claim(leaves[0], 0, first_owner)
    cache.advance(leaves[0], first_owner, 7)
    second = cache.claim(leaves[1], 0, second_owner)
    assert (second.matched, second.tail_copy.source, second.tail_copy.slots) == (6, first.page_table[1], 2)
    assert first.page_table[0] == second.page_table[0]
    assert first.page_table[1] != second.page_table[1]
    cache.advance(leaves[1], second_owner, 7)
    cache.release(leaves[0], first_owner, first.private_pages)
    cache.release(leaves[1], second_owner, second.private_pages)
    cache.finish(leaves[0])
    cache.finish(leaves[1])
    third = cache.plan(tokens(1, 2, 3, 4, 5, 6))
    assert cache.make_room(6)  # the two tails go, the shared part stays
    claim = cache.claim(third, 2, object())
    assert (claim.matched, claim.tail_copy) == (6, None)
    assert claim.page_table == first.page_table


def test_a_split_keeps_older_handles():
    cache = RadixCache(PagePool(8), 4)
    leaf = cache.plan(tokens(1, 2, 3, 4, 5, 6))
    compute(cache, leaf)
    other = cache.plan(tokens(1, 2, 9))
    assert leaf.end == 6
    assert cache.matched_length(leaf) == 6
    assert cache.matched_length(other) == 2


@pytest.mark.parametrize("seed", range(20))
def test_the_order_visits_the_tree_depth_first(seed):
    random = np.random.default_rng(seed)
    prompts = [random.integers(0, 3, random.integers(1, 10), dtype=np.int32) for _ in range(60)]
    ordered = [prompts[i] for i in depth_first_order(prompts)]
    positions = {tuple(prompt[: i + 1]) for prompt in prompts for i in range(len(prompt))}
    assert sum(first_positions(ordered)) == len(positions)
    assert [prompt.tolist() for prompt in ordered] == sorted(prompt.tolist() for prompt in prompts)


def test_the_order_keeps_large_token_ids_apart():
    prompts = [tokens(70_000), tokens(5), tokens(256), tokens(255, 3)]
    assert depth_first_order(prompts) == [1, 3, 2, 0]
