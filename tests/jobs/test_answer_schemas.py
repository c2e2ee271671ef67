"""Schemas of a job: compiled by the settings, and what happens to what decoding can't enforce."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import JobFileError
from jobs.job_file import load_job
from jobs.run import StopRequest, prepare, run_job
from jobs.run_requests import RETRY_TEMPERATURE, RowRequests
from jobs.store import AnswerStore
from tests.job_fixtures import sample_rows

TAGS = {
    "type": "object",
    "properties": {
        "tags": {
            "type": "array", "items": {"type": "string", "maxLength": 1, "pattern": "^[ab]$"},
            "minItems": 2, "maxItems": 2, "uniqueItems": True,
        },
    },
    "required": ["tags"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture
def tags_job(make_job, tmp_path: Path):
    def make(**answer: Any):
        (tmp_path / "tags.json").write_text(json.dumps(TAGS))
        return load_job(make_job(sample_rows(2, 4), answer={"schema": "tags.json", **answer}))

    return make


def test_a_schema_that_cannot_be_enforced_is_refused_by_name(tags_job) -> None:
    with pytest.raises(JobFileError, match=r"'uniqueItems' at /properties/tags .*--lenient.*docqa schema tags.json"):
        prepare(tags_job())


def test_lenient_checks_after_and_draws_twice(tags_job, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tags_job(lenient=True)
    requests = []
    request = RowRequests._request

    def recorded(self, index, planned, hold):
        made = request(self, index, planned, hold)
        requests.append((index, made.sampling))
        return made

    monkeypatch.setattr(RowRequests, "_request", recorded)
    outcome = run_job(job, command="test", stop=StopRequest())
    assert outcome.run.rows_ok + outcome.run.rows_failed == 8
    first, again = dict(requests[:8]), requests[8:]
    assert len(first) == 8
    assert len({index for index, _ in again}) == len(again)  # once more, not more often
    for index, sampling in again:
        assert sampling.temperature == RETRY_TEMPERATURE
        assert sampling.seed != first[index].seed
    with AnswerStore(outcome.database, read_only=True).reading() as connection:
        rows = connection.execute("select status, answer, error from answers").fetchall()
    for status, answer, error in rows:
        assert status in ("ok", "schema_violation")
        if status == "ok":
            one, other = json.loads(answer)["tags"]
            assert one != other
        else:
            assert "non-unique" in error or "unique" in error
    failed = sum(status != "ok" for status, _, _ in rows)
    assert outcome.run.rows_failed == failed <= len(again)
    assert again, "the tiny model repeats itself somewhere"


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_the_backend_can_be_chosen(make_job, backend: str) -> None:
    prepared = prepare(load_job(make_job(sample_rows(1, 2), answer={"backend": backend})))
    assert {row.schema.grammar.backend for row in prepared.plan.rows} == {backend}
    with pytest.raises(JobFileError, match=r"answer\.backend"):
        load_job(make_job(None, answer={"backend": "outlines"}))


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_an_unbounded_string_ends_within_max_tokens(make_job, tmp_path: Path, backend: str) -> None:
    schema = {"type": "object", "properties": {"quote": {"type": "string"}}, "required": ["quote"]}
    (tmp_path / "open.json").write_text(json.dumps(schema))
    path = make_job(sample_rows(2, 3), answer={"schema": "open.json", "backend": backend}, sampling={"max_tokens": 30})
    outcome = run_job(load_job(path), command="test", stop=StopRequest())
    assert (outcome.run.rows_ok, outcome.run.rows_failed) == (6, 0)


def test_what_compiling_took(make_job, tmp_path: Path) -> None:
    """NEEDS.md, case 48: each distinct schema once, for the plan and the report."""
    (tmp_path / "other.json").write_text('{"type": "integer", "maximum": 77}')
    same = json.dumps({"type": "integer", "maximum": 77})
    path = make_job(sample_rows(1, 2))
    path.write_text(path.read_text() + '\n[answer.schemas]\nnumber = "other.json"\n')
    prepared = prepare(load_job(path))
    prepared.schemas.of_row(same)
    first = prepared.schemas.compiled()
    assert [entry["schema"] for entry in first] == ["number", "verdict"]
    assert all(entry["backend"] == "index" and entry["seconds"] >= 0 for entry in first)
    again = prepare(load_job(path)).schemas.compiled()
    assert [entry["from_disk"] for entry in again] == [True, True]
