"""Why tokens were computed more than once: causes against an independent count, on pools that are too small."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.forward_work import ForwardWork
from engine.model_config import ModelConfig
from engine.prefix_order import common_prefix_length, depth_first_order
from engine.request import RepeatCause
from tests.engine.conftest import TINY_CONFIG, VOCABULARY_SIZE, random_prompts, tokens
from tests.engine.test_engine import requests_of
from tests.thorough import examples

PAGE_SIZE = 4
CONFIG = ModelConfig.from_dict(TINY_CONFIG)


class NoModel:
    """Computes nothing and always draws the same token: what is counted does not depend on the model."""

    has_partial_logits = partial_logits_are_exact = False

    def forward(self, token_ids, positions, attend, needed_rows=None):
        return torch.zeros(len(needed_rows), 1)

    def logits(self, hidden, token_ids=None):
        return torch.zeros(len(hidden), VOCABULARY_SIZE)


def run_counted(engine, requests, *, sort=False):
    """Completions in the order of requests, and the prompt tokens that all steps computed."""
    order = depth_first_order([one.prompt for one in requests]) if sort else range(len(requests))
    completions = engine.submit([requests[place] for place in order])
    computed = 0
    while engine.has_work:
        completions += engine.step()
        engine.check()
        computed += engine.last_step.prompt_tokens
    return sorted(completions, key=lambda one: one.request_id), computed


def sums(completions):
    """Tokens by cause."""
    return sum((Counter(one.repeated_tokens) for one in completions), Counter())


@st.composite
def workloads(draw):
    # Few token values, so that prompts share, nest and repeat; any order, so that planned prefixes are evicted.
    prompts = draw(st.lists(st.lists(st.integers(2, 3), min_size=1, max_size=24), min_size=1, max_size=10))
    max_tokens = draw(st.integers(1, 6))
    least = max(-(-(len(prompt) + max_tokens) // PAGE_SIZE) for prompt in prompts)
    return [tokens(*prompt) for prompt in prompts], max_tokens, EngineSettings(
        kv_pages=least + draw(st.integers(0, 4)), page_size=PAGE_SIZE, max_rows=draw(st.integers(1, 4)),
        step_tokens=draw(st.sampled_from([3, 8, 1024])), reserved_output=draw(st.sampled_from([0.0, 0.5, 1.0])),
        keep_unneeded=draw(st.booleans()),
    )  # fmt: skip


@given(workload=workloads(), sort=st.booleans())
@examples(60)
def test_what_was_computed_is_the_minimum_and_the_causes(workload, sort):
    prompts, max_tokens, engine_settings = workload
    engine = Engine(NoModel(), CONFIG, engine_settings, stop_token_ids=())
    completions, computed_in_steps = run_counted(engine, requests_of(prompts, max_tokens=max_tokens), sort=sort)
    positions = {tuple(prompt[: end + 1]) for prompt in prompts for end in range(len(prompt))}
    repeated = sums(completions)
    computed = sum(one.computed_tokens for one in completions)
    assert computed - len(positions) == repeated[RepeatCause.EVICTED] + repeated[RepeatCause.LAST_TOKEN]
    assert computed_in_steps == computed + repeated[RepeatCause.PREEMPTED]
    # For each row: what no row before it in the queue has.
    order = depth_first_order(prompts) if sort else range(len(prompts))
    before = []
    for place in order:
        shared = max((common_prefix_length(prompts[place], other) for other in before), default=0)
        assert completions[place].minimum_tokens == len(prompts[place]) - shared
        assert completions[place].copied_tokens <= completions[place].cached_tokens
        before.append(prompts[place])
    if sort and engine_settings.reserved_output == 1.0:
        assert not repeated
    assert engine.statistics.preemptions > 0 or not repeated[RepeatCause.PREEMPTED]


def test_each_cause_is_met(make_engine):
    """The handbooks A B C D A B C D with room for two: each is evicted before its second question comes."""
    documents = [np.full(16, 10 + number, np.int32) for number in range(4)]
    prompts = [np.append(document, [question]).astype(np.int32) for question in (2, 3) for document in documents]
    engine = make_engine(kv_pages=10, page_size=PAGE_SIZE, max_rows=1)
    completions, _ = run_counted(engine, requests_of(prompts, max_tokens=1))
    assert sums(completions) == {RepeatCause.EVICTED: 2 * 16}  # two of the four are still there
    engine = make_engine(kv_pages=10, page_size=PAGE_SIZE)
    grouped, _ = run_counted(engine, requests_of(prompts, max_tokens=1), sort=True)
    assert sums(grouped) == {}
    long_prompt = tokens(*range(2, 22))
    nested, _ = run_counted(make_engine(), requests_of([long_prompt, long_prompt[:7]]))
    assert sums(nested) == {RepeatCause.LAST_TOKEN: 1}
    prompts = random_prompts(5)
    longest = -(-(max(map(len, prompts)) + 40) // PAGE_SIZE)
    small = make_engine(kv_pages=longest + 12, page_size=PAGE_SIZE, reserved_output=0.0, stop_token_ids=())
    preempted, _ = run_counted(small, requests_of(prompts, max_tokens=40), sort=True)
    assert sum(one.repeated_output_tokens for one in preempted) > 0


def test_what_is_copied_is_told(make_engine):
    """The second question goes on in the middle of a page that the first one has written on in."""
    shared = list(range(10, 16))
    prompts = [tokens(*shared, 20, 21), tokens(*shared, 30, 31)]
    completions = make_engine(page_size=PAGE_SIZE).run(requests_of(prompts))
    assert [(one.cached_tokens, one.copied_tokens) for one in completions] == [(0, 0), (6, 2)]


def test_a_step_says_what_it_did(make_engine):
    engine = make_engine(step_tokens=64)
    prompts = random_prompts(7)
    waiting = engine.submit(requests_of(prompts))
    records = []
    while engine.has_work:
        waiting += engine.step()
        records.append(engine.last_step)
    work = ForwardWork.of(CONFIG)
    assert sum(record.prompt_tokens for record in records) == sum(one.computed_tokens for one in waiting)
    assert sum(record.prompt_flops for record in records) == sum(
        work.flops(one.cached_tokens, one.computed_tokens) for one in waiting
    )
    assert sum(record.output_tokens for record in records) == sum(len(one.output_tokens) for one in waiting)
    assert max(record.pages_used for record in records) == engine.statistics.peak_pages
    seconds = sum(record.prompt_seconds + record.output_seconds + record.mask_seconds for record in records)
    assert seconds == pytest.approx(engine.statistics.prefill_seconds + engine.statistics.decode_seconds)
    assert all(record.running_rows > 0 for record in records)


@given(st.integers(0, 40), st.integers(0, 40), st.lists(st.sampled_from([None, 1, 7]), min_size=2, max_size=2))
def test_the_work_of_attention_grows_with_the_position(first, count, windows):
    config = ModelConfig.from_dict(TINY_CONFIG)
    object.__setattr__(config, "windows", tuple(windows))
    work = ForwardWork.of(config)
    a_key = 4 * config.heads * config.head_size
    expected = sum(
        work.token_flops + a_key * sum(min(position + 1, window or 10**9) for window in windows)
        for position in range(first, first + count)
    )
    assert work.flops(first, count) == expected
    matrices = 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 64  # queries and output, keys and values, the MLP
    assert work.token_flops == 2 * 2 * matrices
