import json
import shutil
import signal
import subprocess
import sys

import duckdb
import pytest

from jobs.answer_schemas import AnswerSchemas
from jobs.errors import JobFileError
from jobs.job_file import load_job
from jobs.output_lock import OutputLock, OutputLocked
from jobs.run import Observer, StopRequest, prepare, run_job
from jobs.store import AnswerStore
from jobs.store_records import utc_now
from tests.job_fixtures import sample_rows, write_rows


def run(path, overrides=(), **options):
    options = {"stop": StopRequest(), **options}
    return run_job(load_job(path, overrides), command="test", **options)


def query(database, sql):
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def answers(database):
    return {
        (doc_id, question_id): (status, answer)
        for doc_id, question_id, status, answer in query(
            database, "SELECT doc_id, question_id, status, answer FROM latest_answers"
        )
    }


def assert_sound(database):
    assert AnswerStore(database, read_only=True).check() == []


def test_every_row_is_answered_validly_and_reuse_is_perfect(make_job):
    stages = []
    outcome = run(make_job(sample_rows()), observer=Observer(on_stage=lambda _: stages.append(utc_now())))
    record = outcome.run
    assert record.started_at <= stages[0]  # planning belongs to the run, as in its load_seconds
    assert (outcome.exit_status, record.status, record.error) == (0, "finished", None)
    assert (record.rows_total, record.rows_ok, record.rows_failed) == (20, 20, 0)
    assert record.computed_tokens == record.minimum_tokens < record.prompt_tokens / 2
    assert record.cached_tokens + record.computed_tokens == record.prompt_tokens
    assert record.forced_tokens > 0
    for status, answer in answers(outcome.database).values():
        value = json.loads(answer)
        assert status == "ok"
        assert list(value) == ["verdict", "quote"]
        assert value["verdict"] in ("true", "false", "not mentioned")
    assert len(query(outcome.database, "FROM answers_verdict")) == 20
    assert len(query(outcome.database, "FROM documents")) == 4
    reuse = query(
        outcome.database, "SELECT sum(rows), sum(minimum_tokens), sum(computed_tokens) FROM reuse_by_document"
    )
    assert reuse == [(20, record.minimum_tokens, record.computed_tokens)]
    assert_sound(outcome.database)


def test_quotes_are_located_in_their_documents(make_job, tmp_path):
    """A random model quotes nothing by itself, so its schema leaves it one quote that is there and one that isn't."""
    path = make_job(sample_rows(2, 2))
    quote = {"type": "string", "x-docqa": "quote"}
    schema = {"type": "object", "properties": {"there": quote | {"enum": ["This one is\nnumber"]},
                                               "away": quote | {"enum": ["nothing like it"]}},
              "required": ["there", "away"], "additionalProperties": False}  # fmt: skip
    (tmp_path / "verdict.json").write_text(json.dumps(schema))
    outcome = run(path)
    assert outcome.exit_status == 0
    start = len("The common opening of all documents. ")
    assert query(outcome.database, "SELECT DISTINCT quotes FROM answers") == [
        (json.dumps({"/there": {"start": start, "end": start + 18, "found": True, "exact": False},
                     "/away": {"start": None, "end": None, "found": False, "exact": False}}),)
    ]  # fmt: skip
    assert (
        query(outcome.database, "SELECT there_start, there_end, there_found, away_found FROM answers_verdict")
        == [(start, start + 18, True, False)] * 4
    )
    assert_sound(outcome.database)


def test_files_that_were_skipped_make_a_run_partial(make_job, tmp_path):
    """Case 7."""
    path = make_job(None, input={"documents": "in", "on_bad_file": "skip"})
    (tmp_path / "in").mkdir()
    write_rows(tmp_path / "in" / "good.parquet", sample_rows(2, 2))
    for number in range(7):
        (tmp_path / "in" / f"bad{number}.parquet").write_bytes(b"PAR1 and no more")
        (tmp_path / "in" / f"side{number}.txt").write_text("")
    notes = []
    outcome = run(path, observer=Observer(on_note=notes.append))
    assert (outcome.exit_status, outcome.run.status, outcome.run.rows_ok) == (1, "finished", 4)
    bad_files = json.loads(query(outcome.database, "SELECT bad_files FROM runs")[0][0])
    assert [entry["file"] for entry in bad_files] == [f"in/bad{number}.parquet" for number in range(7)]
    assert all("too small" in entry["reason"] or "magic" in entry["reason"].lower() for entry in bad_files)
    assert notes[5] == "and 2 more files that can't be read were skipped"
    assert notes[6:] == [
        *(f"in/side{number}.txt was skipped: its name does not end in .parquet" for number in range(5)),
        "and 2 more files that are no Parquet were skipped",
    ]
    assert run(path).exit_status == 1  # nothing is left to answer, and the files are still bad
    for file in (tmp_path / "in").glob("bad*"):
        file.unlink()
    repaired = run(path)
    assert (repaired.exit_status, repaired.run.bad_files) == (0, None)
    assert_sound(outcome.database)


