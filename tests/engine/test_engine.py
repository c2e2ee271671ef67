import numpy as np
import pytest

from engine.prefix_order import depth_first_order, first_positions
from engine.request import FinishReason, Request, SamplingParameters
from tests.engine.conftest import STOP_ID, random_prompts, tokens
from tests.thorough import in_part


def requests_of(prompts, **sampling):
    sampling = {"max_tokens": 6, **sampling}
    return [
        Request(index, prompt, SamplingParameters(seed=1000 + index, **sampling))
        for index, prompt in enumerate(prompts)
    ]


def answers(completions):
    return [completion.output_tokens for completion in completions]


def minimum_tokens(prompts):
    return sum(first_positions([prompts[i] for i in depth_first_order(prompts)]))


def run_checked(engine, requests, **options):
    """Run, checking cache and pool after every step."""
    place = {request.request_id: index for index, request in enumerate(requests)}
    order = depth_first_order([r.prompt for r in requests]) if options.get("sort", True) else range(len(requests))
    completions = engine.submit([requests[i] for i in order])
    while engine.has_work:
        completions += engine.step()
        engine.check()
    assert len(completions) == len(requests)
    return sorted(completions, key=lambda completion: place[completion.request_id])


@pytest.fixture(scope="module")
def prompts():
    return random_prompts(seed=5)


@pytest.fixture(scope="module")
def plain_answers(make_engine, prompts):
    """The oracle: reference attention, no reuse, one row at a time."""
    engine = make_engine(attention="reference", reuse=False, share_prefixes=False, max_rows=1)
    completions = engine.run(requests_of(prompts))
    assert all(completion.cached_tokens == 0 for completion in completions)
    return answers(completions)


def test_three_prompts_reuse_to_the_token(make_engine):
    shared = list(range(10, 16))
    prompts = [tokens(*shared, 20, 21), tokens(*shared, 30, 31), tokens(*shared, 20, 40)]
    completions = make_engine().run(requests_of(prompts), sort=False)
    assert [completion.cached_tokens for completion in completions] == [0, 6, 7]
    completions = make_engine(page_size=4).run(requests_of(prompts), sort=False)
    assert [completion.cached_tokens for completion in completions] == [0, 6, 7]


