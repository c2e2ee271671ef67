"""The KV pages that are expected, against a count by hand and the pages that real runs hold."""

from dataclasses import replace
from itertools import pairwise

import pytest

from engine.kv_memory import kv_page_bytes
from jobs.job_file import load_job
from jobs.kv_forecast import expected_peak_pages
from jobs.model import choose_dtype, engine_settings, load_decoder, make_engine_of
from jobs.observe import StopRequest
from jobs.prepare import prepare
from jobs.run import run_job
from tests.job_fixtures import sample_rows
from tests.jobs.test_after import program_rows


def held_pages(rows, page_size=16):
    """Pages of rows that run at the same time, position by position: the prefix tree's and each row's own answer's."""
    tree = set()
    own = 0
    for row in rows:
        ids = tuple(row.prompt)
        tree.update((ids[: page * page_size], ids[page * page_size : (page + 1) * page_size])
                    for page in range(-(-len(ids) // page_size)))  # fmt: skip
        own += -(-(len(ids) + row.max_output_tokens - 1) // page_size) - -(-len(ids) // page_size)
    return len(tree) + own


@pytest.mark.parametrize("max_rows", [1, 3, 7, 64])
def test_the_peak_is_that_of_the_neighbours_that_need_most(make_job, max_rows):
    plan = prepare(load_job(make_job(sample_rows()), [])).plan
    rows = plan.rows
    by_hand = max(held_pages(rows[first : first + max_rows]) for first in range(len(rows)))
    assert expected_peak_pages(plan, 16, max_rows=max_rows) == by_hand


def test_nothing_runs_and_nothing_is_held(make_job):
    plan = prepare(load_job(make_job(sample_rows()), [])).plan
    assert expected_peak_pages(replace(plan, rows=[]), 16) == 0


def test_a_row_that_is_asked_several_times_is_as_many_requests(make_job):
    plan = prepare(load_job(make_job(sample_rows()), [])).plan
    rows = [replace(row, samples=3) for row in plan.rows]
    three_times = [row for row in rows for _ in range(3)]
    # The page in which the prompt ends is written on by each answer, so the second and third have a copy of it.
    by_hand = max(
        held_pages(window) + sum(row is before and row.prompt_tokens % 16 > 0 for before, row in pairwise(window))
        for window in (three_times[first : first + 7] for first in range(len(three_times)))
    )
    assert expected_peak_pages(replace(plan, rows=rows), 16, max_rows=7) == by_hand


def test_rows_that_wait_for_answers_come_behind_the_others_on_their_document(make_job):
    plan = prepare(load_job(make_job(program_rows()), [])).plan
    assert (len(plan.rows), len(plan.dependents)) == (9, 6)
    without = expected_peak_pages(replace(plan, dependents=[]), 16)
    pages = [-(-(len(row.prefix) + row.reserve_tokens - 1) // 16) - len(row.prefix) // 16 for row in plan.dependents]
    assert expected_peak_pages(plan, 16) == without + sum(pages)
    alone = max(-(-(len(row.prefix) + row.reserve_tokens - 1) // 16) for row in plan.dependents)
    assert expected_peak_pages(replace(plan, rows=[]), 16, max_rows=1) == alone


@pytest.mark.parametrize("max_rows", [2, 8, 64])
def test_a_run_holds_no_more_than_is_expected(make_job, monkeypatch, max_rows):
    engines = []

    def make_engine(job, model, plan):
        dtype = choose_dtype(job.model.dtype, "cpu")
        settings = replace(engine_settings(job, model, plan, dtype, "cpu"), max_rows=max_rows)
        engines.append(make_engine_of(load_decoder(model, dtype, "cpu"), model, settings, dtype, "cpu"))
        return engines[-1]

    monkeypatch.setattr("jobs.run.make_engine", make_engine)
    path = make_job(sample_rows())
    job = load_job(path, [])
    expected = expected_peak_pages(prepare(job).plan, 16, max_rows=max_rows)
    assert run_job(job, command="test", stop=StopRequest()).run.rows_ok == 20
    held = engines[0].statistics.peak_pages
    assert 0.75 * expected <= held <= expected + max_rows  # a page may be copied where a row leaves a shared one


def test_the_smallest_pool_computes_everything_once_and_one_page_less_is_too_little(make_job):
    path = make_job(sample_rows(), sampling={"max_tokens": 9})
    prepared = prepare(load_job(path, []))
    page = kv_page_bytes(prepared.model.config, 16, 4)
    smallest = prepared.plan.pages_for_longest_row(16)
    for pages, fits in ((smallest, True), (smallest - 1, False)):
        settings = [f"engine.kv_memory={(pages + 1) * page}", f"output.database={pages}.duckdb"]
        run = run_job(load_job(path, settings), command="test", stop=StopRequest()).run
        assert (run.prompt_tokens == prepared.plan.prompt_tokens) == fits
        if fits:
            assert run.computed_tokens == prepared.plan.minimum_tokens
