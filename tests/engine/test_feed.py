"""Requests that are taken only when their turn is near: the same answers and the same reuse, with few held."""

import numpy as np
import pytest

from engine.prefix_order import depth_first_order, first_positions
from engine.request import FinishReason
from tests.engine.conftest import random_prompts, tokens
from tests.engine.test_engine import requests_of


def in_order(prompts, **sampling):
    requests = requests_of(prompts, **sampling)
    return [requests[index] for index in depth_first_order(prompts)]


def run_fed(engine, requests, on_step=lambda taken, ended: None):
    """Feed all requests, checking cache and pool after every step; completions by request id."""
    taken = 0

    def coming():
        nonlocal taken
        for request in requests:
            taken += 1
            yield request

    engine.feed(coming())
    completions = []
    while engine.has_work:
        completions += engine.step()
        engine.check()
        on_step(taken, len(completions))
    assert (taken, len(completions)) == (len(requests), len(requests))
    return {completion.request_id: completion for completion in completions}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "settings", [{"max_rows": 1}, {"max_rows": 3, "step_tokens": 200}, {"step_tokens": 7}], ids=str
)
def test_a_feed_computes_every_shared_token_once(make_engine, seed, settings):
    prompts = random_prompts(seed, documents=5, questions=6)
    # Answers of one token end in the very step that starts them, which gives up prefixes soonest.
    requests = in_order(prompts, max_tokens=1 if seed % 2 else 4)
    given = {one.request_id: one for one in make_engine().run(requests)}
    kv_pages = max(-(-(len(prompt) + 4) // 16) for prompt in prompts) + (seed >= 2) * 8
    fed = run_fed(make_engine(kv_pages=kv_pages, keep_unneeded=False, **settings), requests)
    assert {key: one.output_tokens for key, one in fed.items()} == {
        key: one.output_tokens for key, one in given.items()
    }
    least = sum(first_positions([request.prompt for request in requests]))
    assert sum(one.computed_tokens for one in fed.values()) == least


def test_a_feed_holds_few_requests(make_engine):
    requests = in_order(random_prompts(1, documents=10, questions=20))
    held = []
    run_fed(make_engine(max_rows=4), requests, lambda taken, ended: held.append(taken - ended))
    assert max(held) <= 2 * 4 + 1


def test_a_request_submitted_first_goes_before_the_fed_ones(make_engine):
    requests = in_order(random_prompts(2))
    late = requests[0]
    engine = make_engine(max_rows=2, keep_unneeded=False)
    engine.feed(requests[1:])
    order = [one.request_id for one in engine.step()]
    assert engine.submit([late], first=True) == []
    while engine.has_work:
        order += [one.request_id for one in engine.step()]
        engine.check()
    assert order.index(late.request_id) <= 4
    assert sorted(order) == sorted(request.request_id for request in requests)


def test_what_can_never_run_comes_out_of_the_steps(make_engine):
    prompts = random_prompts(3)
    longest = max(map(len, prompts))
    engine = make_engine(kv_pages=-(-(longest + 5) // 16) - 1)
    fed = run_fed(engine, in_order(prompts))
    too_long = [one for one in fed.values() if one.finish_reason is FinishReason.TOO_LONG]
    assert 0 < len(too_long) < len(fed)
    assert all(one.error for one in too_long)


def test_an_aborted_feed_takes_no_more(make_engine):
    requests = in_order(random_prompts(1, documents=10, questions=20))
    engine = make_engine(max_rows=4)
    coming = iter(requests)
    engine.feed(coming)
    engine.step()
    engine.abort()
    engine.check()
    assert not engine.has_work
    assert len(list(coming)) >= len(requests) - 9
    engine.feed([])
    assert engine.has_work
    assert engine.step() == []
    assert not engine.has_work


@pytest.mark.parametrize("questions", [1, 60])
def test_grouping_takes_no_more_steps_than_none(make_engine, questions):
    """60 documents with a question each, which have nothing to share, and one document with 60 questions."""
    prompts = random_prompts(7, documents=60 // questions, questions=questions)
    if questions == 1:
        prompts = [np.concatenate([tokens(index + 2), prompt]) for index, prompt in enumerate(prompts)]
    steps = {}
    for reuse in (True, False):
        engine = make_engine(keep_unneeded=False, reuse=reuse, step_tokens=100)
        run_fed(engine, in_order(prompts))
        steps[reuse] = (engine.statistics.steps, engine.statistics.step_rows)
    assert steps[True] == steps[False] if questions == 1 else steps[True] < steps[False]