def test_sections_of_a_shared_document_are_computed_once(make_engine):
    random = np.random.default_rng(1)
    shared = random.integers(2, 60, 1024, dtype=np.int32)
    sections = [np.concatenate([[section], random.integers(2, 60, 255)]) for section in range(10, 14)]
    prompts = [
        np.concatenate([shared, sections[i % 4], [2 + i // 4], random.integers(2, 60, 63)]).astype(np.int32)
        for i in range(64)
    ]
    assert sum(map(len, prompts)) == 86_016
    completions = make_engine(kv_pages=2000).run(requests_of(prompts, max_tokens=2))
    assert sum(completion.computed_tokens for completion in completions) == 6_144


def test_batched_answers_equal_the_plain_path(make_engine, prompts, plain_answers):
    completions = run_checked(make_engine(), requests_of(prompts))
    assert answers(completions) == plain_answers
    assert sum(completion.cached_tokens for completion in completions) > 0
    assert sum(completion.computed_tokens for completion in completions) == minimum_tokens(prompts)


@pytest.mark.parametrize("step_tokens", [1, 3, 7, 16, 64, 4096])
@pytest.mark.parametrize("share_prefixes", [True, False])
def test_answers_do_not_depend_on_chunks(make_engine, prompts, plain_answers, step_tokens, share_prefixes):
    engine = make_engine(step_tokens=step_tokens, share_prefixes=share_prefixes)
    completions = run_checked(engine, requests_of(prompts))
    assert answers(completions) == plain_answers
    assert sum(completion.computed_tokens for completion in completions) == minimum_tokens(prompts)
    if share_prefixes and step_tokens > 16:
        assert engine.statistics.shared_items > 0


@pytest.mark.parametrize("page_size", [1, 2, 5, 16, 32])
def test_answers_do_not_depend_on_the_page_size(make_engine, prompts, plain_answers, page_size):
    engine = make_engine(page_size=page_size, kv_pages=8000 // page_size)
    assert answers(run_checked(engine, requests_of(prompts))) == plain_answers


def test_answers_do_not_depend_on_the_input_order(make_engine, prompts, plain_answers):
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(prompts))
        for sort in (True, False):
            requests = requests_of(prompts)
            completions = make_engine().run([requests[i] for i in order], sort=sort)
            assert [plain_answers[i] for i in order] == answers(completions)


def test_warm_answers_equal_cold_ones(make_engine, prompts, plain_answers):
    engine = make_engine()
    cold = run_checked(engine, requests_of(prompts))
    warm = run_checked(engine, requests_of(prompts))
    assert answers(cold) == answers(warm) == plain_answers
    cached = sum(completion.cached_tokens for completion in warm)
    assert cached >= sum(len(prompt) - 1 for prompt in prompts)
    for completion in cold + warm:
        assert completion.cached_tokens + completion.computed_tokens == completion.prompt_tokens


def test_pages_are_free_as_soon_as_nothing_planned_needs_them(make_engine, prompts, plain_answers):
    engine = make_engine(keep_unneeded=False, max_rows=4)
    assert answers(run_checked(engine, requests_of(prompts))) == plain_answers
    assert engine.cache.pool.free == engine.cache.pool.total
    kept = make_engine(max_rows=4)
    kept.run(requests_of(prompts))
    assert engine.statistics.peak_pages < kept.statistics.peak_pages


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("seed", in_part(range(6), 3))
def test_the_smallest_pool_still_computes_everything_once(make_engine, page_size, seed):
    prompts = random_prompts(seed, documents=5, questions=6)
    longest = max(len(prompt) for prompt in prompts) + 6 - 1  # the KV of the last output token is never read
    pages = -(-longest // page_size)
    expected = answers(make_engine(reuse=False).run(requests_of(prompts)))
    completions = run_checked(make_engine(kv_pages=pages, page_size=page_size), requests_of(prompts))
    assert answers(completions) == expected
    assert sum(completion.computed_tokens for completion in completions) == minimum_tokens(prompts)
    assert not any(completion.repeated_tokens or completion.repeated_output_tokens for completion in completions)


@pytest.mark.parametrize(
    ("prompts", "max_tokens", "settings"),
    [
        # Prompts that part inside a page leave a copy of it; the row that needs the whole pool comes last.
        ([[2, 2, 3, 2, 2, 2, 3, 3, 2], [3, 2], [3, 3], [3, 3, 2, 2, 3, 3, 2, 2]], 3, {"kv_pages": 3, "max_rows": 1}),
        ([[3], [3, 3, 2, 3, 3, 2, 2, 2]], 3, {"kv_pages": 3, "reserved_output": 0.0, "keep_unneeded": False}),
        ([[3, 2], [3, 2, 3, 3, 3, 3, 3]], 3, {"kv_pages": 3, "reserved_output": 0.0, "keep_unneeded": False}),
    ],
)
def test_a_row_that_fills_the_pool_runs_whatever_was_copied_before(make_engine, prompts, max_tokens, settings):
    engine = make_engine(page_size=4, step_tokens=3, stop_token_ids=(), **settings)
    requests = requests_of([tokens(*prompt) for prompt in prompts], max_tokens=max_tokens)
    expected = answers(make_engine(reuse=False, stop_token_ids=()).run(requests))
    assert answers(run_checked(engine, requests)) == expected


def test_a_row_that_never_fits_names_the_setting_and_the_rest_runs(make_engine):
    random = np.random.default_rng(0)
    prompts = [random.integers(2, 60, size, dtype=np.int32) for size in (100, 506, 507, 508, 1000, 5000)]
    completions = run_checked(make_engine(kv_pages=32), requests_of(prompts))
    reasons = [completion.finish_reason for completion in completions]
    assert [reason is FinishReason.TOO_LONG for reason in reasons] == [False, False, False, True, True, True]
    assert "engine.kv_memory" in completions[3].error
    assert "context is 4096" in completions[5].error


def test_the_context_limit_is_exact(make_engine):
    def reason(prompt_tokens, shortest):
        request = Request(0, np.full(prompt_tokens, 5, np.int32), SamplingParameters(max_tokens=2), None, shortest)
        return make_engine(kv_pages=300).run([request])[0].finish_reason

    assert reason(4096 - 3, shortest=3) is not FinishReason.TOO_LONG
    assert reason(4096 - 2, shortest=3) is FinishReason.TOO_LONG


def test_output_is_cut_at_the_context(make_engine):
    request = Request(0, np.full(4090, 5, np.int32), SamplingParameters(max_tokens=50))
    completion = make_engine(kv_pages=300, stop_token_ids=()).run([request])[0]
    assert (completion.finish_reason, len(completion.output_tokens)) == (FinishReason.LENGTH, 6)


def test_preemption_loses_nothing(make_engine, prompts):
    expected = answers(make_engine(reuse=False, stop_token_ids=()).run(requests_of(prompts, max_tokens=40)))
    longest = max(map(len, prompts)) + 40
    engine = make_engine(kv_pages=-(-longest // 4) + 12, page_size=4, reserved_output=0.0, stop_token_ids=())
    completions = run_checked(engine, requests_of(prompts, max_tokens=40))
    assert engine.statistics.preemptions > 0
    assert sum(completion.repeated_output_tokens for completion in completions) > 0
    assert answers(completions) == expected
    for completion in completions:
        assert completion.cached_tokens + completion.computed_tokens == completion.prompt_tokens


def test_identical_prompts_are_computed_once_and_drawn_apart(make_engine):
    prompt = random_prompts(1, documents=1, questions=1)[0]
    requests = requests_of([prompt] * 7, temperature=1.5, max_tokens=8)
    alone = [make_engine().run([request])[0].output_tokens for request in requests]
    completions = run_checked(make_engine(max_rows=3), requests)
    assert answers(completions) == alone
    assert len({tuple(answer) for answer in alone}) > 3
    assert [completion.computed_tokens for completion in completions] == [len(prompt)] + [0] * 6


def test_a_prompt_that_is_the_prefix_of_another(make_engine):
    long_prompt = random_prompts(2, documents=1, questions=1)[0]
    prompts = [long_prompt, long_prompt[:-1], long_prompt[:20], long_prompt[:16]]
    expected = answers(make_engine(reuse=False).run(requests_of(prompts)))
    completions = run_checked(make_engine(), requests_of(prompts))
    assert answers(completions) == expected
    assert sum(completion.computed_tokens for completion in completions) == len(long_prompt)
    longest_first = run_checked(make_engine(), requests_of(prompts), sort=False)
    assert answers(longest_first) == expected
    assert [completion.computed_tokens for completion in longest_first] == [len(long_prompt), 1, 1, 1]


def test_requests_that_come_while_others_run(make_engine, prompts, plain_answers):
    """Plans split nodes that are being computed and used."""
    engine = make_engine(step_tokens=9, max_rows=4)
    requests = requests_of(prompts)
    completions = []
    for start in range(0, len(requests), 3):
        completions += engine.submit(requests[start : start + 3])
        for _ in range(2):
            if engine.has_work:
                completions += engine.step()
                engine.check()
    while engine.has_work:
        completions += engine.step()
        engine.check()
    by_id = {completion.request_id: completion.output_tokens for completion in completions}
    assert [by_id[index] for index in range(len(prompts))] == plain_answers
    assert sum(completion.cached_tokens for completion in completions) > 0


def test_sampled_answers_depend_on_the_seed_and_not_on_the_batch(make_engine, prompts):
    settings = {"temperature": 1.2, "top_p": 0.9, "top_k": 20, "max_tokens": 10}
    requests = requests_of(prompts, **settings)
    alone = [make_engine().run([request])[0].output_tokens for request in requests]
    assert answers(make_engine().run(requests)) == alone
    assert answers(make_engine(max_rows=3, step_tokens=11).run(requests[::-1])) == alone[::-1]
    reseeded = [Request(r.request_id, r.prompt, SamplingParameters(seed=5, **settings)) for r in requests]
    assert answers(make_engine().run(reseeded)) != alone


def test_every_stop_id_ends_a_row(make_engine, prompts):
    free = make_engine(stop_token_ids=()).run(requests_of(prompts, max_tokens=12))
    first, second = free[0].output_tokens[3], free[1].output_tokens[5]
    stopped = make_engine(stop_token_ids=(first, second)).run(requests_of(prompts, max_tokens=12))
    for before, after in zip(free, stopped, strict=True):
        cut = next((i for i, token in enumerate(before.output_tokens) if token in (first, second)), None)
        assert after.output_tokens == before.output_tokens[:cut]
        assert after.finish_reason is (FinishReason.LENGTH if cut is None else FinishReason.STOP)


def test_abort_leaves_a_clean_engine(make_engine, prompts, plain_answers):
    engine = make_engine(step_tokens=20)
    engine.submit(requests_of(prompts))
    for _ in range(5):
        engine.step()
    dropped = engine.abort()
    engine.check()
    assert dropped
    assert not engine.has_work
    assert answers(run_checked(engine, requests_of(prompts))) == plain_answers


def test_the_stop_id_is_not_part_of_the_answer(make_engine, prompts):
    for completion in make_engine().run(requests_of(prompts, max_tokens=30)):
        assert STOP_ID not in completion.output_tokens


def test_case_87_many_questions_and_many_documents(make_engine):
    """One document with many questions is read once and its steps are full; documents with nothing in common cost
    no work beside their own. benchmarks/grouping.py measures both with 10,000 rows."""
    random = np.random.default_rng(2)
    document = random.integers(2, 60, 100, dtype=np.int32)
    questions = [
        np.concatenate([document, [2 + row % 50, 2 + row // 50], random.integers(2, 60, 5)]).astype(np.int32)
        for row in range(300)
    ]
    engine = make_engine(kv_pages=400, stop_token_ids=(), max_rows=64)
    completions = run_checked(engine, requests_of(questions, max_tokens=6))
    computed = sum(completion.computed_tokens for completion in completions)
    assert computed == sum(first_positions(sorted(questions, key=lambda prompt: prompt.tolist())))
    assert computed < 100 + 300 * 7
    assert engine.statistics.steps < 2 * 300 * 6 / 64
    alone = [np.concatenate([[2 + row % 50], random.integers(2, 60, 30)]).astype(np.int32) for row in range(50)]
    engine = make_engine(kv_pages=400)
    completions = run_checked(engine, requests_of(alone, max_tokens=3))
    assert sum(completion.cached_tokens for completion in completions) == 0
    assert engine.statistics.shared_items == 0
