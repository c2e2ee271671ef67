"""What the next run takes on: new, changed and failed rows, and nothing that is answered (cases 64, 66, 71 and 74)."""

import json

import duckdb
import pytest

from jobs import identity
from jobs.job_file import load_job
from jobs.journal import Journal, journal_path
from jobs.resume import AnswerHistory, Selection
from jobs.run import Observer, StopRequest, prepare, run_job
from jobs.store import AnswerRecord, AnswerStore, RunRecord
from tests.job_fixtures import SCHEMA, sample_rows, write_rows


def run(path, overrides=(), **options):
    options = {"stop": StopRequest(), **options}
    return run_job(load_job(path, overrides), command="test", **options)


def plan(path, overrides=(), select=Selection.UNANSWERED):
    return prepare(load_job(path, overrides), select=select).plan


def query(database, sql):
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def counts(found):
    return found.rows_new, found.rows_changed, found.rows_failed_before, found.rows_done, found.rows_gone


def test_exactly_what_changed_runs_again_and_the_plan_says_why(make_job, tmp_path, monkeypatch):
    """Case 64."""
    rows = sample_rows()
    path = make_job(rows)
    assert counts(plan(path)) == (20, 0, 0, 0, 0)
    run(path)
    unchanged = plan(path)
    assert counts(unchanged) == (0, 0, 0, 20, 0)
    assert unchanged.changed_by == {}
    assert (unchanged.rows, unchanged.answered_rows, unchanged.total_rows) == ([], 20, 20)
    # What can't change an answer changes nothing.
    for setting in ("engine.page_size=32", "engine.step_tokens=40", "run.max_failures=1", "engine.kv_memory=1GiB"):
        assert counts(plan(path, [setting])) == (0, 0, 0, 20, 0)

    def changed(expected_rows, expected_parts, overrides=()):
        found = plan(path, overrides)
        assert found.rows_changed == len(found.rows) == expected_rows
        assert found.rows_done == 20 - expected_rows
        assert found.changed_by == dict.fromkeys(expected_parts, expected_rows)

    for setting in ("temperature=0.5", "max_tokens=61", "seed=3", "top_p=0.5", "top_k=7"):
        changed(20, ["sampling"], [f"sampling.{setting}"])
    changed(20, ["prompt"], ["prompt.system=Say."])
    changed(20, ["prompt"], ["prompt.question=Q: {{ question }}"])
    changed(20, ["prompt", "sampling"], ["prompt.system=Say.", "sampling.seed=3"])
    changed(20, ["model"], ["model.dtype=bfloat16"])
    (tmp_path / "verdict.json").write_text(json.dumps({**SCHEMA, "title": "Verdict"}))
    changed(20, ["schema"])
    (tmp_path / "verdict.json").write_text(json.dumps(SCHEMA))
    with monkeypatch.context() as patch:
        patch.setattr(identity, "_backend_version", lambda backend: "99.0")
        changed(20, ["engine"])
        patch.setattr(identity, "DIGEST_VERSION", 2)
        changed(20, ["engine"])

    other = [dict(row) for row in rows]
    other[3]["question"] += " Now?"
    write_rows(tmp_path / "rows.parquet", other)
    changed(1, ["question"])
    other = [{**row, "document": row["document"] + ("More." if row["doc_id"] == "d2" else "")} for row in rows]
    write_rows(tmp_path / "rows.parquet", other)
    changed(5, ["document"])
    write_rows(tmp_path / "rows.parquet", [{**row, "topic": "new column"} for row in rows])
    changed(0, [])
    write_rows(tmp_path / "rows.parquet", rows[::-1])
    changed(0, [])
    monkeypatch.setattr("jobs.model.JobModel.fingerprint", "0" * 64)
    changed(20, ["model"])


