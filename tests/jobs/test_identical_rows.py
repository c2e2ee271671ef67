"""Rows that ask the model the very same are computed once and filed under each key (decided by the plan)."""

import hashlib
import json
from dataclasses import asdict

import pytest

from engine.engine import Engine
from jobs.job_file import load_job
from jobs.run import prepare
from tests.job_fixtures import sample_rows
from tests.jobs.test_answer_schemas import TAGS
from tests.jobs.test_run import assert_sound, query, run


@pytest.fixture
def requests_made(monkeypatch):
    """The ids of the requests that the engine gets."""
    made = []
    submit = Engine.submit

    def counted(engine, requests, **options):
        made.extend(request.request_id for request in requests)
        return submit(engine, requests, **options)

    monkeypatch.setattr(Engine, "submit", counted)
    return made


def repeated_rows():
    """Each of 2 x 3 rows under four keys: another doc_id, another question_id, both."""
    return [
        row | {"doc_id": f"{row['doc_id']}-{copy // 2}", "question_id": f"{row['question_id']}-{copy % 2}"}
        for copy in range(4)
        for row in sample_rows(2, 3)
    ]


def test_identical_rows_are_computed_once_and_filed_under_each_key(make_job, requests_made):
    outcome = run(make_job(repeated_rows()))
    record = outcome.run
    assert (outcome.exit_status, record.rows_total, record.rows_ok) == (0, 24, 24)
    assert len(requests_made) == 6
    filed = query(
        outcome.database,
        "SELECT d.characters, question, count(DISTINCT answer), count(DISTINCT doc_id || question_id),"
        " count(*) FILTER (cached_tokens = prompt_tokens AND computed_tokens = 0), min(output_tokens) > 0"
        " FROM answers JOIN documents d USING (document_hash) GROUP BY ALL",
    )
    assert len(filed) == 6
    assert {row[2:] for row in filed} == {(1, 4, 3, True)}
    assert record.computed_tokens == record.minimum_tokens
    assert record.cached_tokens + record.computed_tokens == record.prompt_tokens
    assert_sound(outcome.database)
    assert run(make_job(None)).run.rows_total == 24
    assert len(requests_made) == 6  # nothing was left to ask


def test_rows_with_seeds_of_their_own_or_other_schemas_are_not_identical(make_job, requests_made):
    run(make_job(repeated_rows()), ["sampling.temperature=1.0"])
    assert len(requests_made) == 24
    requests_made.clear()
    rows = [row | {"schema": "boolean" if "-1" in row["doc_id"] else None} for row in repeated_rows()]
    outcome = run(make_job(rows), ["output.database=other.duckdb"])
    assert len(requests_made) == 12
    assert query(outcome.database, "SELECT schema_name, count(*) FROM answers GROUP BY ALL ORDER BY 1") == [
        ("boolean", 12),
        ("verdict", 12),
    ]


def test_the_plan_says_how_many_rows_are_identical(make_job):
    plan = prepare(load_job(make_job(repeated_rows()))).plan
    assert plan.rows_same == 18
    for place, planned in enumerate(plan.rows):
        if planned.same_as is not None:
            original = plan.rows[planned.same_as]
            assert planned.same_as < place
            assert original.same_as is None
            assert planned.prompt.tolist() == original.prompt.tolist()
            assert planned.minimum_tokens == 0


def test_the_digest_is_that_of_the_whole_request(make_job):
    """Its form decides what counts as answered, so it must not change without DIGEST_VERSION."""
    prepared = prepare(load_job(make_job(repeated_rows()[:3])))
    for planned in prepared.plan.rows:
        sampling, fingerprint = asdict(prepared.job.sampling), prepared.model.fingerprint
        del sampling["samples"], sampling["choose"]  # only in the identity of rows that are asked several times
        row = planned.row
        identity = [1, row.doc_id, row.question_id, fingerprint, sampling, planned.schema.text]
        assert planned.digest == hashlib.sha256(json.dumps(identity).encode() + planned.prompt.tobytes()).hexdigest()


def test_a_second_draw_is_each_rows_own(make_job, requests_made, tmp_path):
    """Tags that are equal break the schema, which can't be enforced; the second draw has a seed of the row's key."""
    (tmp_path / "tags.json").write_text(json.dumps(TAGS))
    settings = {"answer": {"schema": "tags.json", "lenient": True}, "run": {"max_failures": "100%"}}
    outcome = run(make_job(repeated_rows(), **settings))
    first, again = requests_made[:6], requests_made[6:]
    assert len(set(first)) == 6
    assert again, "the tiny model repeats itself somewhere"
    assert len(again) == len(set(again))
    rows = prepare(load_job(make_job(None, **settings), ["output.database=none.duckdb"])).plan.rows
    originals = [place if rows[place].same_as is None else rows[place].same_as for place in range(24)]
    broken = {originals[place] for place in again}
    assert sorted(again) == [place for place in range(24) if originals[place] in broken]  # all rows of each
    assert outcome.run.rows_ok + outcome.run.rows_failed == 24
    assert_sound(outcome.database)


def test_identical_rows_that_do_not_fit_are_all_too_long(make_job):
    outcome = run(make_job(repeated_rows(), run={"max_failures": "100%"}), ["engine.kv_memory=20KiB"])
    assert query(outcome.database, "SELECT DISTINCT status FROM answers") == [("too_long",)]
    assert query(outcome.database, "SELECT count(*) FROM answers") == [(24,)]
    assert_sound(outcome.database)
