"""Estimates of a run's time from the speeds of earlier ones, their error, and how a run measures itself.

No test here looks at a clock: speeds are made up, or read from what a run has recorded.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.forward_work import ForwardWork
from engine.request import Completion, FinishReason
from engine.step_record import StepRecord
from jobs import run_speed, time_estimate
from jobs.job_file import load_job
from jobs.observe import StopRequest
from jobs.prepare import prepare
from jobs.run import run_job
from jobs.run_speed import KEPT_RECORDS, RunSpeed, SpeedSetting, record_run_speed, run_speeds
from jobs.speed_meter import LONGER, SpeedMeter
from jobs.time_estimate import NEAR_FACTOR, RUNS_USED, PlannedWork, estimate_from, speed_setting
from tests.job_fixtures import sample_rows
from tests.jobs.test_after import program_rows

SETTING = SpeedSetting("a processor, 2 threads", "f" * 64, "auto", "auto", False)
WORK = ForwardWork(token_flops=1000, key_flops={0: 0})


def planned_work(rows=100, prompt_tokens=50_000, answers="verdict", most=96):
    return PlannedWork(answers, rows, rows, prompt_tokens * WORK.token_flops, 500.0, most)


def run_at(speed=1.0, rows=100, prompt_tokens=50_000, output_tokens=40, answers="verdict", setting=SETTING):
    """A run on a machine that computes 10,000 prompt tokens and 500 output tokens a second, times `speed`."""
    tokens = rows * output_tokens
    return RunSpeed(
        setting=setting, answers=answers, rows=rows, requests=rows, prompt_flops=prompt_tokens * 1000,
        prompt_seconds=prompt_tokens / 10_000 / speed, output_tokens=tokens, output_flops=tokens * 1000,
        output_seconds=tokens / 500 / speed, other_seconds=rows / 100 / speed, model_seconds=2 / speed,
    )  # fmt: skip


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCQA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_a_run_there_is_no_estimate(cache):
    assert time_estimate.time_estimate(planned_work(), WORK, SETTING) is None
    assert estimate_from(planned_work(), WORK, []) is None


def test_the_same_work_takes_the_same_time():
    found = estimate_from(planned_work(), WORK, [run_at()])
    assert (found.model_seconds, found.prompt_seconds, found.output_seconds, found.other_seconds) == (2, 5, 8, 1)
    assert (found.seconds, found.output_tokens, found.runs, found.error) == (16, 40, 1, None)


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(1, 2000), prompt_tokens=st.integers(1, 10**7), count=st.integers(2, 5))
def test_other_work_is_scaled_by_what_costs_time(rows, prompt_tokens, count):
    """Runs of one speed, however different, give the time of any other exactly, and no error."""
    sizes = [(50 * (place + 1), 30_000 * (place + 1)) for place in range(count)]
    speeds = [run_at(rows=size, prompt_tokens=tokens) for size, tokens in sizes]
    found = estimate_from(planned_work(rows, prompt_tokens), WORK, speeds)
    assert found.seconds == pytest.approx(run_at(rows=rows, prompt_tokens=prompt_tokens).seconds)
    assert found.error == pytest.approx(0, abs=1e-9)


def test_the_error_is_how_far_off_each_run_would_have_been():
    found = estimate_from(planned_work(), WORK, [run_at(1.0), run_at(2.0)])
    # From the fast one, 8 s would have been said of 16; from the slow one, 16 of 8.
    assert found.error == pytest.approx(1.0)
    assert found.seconds == pytest.approx(12.0)
    steady = estimate_from(planned_work(), WORK, [run_at(1.0), run_at(1.05), run_at(0.95)])
    assert 0 < steady.error < 0.1


def test_answers_of_another_length_count_in_the_error():
    found = estimate_from(planned_work(), WORK, [run_at(output_tokens=20), run_at(output_tokens=40)])
    assert found.error == pytest.approx((16 - 12) / 12)


def test_no_answer_is_expected_to_be_longer_than_it_may(cache):
    found = estimate_from(planned_work(most=10), WORK, [run_at(output_tokens=40)])
    assert (found.output_tokens, found.output_seconds) == (10, 2)


def test_the_newest_runs_with_the_same_answers_and_of_the_same_size_count(cache):
    for speed in (
        *(run_at(0.1) for _ in range(3)),  # old
        *(run_at(1.0) for _ in range(RUNS_USED)),
        run_at(7.0, answers="other"),
        run_at(8.0, rows=1, prompt_tokens=50_000 // (2 * NEAR_FACTOR)),
        run_at(9.0, setting=replace(SETTING, machine="another")),
        run_at(9.0, setting=replace(SETTING, dtype="float32")),
    ):
        record_run_speed(speed)
    found = time_estimate.time_estimate(planned_work(), WORK, SETTING)
    assert (found.seconds, found.runs, found.same_answers) == (pytest.approx(16), RUNS_USED, True)
    other = time_estimate.time_estimate(planned_work(answers="new"), WORK, SETTING)
    assert (other.runs, other.same_answers) == (RUNS_USED, False)
    large = time_estimate.time_estimate(planned_work(rows=10**6, prompt_tokens=10**9), WORK, SETTING)
    assert large.runs == RUNS_USED  # none is near in size, so all count


def test_records_are_kept_read_and_trimmed(cache):
    for number in range(2 * KEPT_RECORDS + 1):
        record_run_speed(run_at(rows=number + 1))
    speeds = run_speeds(SETTING)
    assert [speed.rows for speed in speeds[-2:]] == [2 * KEPT_RECORDS, 2 * KEPT_RECORDS + 1]
    assert KEPT_RECORDS <= len(speeds) <= 2 * KEPT_RECORDS
    assert all(speed.recorded_at for speed in speeds)
    [path] = (cache / "run_speeds").iterdir()
    with path.open("a") as file:
        file.write('{"rows": 1}\n[]\nnull\n{"rows": 2, "setting"')
    assert run_speeds(SETTING) == speeds  # what is no record is passed over


def test_a_cache_that_cannot_be_written_ends_no_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DOCQA_CACHE", str(tmp_path / "file"))
    record_run_speed(run_at())
    assert run_speeds(SETTING) == []
    monkeypatch.setattr(run_speed, "cache_folder", lambda: (_ for _ in ()).throw(run_speed.ModelError("no home")))
    record_run_speed(run_at())
    assert run_speeds(SETTING) == []


def step(prompt_tokens=0, output_tokens=0, running=1, prompt_seconds=0.0, output_seconds=0.0):
    return StepRecord(
        prompt_tokens, prompt_tokens * 1000, output_tokens, running, 1, prompt_seconds, output_seconds, 0.0
    )


def ended(tokens, reason=FinishReason.STOP):
    return Completion(0, reason, [1] * tokens, 500)


def test_a_meter_says_what_is_left_at_the_speed_so_far():
    meter = SpeedMeter(planned_work(rows=4, prompt_tokens=1000), WORK, 10.0)
    assert meter.seconds_left(0.0) is None
    meter.add_step(None)
    meter.add_step(step(prompt_tokens=500, prompt_seconds=1.0))
    assert meter.seconds_left(1.0) is None  # no output yet, so its speed is not known
    meter.add_step(step(output_tokens=8, running=4, output_seconds=2.0))
    # 500 prompt tokens at 500 a second, and 32 output tokens at 4 a second.
    assert (meter.prompt_tokens, meter.output_tokens, meter.output_tokens_total) == (500, 8, 40)
    assert meter.seconds_left(3.0) == pytest.approx(1 + 8)
    assert meter.seconds_left(6.0) == pytest.approx(2 * (1 + 8))  # half the time went elsewhere


def test_without_earlier_runs_a_meter_waits_for_the_first_answer():
    meter = SpeedMeter(planned_work(rows=4, prompt_tokens=1000), WORK, None)
    meter.add_step(step(prompt_tokens=1000, output_tokens=8, running=4, prompt_seconds=1.0, output_seconds=2.0))
    assert (meter.output_tokens_total, meter.seconds_left(3.0)) == (None, None)
    meter.add_completion(ended(0, FinishReason.TOO_LONG))
    assert meter.output_tokens_total is None  # it never ran
    meter.add_completion(ended(2))
    assert meter.output_tokens_total == 2 + 3 * (LONGER * 2)  # those that go on are as long already
    meter.add_step(step(output_tokens=30, running=3, output_seconds=1.0))
    assert meter.output_tokens_total == 2 + 3 * (LONGER * 12)


def test_time_is_left_while_answers_go_on_that_are_longer_than_those_of_before():
    meter = SpeedMeter(planned_work(rows=4, prompt_tokens=500), WORK, 10.0)
    meter.add_step(step(prompt_tokens=500, output_tokens=80, running=4, prompt_seconds=1.0, output_seconds=2.0))
    assert meter.output_tokens_total == 4 * LONGER * 20
    assert meter.seconds_left(3.0) == pytest.approx(1.0)
    meter.add_step(step(output_tokens=280, running=4, output_seconds=7.0))
    assert meter.output_tokens_total == 4 * 96  # no answer may be longer
    meter.add_step(step(output_tokens=8, running=2, output_seconds=1.0))
    for tokens in (92, 92):
        meter.add_completion(ended(tokens))
    assert meter.output_tokens_total == 2 * 92 + 2 * 96
    waiting = SpeedMeter(planned_work(rows=4, prompt_tokens=500), WORK, 10.0)
    waiting.add_step(step(output_tokens=40, running=1, output_seconds=1.0))
    waiting.add_completion(ended(40))
    assert waiting.output_tokens_total == 40 + 3 * (10 + 40 + 10 + 10) / 4  # one answer of four counts a quarter


def test_a_run_records_what_it_did_and_the_next_plan_uses_it(cache, make_job, docqa_plan):
    path = make_job(sample_rows())
    assert docqa_plan(path)["time_estimate"] is None
    first = run_job(load_job(path, []), command="test", stop=StopRequest()).run
    job = load_job(path, ["output.database=second.duckdb"])
    prepared = prepare(job)
    setting = speed_setting(job, prepared.model)
    [speed] = run_speeds(setting)
    assert (speed.rows, speed.requests, speed.output_tokens) == (20, 20, first.output_tokens)
    work = ForwardWork.of(prepared.model.config)
    planned = PlannedWork.of(prepared.plan, work, job.sampling.max_tokens)
    assert (speed.answers, speed.prompt_flops) == (planned.answers, planned.prompt_flops)
    steps = speed.prompt_seconds + speed.output_seconds
    assert 0 < steps <= first.seconds
    assert speed.other_seconds == pytest.approx(first.seconds - steps)
    assert 0 < speed.model_seconds < first.load_seconds
    found = docqa_plan(path, "--set", "output.database=second.duckdb")["time_estimate"]
    # The same work at the same speed: its time again, whatever that was.
    assert found["prompt_seconds"] == pytest.approx(speed.prompt_seconds)
    assert found["output_seconds"] == pytest.approx(speed.output_seconds, rel=0.02)  # all prompts taken for the mean
    assert (found["runs"], found["error"], found["same_answers"]) == (1, None, True)
    assert found["output_tokens"] == first.output_tokens
    parts = ("prepare_seconds", "model_seconds", "prompt_seconds", "output_seconds", "other_seconds")
    assert found["seconds"] == pytest.approx(sum(found[part] for part in parts))
    run_job(job, command="test", stop=StopRequest())
    third = docqa_plan(path, "--set", "output.database=third.duckdb")["time_estimate"]
    assert third["runs"] == 2
    assert third["error"] is not None
    done = docqa_plan(path)["time_estimate"]  # nothing is left to do
    assert done["seconds"] == done["prepare_seconds"]


def test_samples_and_rows_that_wait_count_as_work(make_job):
    plan = prepare(load_job(make_job(sample_rows()), [])).plan
    once = PlannedWork.of(plan, WORK, 60)
    assert (once.rows, once.requests, once.prompt_flops) == (20, 20, 1000 * plan.minimum_tokens)
    twice = PlannedWork.of(replace(plan, rows=[replace(row, samples=2) for row in plan.rows]), WORK, 60)
    assert (twice.rows, twice.requests, twice.prompt_flops) == (20, 40, once.prompt_flops)
    plan = prepare(load_job(make_job(program_rows()), [])).plan
    waiting = PlannedWork.of(plan, WORK, 60)
    alone = PlannedWork.of(replace(plan, dependents=[]), WORK, 60)
    assert (waiting.rows, waiting.requests, alone.rows, alone.requests) == (15, 15, 9, 9)
    assert waiting.prompt_flops > alone.prompt_flops
    assert waiting.answers == alone.answers


def test_a_run_that_did_not_finish_is_no_measure(cache, make_job):
    path = make_job(sample_rows(), run={"time_budget": 1e-9})
    outcome = run_job(load_job(path, []), command="test", stop=StopRequest())
    assert outcome.run.status == "out_of_time"
    assert not (cache / "run_speeds").exists()


def test_an_estimate_beyond_the_time_budget_is_warned_of(cache, make_job, docqa_plan):
    path = make_job(sample_rows())
    run_job(load_job(path, []), command="test", stop=StopRequest())
    settings = ("--set", "output.database=b.duckdb", "--set", "run.time_budget=0.001")
    [warning] = docqa_plan(path, *settings)["warnings"]
    assert "run.time_budget is 0 s: it will stop there" in warning
    assert docqa_plan(path, "--set", "output.database=b.duckdb", "--set", "run.time_budget=9h")["warnings"] == []


@pytest.fixture
def docqa_plan(capsys):
    """docqa_plan(job, option, ...) -> what `docqa plan --json` prints."""
    from docqa.plan import command

    def plan(path, *options):
        command.main([str(path), "--json", *options], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    return plan