def test_a_column_that_a_template_uses_counts(make_job, tmp_path):
    rows = [{**row, "hint": "a", "note": "b"} for row in sample_rows(1, 3)]
    path = make_job(rows, prompt={"question": "{{ question }} ({{ extra.hint }})"})
    run(path)
    write_rows(tmp_path / "rows.parquet", [{**rows[0], "hint": "z"}, {**rows[1], "note": "z"}, rows[2]])
    found = plan(path)
    assert counts(found) == (0, 1, 0, 2, 0)
    assert found.changed_by == {"unknown": 1}


def test_input_replaced_between_a_stop_and_the_next_run(make_job, tmp_path):
    """Case 74: rows changed, removed and added. Case 71: the next run takes everything new, however old it is."""
    rows = sample_rows()
    path = make_job(rows, engine={"step_tokens": 64})
    stop = StopRequest()

    def stop_in_the_middle(progress):
        if progress.rows_done >= 8:
            stop.request(15)

    first = run(path, stop=stop, observer=Observer(on_progress=stop_in_the_middle))
    done = {tuple(key) for key in query(first.database, "SELECT doc_id, question_id FROM answers")}
    assert 8 <= len(done) < 20
    answered = [row for row in rows if (row["doc_id"], row["question_id"]) in done]
    changed, kept = answered[:2], answered[5:]  # three are removed
    pending = [row for row in rows if row not in answered]
    added = [{**rows[0], "question_id": f"new{number}", "question": f"And {number}?"} for number in range(4)]
    others = [{**row, "question": row["question"] + " Really?"} for row in changed]
    write_rows(tmp_path / "rows.parquet", [*others, *kept, *pending, *added])
    found = plan(path)
    assert counts(found) == (len(pending) + 4, 2, 0, len(kept), 3)
    assert found.changed_by == {"question": 2}
    second = run(path)
    assert (second.run.rows_reused, second.run.rows_ok) == (len(kept), len(pending) + 6)
    assert len(query(second.database, "FROM answers")) == len(done) + len(pending) + 6
    assert counts(plan(path)) == (0, 0, 0, 21, 3)
    assert AnswerStore(second.database, read_only=True).check() == []


def test_retry_takes_the_failed_rows_alone_and_keeps_the_history(make_job, tmp_path):
    """Case 66: failed rows run again with a changed limit; good ones and new ones are left alone."""
    rows = sample_rows(2, 4)
    path = make_job(rows)
    run(path, ["input.documents=rows.parquet"])
    more = [{**row, "doc_id": f"more{row['doc_id']}"} for row in rows[:3]]
    write_rows(tmp_path / "rows.parquet", [*rows, *more])
    cut = run(path, ["sampling.max_tokens=20", "run.max_failures=100%"], select=Selection.UNANSWERED)
    # The eight answered rows were asked anew too, as max_tokens is part of a request; all eleven were cut.
    assert (cut.run.rows_ok, cut.run.rows_failed) == (0, 11)
    write_rows(tmp_path / "rows.parquet", [*rows, *more, {**rows[0], "question_id": "later"}])
    found = plan(path, select=Selection.FAILED)
    assert counts(found) == (1, 0, 3, 8, 0)
    assert (len(found.rows), found.answered_rows, found.rows_left, found.total_rows) == (3, 8, 1, 11)
    retried = run(path, select=Selection.FAILED)
    assert (retried.exit_status, retried.run.rows_ok, retried.run.rows_reused, retried.run.rows_pending) == (0, 3, 8, 0)
    history = query(
        retried.database, "SELECT status FROM answers WHERE starts_with(doc_id, 'more') ORDER BY attempt, doc_id"
    )
    assert history == [("truncated",)] * 3 + [("ok",)] * 3
    assert query(retried.database, "SELECT DISTINCT status FROM latest_answers") == [("ok",)]
    assert AnswerStore(retried.database, read_only=True).check() == []
    again = run(path, select=Selection.FAILED)
    assert (again.exit_status, again.run.rows_ok) == (0, 0)