def test_notes_on_the_chat_template_are_said(make_job, tmp_path, tiny_model_folder):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder, folder)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    (folder / "chat_template.jinja").write_text(template)
    notes = []
    prepared = prepare(load_job(make_job(sample_rows(1, 1)), [f"model.path={folder}"]), Observer(on_note=notes.append))
    assert "ordinary text ('assistant:')" in prepared.prompts.notes[0]
    assert notes == prepared.prompts.notes


def test_a_small_pool_gives_the_same_answers_and_the_same_reuse(make_job, tmp_path):
    full = run(make_job(sample_rows()))
    prepared = prepare(load_job(make_job(None), ["output.database=other.duckdb"]))
    from engine.kv_memory import kv_page_bytes

    page = kv_page_bytes(prepared.model.config, 16, 4)
    smallest = (prepared.plan.pages_for_longest_row(16) + 1) * page
    small = run(make_job(None), ["output.database=small.duckdb", f"engine.kv_memory={smallest}"])
    assert answers(small.database) == answers(full.database)
    assert small.run.computed_tokens == full.run.computed_tokens == full.run.minimum_tokens
    too_small = run(make_job(None), ["output.database=none.duckdb", f"engine.kv_memory={smallest - page}"])
    assert too_small.run.rows_failed > 0
    assert too_small.run.rows_ok > 0
    errors = query(too_small.database, "SELECT DISTINCT status, error LIKE '%engine.kv_memory%' FROM errors")
    assert errors == [("too_long", True)]
    assert_sound(too_small.database)


def test_bad_rows_get_their_status_and_the_others_are_answered(make_job, tmp_path):
    rows = sample_rows(2, 3)
    for index, row in enumerate(rows):
        row["schema"] = None
        row["topic"] = f"t{index}"
    rows[0]["document"] = "   \n"
    rows[1]["question"] = None
    rows[2]["schema"] = "no-such-schema"
    rows[3]["schema"] = '{"type": "string", "uniqueItems": tru'
    rows[4]["schema"] = "boolean"
    rows[5]["document"] = "x" * 3000
    for index in (0, 5):
        rows[index]["doc_id"] = f"own{index}"
    outcome = run(make_job(rows, run={"max_failures": "100%"}))
    keys = [(row["doc_id"], row["question_id"]) for row in rows]
    found = answers(outcome.database)
    assert [found[key][0] for key in keys] == [
        "empty_document", "empty_question", "bad_schema", "bad_schema", "ok", "too_long"
    ]  # fmt: skip
    assert json.loads(found[keys[4]][1])["answer"] in (True, False)
    assert (outcome.exit_status, outcome.run.rows_ok, outcome.run.rows_failed) == (1, 1, 5)
    errors = dict(query(outcome.database, "SELECT status, error FROM errors"))
    assert "rows.parquet" in errors["too_long"]
    assert "context is 600" in errors["too_long"]
    assert query(outcome.database, "SELECT count(*) FROM answers WHERE extra->>'topic' IS NULL") == [(0,)]
    assert_sound(outcome.database)


def test_a_cut_answer_is_truncated_and_never_ok(make_job):
    outcome = run(make_job(sample_rows(2, 2)), ["sampling.max_tokens=20", "run.max_failures=100%"])
    assert {status for status, _ in answers(outcome.database).values()} == {"truncated"}
    rows = query(outcome.database, "SELECT answer, raw_text, finish_reason, error FROM answers")
    for answer, raw_text, finish_reason, error in rows:
        assert answer is None
        assert len(raw_text) == 20
        assert finish_reason == "length"
        assert "sampling.max_tokens" in error
    assert query(outcome.database, "FROM answers_verdict") == []
    again = run(make_job(None))
    assert (again.exit_status, again.run.rows_ok) == (0, 4)


def test_more_failures_than_allowed_is_exit_3(make_job):
    rows = sample_rows(2, 2)
    rows[0]["question"] = ""
    path = make_job(rows)
    assert run(path, ["run.max_failures=1"]).exit_status == 1
    assert run(path, ["run.max_failures=0", "output.database=b.duckdb"]).exit_status == 3


def test_the_second_run_has_nothing_to_do(make_job):
    path = make_job(sample_rows())
    run(path)
    second = run(path)
    assert (second.exit_status, second.run.rows_reused, second.run.rows_ok) == (0, 20, 0)
    assert second.run.rows_pending == 0
    assert len(query(second.database, "FROM answers")) == 20
    assert_sound(second.database)


