"""What a run measures beside its rows: steps in buckets, segments, and why tokens were computed again."""

import json
import shutil

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.step_record import StepRecord
from jobs.job_file import load_job
from jobs.observe import StopRequest
from jobs.run import run_job
from jobs.step_summary import StepSummary, merged_buckets
from jobs.store import AnswerStore
from tests.job_fixtures import sample_rows, write_job
from tests.jobs.test_identical_rows import TAGS, repeated_rows

SUMMED = ("prompt_tokens", "output_tokens", "prompt_seconds", "output_seconds", "mask_seconds")


def run(path):
    return run_job(load_job(path), command="test", stop=StopRequest())


def query(path, text, *values):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(text, list(values)).fetchall()


counts = st.integers(0, 1000)
records = st.builds(
    StepRecord, prompt_tokens=counts, prompt_flops=counts, output_tokens=counts, running_rows=counts, pages_used=counts,
    prompt_seconds=counts, output_seconds=counts, mask_seconds=counts,
)  # fmt: skip


@given(st.lists(records, max_size=70), st.integers(2, 9), st.integers(1, 5))
def test_buckets_lose_nothing_and_are_few(steps, most, together):
    summary = StepSummary(most_buckets=most)
    for number, step in enumerate(steps):
        summary.add(step, 3.0 * (number + 1))
    buckets = summary.buckets
    for buckets in (summary.buckets, merged_buckets(summary.buckets, together)):
        assert len(buckets) <= most
        assert sum(bucket.steps for bucket in buckets) == len(steps)
        for name in SUMMED:
            assert sum(getattr(bucket, name) for bucket in buckets) == sum(getattr(step, name) for step in steps)
        assert max((bucket.kv_pages for bucket in buckets), default=0) == max((s.pages_used for s in steps), default=0)
        edges = [bucket.started_seconds for bucket in buckets] + [3.0 * len(steps)]
        for bucket, start, end in zip(buckets, edges, edges[1:], strict=False):
            assert (start, start + bucket.seconds) == (bucket.started_seconds, end)
    assert not steps or len(summary.buckets) >= min(len(steps), most // 2)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory, tiny_model_folder):
    outcome = run(write_job(tmp_path_factory.mktemp("run"), tiny_model_folder, sample_rows(3, 4)))
    assert outcome.exit_status == 0, outcome.run.error
    return outcome


@pytest.fixture
def database(finished_run, tmp_path):
    """A database of its own, and its run."""
    return shutil.copy(finished_run.database, tmp_path / "answers.duckdb"), finished_run.run


def test_a_run_stores_what_the_engine_measured(database):
    path, record = database
    statistics = json.loads(record.statistics)
    assert statistics == json.loads(AnswerStore(path, read_only=True).run(record.run_id).statistics)
    assert statistics["prompt_tokens"] == record.computed_tokens == record.minimum_tokens
    assert statistics["output_tokens"] == record.output_tokens
    assert 0 < statistics["kv_pages_smallest"] <= statistics["kv_pages_at_peak"] <= statistics["kv_pages"]
    assert statistics["kv_page_bytes"] == 2 * 2 * 2 * 8 * 16 * 4  # keys and values, layers, heads, size, page, fp32
    seconds = sum(statistics[name] for name in ("prompt_seconds", "output_seconds", "mask_seconds"))
    assert 0 < seconds <= record.seconds
    [(steps, prompt, rows)] = query(
        path, "SELECT sum(steps), sum(prompt_tokens), max(running_rows) FROM run_steps WHERE run_id = ?", record.run_id
    )
    assert (steps, prompt) == (statistics["steps"], statistics["prompt_tokens"])
    assert 1 < rows <= 12


def test_segments_add_up_to_the_prompts(database):
    path, record = database
    rows = query(path, "SELECT prompt_segments, prompt_tokens, cached_tokens, minimum_tokens FROM answers")
    expected = {}
    for segments, prompt, cached, minimum in rows:
        start = 0
        for name, part in json.loads(segments).items():
            tokens = part["prompt_tokens"]
            sums = expected.setdefault(name, [0, 0, 0, 0, 0])
            places = range(start, start + tokens)
            reused = sum(place < cached for place in places)
            first = sum(place >= prompt - minimum for place in places)
            for column, value in enumerate((1, tokens, first, tokens - reused, reused)):
                sums[column] += value
            start += tokens
        assert start == prompt
    found = query(path, "SELECT * EXCLUDE (run_id, saved_flops) FROM reuse_by_segment")
    assert [name for name, *_ in found] == ["instructions", "document", "question"]
    assert {name: sums for name, *sums in found} == expected
    assert sum(sums[4] for sums in expected.values()) == record.cached_tokens > 0


def test_a_second_draw_counts_on_top(make_job, tmp_path):
    """Tags that are equal break the schema, which can't be enforced, so some rows are asked once more."""
    (tmp_path / "tags.json").write_text(json.dumps(TAGS))
    settings = {"answer": {"schema": "tags.json", "lenient": True}, "run": {"max_failures": "100%"}}
    record = run(make_job(repeated_rows(), **settings)).run
    database = tmp_path / "answers.duckdb"
    assert record.computed_tokens == record.minimum_tokens
    again = query(
        database,
        "SELECT computed_tokens, minimum_tokens, CAST(repeated_tokens->>'asked_again' AS BIGINT) AS again, "
        "ttft_seconds, latency_seconds FROM answers WHERE again IS NOT NULL",
    )
    assert any(tokens > 0 for _, _, tokens, *_ in again)
    assert all(computed == minimum for computed, minimum, *_ in again)
    assert all(0 < ttft <= latency for *_, ttft, latency in again)
    statistics = json.loads(record.statistics)
    assert statistics["prompt_tokens"] == record.computed_tokens + sum(tokens for *_, tokens, _, _ in again)
    assert AnswerStore(database, read_only=True).check() == []


def test_a_row_that_never_ran_gives_its_minimum_to_the_next(make_job, tmp_path):
    """The longest row does not fit into the KV memory; what others share with it is theirs to compute first."""
    document = "A long document that all questions are about. " * 4
    rows = [
        {"doc_id": "d", "document": document, "question_id": f"q{n}", "question": str(n) + "?" * (1 if n else 200)}
        for n in range(4)
    ]
    page_bytes = 2 * 2 * 2 * 8 * 16 * 4
    path = make_job(rows, engine={"kv_memory": f"{26 * page_bytes}"}, sampling={"max_tokens": 40})
    record = run(path).run
    database = tmp_path / "answers.duckdb"
    assert query(database, "SELECT question_id, status FROM answers WHERE status = 'too_long'") == [("q0", "too_long")]
    assert record.computed_tokens == record.minimum_tokens > len(document)
    assert AnswerStore(database, read_only=True).check() == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE answers SET repeated_tokens = '{\"evicted\":3}' WHERE question_id = 'q1'", "by a known cause"),
        ("UPDATE answers SET repeated_tokens = '{\"moon\":0}' WHERE question_id = 'q1'", "by a known cause"),
        ("UPDATE answers SET repeated_tokens = '{\"asked_again\":3}' WHERE question_id = 'q1'", "rows' computed"),
        (
            'UPDATE answers SET prompt_segments = \'{"document":{"prompt_tokens":3,"minimum_tokens":0,'
            '"cached_tokens":0,"saved_flops":0}}\' WHERE question_id = \'q2\'',
            "segments sum up to [3, 0, 0]",
        ),
        ("UPDATE run_steps SET output_tokens = output_tokens + 1", "the steps' output_tokens are"),
        ("UPDATE run_steps SET mask_seconds = mask_seconds + 9", "parts of a step's seconds"),
        ("UPDATE run_steps SET seconds = seconds + 999", "its steps took"),
        ("UPDATE run_steps SET kv_pages = 100000", "more KV pages than its peak"),
        ("UPDATE runs SET statistics = json_merge_patch(statistics, '{\"prompt_tokens\":1}')", "statistics' 1"),
    ],
)
def test_the_check_finds_what_does_not_agree(database, statement, said):
    path, _ = database
    assert AnswerStore(path, read_only=True).check() == []
    with duckdb.connect(str(path)) as connection:
        connection.execute(statement)
    found = AnswerStore(path, read_only=True).check()
    assert any(said in sentence for sentence in found), found