def test_rerun_takes_everything(make_job):
    path = make_job(sample_rows(2, 2))
    run(path)
    again = run(path, select=Selection.ALL)
    assert (again.run.rows_ok, again.run.rows_reused, again.run.rows_total) == (4, 0, 4)
    assert query(again.database, "SELECT attempt, count(*) FROM answers GROUP BY 1 ORDER BY 1") == [(1, 4), (2, 4)]
    assert AnswerStore(again.database, read_only=True).check() == []


def test_rows_that_can_not_run_are_retried_only_after_they_were_tried(make_job, tmp_path):
    rows = sample_rows(1, 3)
    rows[0]["question"] = ""
    path = make_job(rows)
    assert plan(path, select=Selection.FAILED).rejected == []
    run(path)
    assert len(plan(path, select=Selection.FAILED).rejected) == 1
    assert counts(plan(path)) == (0, 0, 0, 2, 0)


def test_going_back_to_older_settings_asks_anew(make_job):
    """Only the newest valid answer counts: latest_answers shows it."""
    path = make_job(sample_rows(1, 2))
    run(path)
    run(path, ["sampling.seed=1"])
    assert counts(plan(path)) == (0, 2, 0, 0, 0)
    assert counts(plan(path, ["sampling.seed=1"])) == (0, 0, 0, 2, 0)


def test_answers_of_an_older_docqa_still_count(make_job):
    """They have no record of the parts of their request; the whole digest decides."""
    path = make_job(sample_rows(2, 2))
    database = run(path).database
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE answers SET request_parts = NULL")
    assert counts(plan(path)) == (0, 0, 0, 4, 0)
    assert plan(path, ["sampling.seed=1"]).changed_by == {"unknown": 4}


def test_the_journal_counts_before_it_is_published(make_job, tmp_path):
    path = make_job(sample_rows(2, 2))
    database = run(path).database
    with duckdb.connect(str(database)) as connection:
        names = [column[0] for column in connection.execute("SELECT * FROM answers").description]
        stored = [dict(zip(names, row, strict=True)) for row in connection.execute("FROM answers").fetchall()]
        connection.execute("DELETE FROM answers")
        connection.execute("DELETE FROM runs")
    assert counts(plan(path)) == (4, 0, 0, 0, 0)
    journal = Journal(database)
    journal.append(RunRecord(run_id=stored[0]["run_id"], rows_total=4))
    for row in stored:
        journal.append(AnswerRecord(**row))
    journal.close()
    assert counts(plan(path)) == (0, 0, 0, 4, 0)  # nothing was written
    assert journal_path(database).exists()
    notes = []
    second = run(path, observer=Observer(on_note=notes.append))
    assert (second.run.rows_reused, second.run.rows_ok) == (4, 0)
    assert any("4 answers of an earlier run were published" in note for note in notes)
    assert len(query(database, "FROM answers")) == 4


@pytest.mark.parametrize(
    ("attempts", "newest", "digest"),
    [
        (["ok"], "ok", "0"),
        (["failed"], "failed", None),
        (["ok", "truncated", "ok", "failed"], "failed", "2"),
    ],
)
def test_database_and_journal_tell_the_same_history(tmp_path, attempts, newest, digest):
    """However many of the attempts are published already."""
    states = []
    for published in range(len(attempts) + 1):
        database = tmp_path / f"{published}.duckdb"
        store, journal = AnswerStore(database), Journal(database)
        for number, status in enumerate(attempts):
            record = AnswerRecord(
                run_id=str(number), doc_id="d", question_id="q", status=status, request_digest=str(number),
                answer="{}", question="Ä\0?", document_hash="h", request_parts='{"schema":"1"}',
            )  # fmt: skip
            if number < published:
                store.begin_run(RunRecord(run_id=str(number)))
                store.write_answers([record])
            else:
                journal.append(record)
        journal.close()
        states.append(AnswerHistory.of(database).states["d", "q"])
    assert set(states) == {states[0]}
    assert (states[0].newest_status, states[0].request_digest) == (newest, digest)
    assert states[0].has_answer == (digest is not None)