def test_a_stopped_run_keeps_its_answers_and_the_next_does_the_rest(make_job):
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    whole = answers(run(path, ["output.database=whole.duckdb"]).database)
    stop = StopRequest()

    def stop_in_the_middle(progress):
        if progress.rows_done >= 7:
            stop.signal_number = signal.SIGTERM

    first = run(path, stop=stop, observer=Observer(on_progress=stop_in_the_middle))
    assert (first.exit_status, first.run.status) == (143, "interrupted")
    assert 7 <= first.run.rows_ok < 20
    assert first.unreached_documents
    assert first.run.rows_pending == 20 - first.run.rows_ok
    second = run(path)
    assert second.run.rows_reused == first.run.rows_ok
    assert answers(second.database) == whole
    assert len(query(second.database, "FROM answers")) == 20
    assert_sound(second.database)


def test_the_time_budget_is_exit_5(make_job):
    """Case 35: what was not reached is named, and the next run takes it."""
    path = make_job(sample_rows(), engine={"step_tokens": 16})
    outcome = run(path, ["run.time_budget=0.000001"])
    assert (outcome.exit_status, outcome.run.status) == (5, "out_of_time")
    assert outcome.run.rows_pending == 20
    assert outcome.unreached_documents == ["d0", "d1", "d2", "d3"]
    assert "run.time_budget of 1e-06 seconds was used up; 20 rows of 4 documents are pending" in outcome.run.error
    assert_sound(outcome.database)
    assert run(path).run.rows_ok == 20


def test_an_engine_failure_leaves_rows_pending(make_job, monkeypatch):
    from engine.engine import Engine

    path = make_job(sample_rows(), engine={"step_tokens": 64})
    real_step, steps = Engine.step, []

    def step(engine):
        steps.append(engine)
        if len(steps) > 12:
            raise RuntimeError("the device is gone")
        return real_step(engine)

    monkeypatch.setattr(Engine, "step", step)
    outcome = run(path)
    assert (outcome.exit_status, outcome.run.status) == (3, "failed")
    assert "the device is gone" in outcome.run.error
    assert outcome.run.rows_failed == 0
    assert outcome.run.rows_pending == 20 - outcome.run.rows_ok > 0
    assert_sound(outcome.database)


def test_empty_input_is_a_finished_run_without_a_model(make_job, tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = make_job(None)
    names = ("doc_id", "document", "question_id", "question")
    pq.write_table(pa.table({name: pa.array([], pa.string()) for name in names}), tmp_path / "rows.parquet")
    monkeypatch.setattr("jobs.run.make_engine", lambda *_: pytest.fail("the model was loaded"))
    outcome = run(path)
    assert (outcome.exit_status, outcome.run.rows_total) == (0, 0)


def test_another_run_holds_the_output(make_job, tmp_path):
    path = make_job(sample_rows(1, 1))
    with (
        OutputLock(tmp_path / "answers.duckdb", "docqa run other.toml"),
        pytest.raises(OutputLocked, match=r"other\.toml"),
    ):
        run(path)
    assert run(path).exit_status == 0


def test_gold_and_other_columns_travel_with_the_answer(make_job):
    rows = sample_rows(1, 2)
    for row in rows:
        row |= {"gold": {"verdict": "true"}, "topic": "säule"}
    database = run(make_job(rows)).database
    assert query(database, "SELECT DISTINCT extra->>'topic', extra->>'$.gold.verdict' FROM answers") == [
        ("säule", "true")
    ]


def test_sampling_depends_on_the_seed_and_the_key_only(make_job, tmp_path):
    rows = sample_rows()
    path = make_job(rows, sampling={"temperature": 1.0})
    first = answers(run(path).database)
    write_rows(tmp_path / "rows.parquet", rows[::-1])
    shuffled = answers(run(path, ["output.database=b.duckdb", "engine.step_tokens=40"]).database)
    assert shuffled == first
    assert answers(run(path, ["output.database=c.duckdb", "sampling.seed=1"]).database) != first


def test_planning_imports_no_torch(make_job):
    program = (
        "import sys; from jobs.run import prepare; from jobs.job_file import load_job; "
        f"plan = prepare(load_job({str(make_job(sample_rows()))!r})).plan; "
        "print(len(plan.rows), plan.minimum_tokens < plan.prompt_tokens, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["20", "True", "False"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSON"),
        ('{"type": "no-such-type"}', "answer.schema"),
        ('{"type": "array", "items": {"type": "string"}, "uniqueItems": true}', "uniqueItems"),
    ],
)
def test_a_bad_schema_of_the_job_stops_it(make_job, tmp_path, content, message):
    path = make_job(sample_rows(1, 1))
    (tmp_path / "verdict.json").write_text(content)
    with pytest.raises(JobFileError, match=message):
        run(path)
    assert not (tmp_path / "answers.duckdb").exists()


def test_schemas_are_compiled_once(make_job):
    prepared = prepare(load_job(make_job(sample_rows())))
    grammars = {id(planned.schema.grammar) for planned in prepared.plan.rows}
    assert len(grammars) == 1
    assert isinstance(prepared.schemas, AnswerSchemas)
    assert list(prepared.schemas.used()) == ["verdict"]
