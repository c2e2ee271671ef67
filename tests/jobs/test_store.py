import json
import os
import shutil
import threading
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone

import duckdb
import pytest

from jobs.errors import OutputError
from jobs.store import AnswerRecord, AnswerStore, DocumentRecord, OutputBusy, RunEnding, RunRecord
from jobs.store_schema import STORE_VERSION, TABLES


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.duckdb"


@pytest.fixture
def store(path):
    return AnswerStore(path)


def answer(run_id="r1", doc_id="d1", question_id="q1", status="ok", **values):
    values.setdefault("answer", '{"label":"Yes"}' if status == "ok" else None)
    values.setdefault("request_digest", f"{doc_id}/{question_id}")
    if status not in ("too_long", "empty_document"):
        values = {"prompt_tokens": 10, "cached_tokens": 6, "computed_tokens": 4, "minimum_tokens": 4} | values
        values = {"output_tokens": 3} | values
    return AnswerRecord(run_id=run_id, doc_id=doc_id, question_id=question_id, status=status, **values)


def query(path, text):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(text).fetchall()


def test_columns_are_those_of_the_contract(store, path):
    assert [column.name for column in fields(RunRecord)] == list(TABLES["runs"])
    *columns, calls = [column.name for column in fields(AnswerRecord)]
    assert (columns, calls) == (list(TABLES["answers"]), "calls")  # which have a table of their own
    answers = """run_id attempt doc_id question_id document_hash question schema_name status answer raw_text error
        finish_reason prompt_tokens cached_tokens computed_tokens output_tokens ttft_seconds latency_seconds answered_at
        extra"""
    runs = """run_id job_name status started_at finished_at model model_fingerprint config rows_total rows_ok
        rows_failed prompt_tokens minimum_tokens computed_tokens cached_tokens output_tokens forced_tokens load_seconds
        seconds"""
    assert " ".join(TABLES["answers"]).startswith(" ".join(answers.split()))
    assert " ".join(TABLES["runs"]).startswith(" ".join(runs.split()))
    described = [row[0] for row in query(path, "DESCRIBE latest_answers")]
    assert described == list(TABLES["answers"])


def test_views_on_an_empty_database(store, path):
    for view in ("runs", "documents", "answers", "latest_answers", "errors", "reuse_by_document"):
        assert query(path, f"SELECT * FROM {view}") == []
    assert query(path, "SELECT rows FROM reuse_by_document") == []
    assert store.key_states() == {}
    assert store.latest_run() is None
    assert store.run("r1") is None
    assert store.check() == []


def test_file_is_readable_by_duckdb_1_1(store, path):
    """Case 59."""
    tags = query(path, "SELECT tags FROM duckdb_databases() WHERE database_name = 'answers'")[0][0]
    assert tags.get("storage_version", "v1.0.0+").startswith(("v1.0", "v1.1"))
    version = int.from_bytes(path.read_bytes()[12:20], "little")
    assert version == 64  # of DuckDB 1.0 and 1.1; 1.2 began to write 65 and more


def test_file_is_closed_between_calls(store, path):
    store.begin_run(RunRecord(run_id="r1"))
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert not path.with_name(path.name + ".wal").exists()


def test_run_record_round_trip(store):
    berlin = timezone(timedelta(hours=2))
    run = RunRecord(
        run_id="r1",
        job_name="nightly \0 ünï",
        started_at=datetime(2026, 3, 1, 2, 30, tzinfo=berlin),
        model="m",
        model_fingerprint="f",
        config=json.dumps({"a": [1, None]}),
        rows_total=5,
        load_seconds=1.5,
    )
    store.begin_run(run)
    stored = store.run("r1")
    assert stored == replace(run, started_at=datetime(2026, 3, 1, 0, 30, tzinfo=UTC))
    assert stored.started_at.tzinfo is UTC
    assert store.latest_run() == stored


def test_totals_are_kept_with_the_batches(store, path):
    store.begin_run(RunRecord(run_id="r1", rows_total=4))
    store.write_answers([answer(question_id="q1", document_hash="h1")], [DocumentRecord("h1", 100, 20)])
    store.write_answers(
        [
            answer(question_id="q2", document_hash="h1", status="truncated", minimum_tokens=0),
            answer(question_id="q3", document_hash="h2", status="too_long"),
        ],
        [DocumentRecord("h1", 100, 20), DocumentRecord("h2", 9000), DocumentRecord("h2", 9000)],
    )
    run = store.run("r1")
    assert (run.rows_ok, run.rows_failed, run.rows_pending) == (1, 2, 1)
    assert (run.prompt_tokens, run.cached_tokens, run.computed_tokens) == (20, 12, 8)
    assert (run.minimum_tokens, run.output_tokens) == (4, 6)
    assert query(path, "SELECT * FROM documents ORDER BY 1") == [("h1", 100, 20), ("h2", 9000, None)]
    assert query(path, "SELECT * FROM reuse_by_document ORDER BY document_hash") == [
        ("r1", "h1", 2, 20, 4, 8, 12),
        ("r1", "h2", 1, 0, 0, 0, 0),
    ]
    assert query(path, "SELECT doc_id, question_id, status FROM errors ORDER BY question_id") == [
        ("d1", "q2", "truncated"),
        ("d1", "q3", "too_long"),
    ]
    assert store.check() == []


def test_finish_run(store):
    store.begin_run(RunRecord(run_id="r1", rows_total=1))
    store.write_answers([answer()])
    store.finish_run(RunEnding(run_id="r1", status="finished", forced_tokens=7, load_seconds=2.5, seconds=3.5))
    run = store.run("r1")
    assert (run.status, run.forced_tokens, run.load_seconds, run.seconds) == ("finished", 7, 2.5, 3.5)
    assert run.finished_at >= run.started_at
    assert run.rows_ok == 1
    with pytest.raises(ValueError, match="status"):
        store.finish_run(RunEnding(run_id="r1", status="great"))
    with pytest.raises(OutputError, match="r9"):
        store.finish_run(RunEnding(run_id="r9", status="failed"))


def test_killed_run_is_failed_when_the_next_begins(store):
    store.begin_run(RunRecord(run_id="r1", rows_total=2))
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    store.write_answers([answer(answered_at=moment)])
    store.begin_run(RunRecord(run_id="r2"))
    killed = store.run("r1")
    assert (killed.status, killed.error, killed.finished_at, killed.rows_ok) == ("failed", "killed", moment, 1)
    assert store.run("r2").status == "running"
    with pytest.raises(ValueError, match="already"):
        store.begin_run(RunRecord(run_id="r2"))
    assert store.run("r2").status == "running"


def test_latest_prefers_ok_then_the_newest(store, path):
    outcomes = [("ok", "a"), ("failed", "b"), ("ok", "c"), ("truncated", "d")]
    for number, (status, digest) in enumerate(outcomes, 1):
        store.begin_run(RunRecord(run_id=f"r{number}", rows_total=2))
        store.write_answers(
            [
                answer(run_id=f"r{number}", status=status, request_digest=digest),
                answer(run_id=f"r{number}", doc_id="d2", status="failed", error=f"attempt {number}"),
            ]
        )
    rows = query(path, "SELECT doc_id, run_id, attempt, status FROM latest_answers ORDER BY doc_id")
    assert rows == [("d1", "r3", 3, "ok"), ("d2", "r4", 4, "failed")]
    assert query(path, "SELECT doc_id, error FROM errors") == [("d2", "attempt 4")]
    # An answer of older settings is no answer to the job as it is now.
    states = store.key_states()
    assert states.keys() == {("d1", "q1"), ("d2", "q1")}
    assert states["d1", "q1"].request_digest == "c"
    assert [(state.newest_status, state.has_answer) for state in states.values()] == [
        ("truncated" if key[0] == "d1" else "failed", key[0] == "d1") for key in states
    ]
    assert query(path, "SELECT attempt FROM answers WHERE doc_id = 'd1' ORDER BY run_id") == [(1,), (2,), (3,), (4,)]
    assert store.check() == []


def test_a_run_has_one_row_for_a_key_and_writing_again_adds_nothing(store, path):
    """Case 56: the first one wins."""
    store.begin_run(RunRecord(run_id="r1", rows_total=2))
    batch = [answer(answer='"first"'), answer(answer='"second"'), answer(question_id="q2")]
    assert store.write_answers(batch) == 2
    assert store.write_answers(batch) == 0
    assert store.write_answers([answer(question_id="q2", status="failed"), answer(question_id="q3")]) == 1
    assert query(path, "SELECT question_id, answer, status FROM answers ORDER BY 1") == [
        ("q1", '"first"', "ok"),
        ("q2", '{"label":"Yes"}', "ok"),
        ("q3", '{"label":"Yes"}', "ok"),
    ]
    assert store.run("r1").rows_ok == 3


def test_rows_of_two_runs_in_one_batch(store, path):
    """The journal of a killed run may be published together with the next run's first rows."""
    store.begin_run(RunRecord(run_id="r1"))
    store.begin_run(RunRecord(run_id="r2"))
    store.write_answers([answer("r1", status="failed"), answer("r2"), answer("r1", doc_id="d2")])
    assert query(path, "SELECT run_id, doc_id, attempt FROM answers ORDER BY ALL") == [
        ("r1", "d1", 1),
        ("r1", "d2", 1),
        ("r2", "d1", 2),
    ]
    assert (store.run("r1").rows_ok, store.run("r1").rows_failed, store.run("r2").rows_ok) == (1, 1, 1)


def test_a_long_document_with_many_questions_takes_little_room(store, path):
    """Case 61: the text of a document is nowhere in the database."""
    store.begin_run(RunRecord(run_id="r1", rows_total=500))
    document = DocumentRecord("h1", 5_000_000, 1_000_000)
    rows = [answer(question_id=str(number), document_hash="h1") for number in range(500)]
    for start in range(0, 500, 50):
        store.write_answers(rows[start : start + 50], [document])
    assert path.stat().st_size < 5_000_000
    assert query(path, "SELECT count(*) FROM documents") == [(1,)]


def test_nothing_of_a_refused_batch_is_written(store, path):
    store.begin_run(RunRecord(run_id="r1"))
    with pytest.raises(OutputError, match="no run 'r7'"):
        store.write_answers([answer(), answer("r7", doc_id="d2")], [DocumentRecord("h", 1, 1)])
    with pytest.raises(ValueError, match="fine"):
        store.write_answers([answer(), answer(doc_id="d2", status="fine")])
    assert query(path, "SELECT * FROM answers") == []
    assert query(path, "SELECT * FROM documents") == []
    assert store.run("r1").rows_ok == 0
    assert store.write_answers([]) == 0


def test_texts_are_stored_whole(store, path):
    store.begin_run(RunRecord(run_id="r1"))
    texts = ["a\0b", "\x00", "", "Ä😊\u2028\r\n", "x" * 200_000, "'\";--"]
    batch = [
        answer(question_id=str(number), question=text, raw_text=text, error=text, extra=json.dumps({"x": text}))
        for number, text in enumerate(texts)
    ]
    batch.append(answer(doc_id="\0", question_id="lone", raw_text="a\ud800b"))
    assert store.write_answers(batch) == len(batch)
    assert store.write_answers(batch) == 0
    rows = query(path, "SELECT question, raw_text, error, extra FROM answers WHERE doc_id = 'd1' ORDER BY question_id")
    assert [(row[0], row[1], row[2], json.loads(row[3])["x"]) for row in rows] == [(text,) * 4 for text in texts]
    assert query(path, "SELECT doc_id, raw_text FROM answers WHERE question_id = 'lone'") == [("\0", "a\ufffdb")]
    assert query(path, "SELECT count(*) FROM answers WHERE json_extract_string(extra, '/x') = raw_text") == [(6,)]


def test_json_columns_are_always_valid(store, path):
    store.begin_run(RunRecord(run_id="r1", config="{oops", rows_total=8))
    texts = {
        '{"a":NaN,"b":[Infinity,1e999],"c":1}': {"a": None, "b": [None, None], "c": 1},
        '{"a":1,"a":2}': {"a": 2},
        '"\\ud800"': "\ufffd",
        "{broken": "{broken",
        "": "",
        "[" * 5000: "[" * 5000,
        "[" * 900 + "]" * 900: None,
        "1" * 5000: "1" * 5000,
    }
    store.write_answers([answer(question_id=str(n), extra=text) for n, text in enumerate(texts)])
    rows = query(path, "SELECT extra, json_valid(extra) FROM answers ORDER BY question_id::INT")
    assert all(valid for _, valid in rows)
    for (text, _), expected in zip(rows, texts.values(), strict=True):
        assert expected is None or json.loads(text) == expected
    assert json.loads(store.run("r1").config) == "{oops"
    assert store.check() == []


def test_error_column_that_is_null_for_long_accepts_text_later(store, path):
    store.begin_run(RunRecord(run_id="r1"))
    store.write_answers([answer(question_id=str(number)) for number in range(1000)])
    store.write_answers([answer(question_id="last", status="failed", error="late")])
    assert query(path, "SELECT error FROM answers WHERE error IS NOT NULL") == [("late",)]


@pytest.fixture(scope="module")
def sound_database(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "answers.duckdb"
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id="r1", rows_total=3, rows_reused=2))
    store.write_answers([answer(document_hash="h1")], [DocumentRecord("h1", 1, 1)])
    store.finish_run(RunEnding(run_id="r1", status="finished"))
    assert store.check() == []
    return path


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("UPDATE runs SET rows_ok = rows_ok + 1", "rows_ok is 2, but its rows sum up to 1"),
        ("UPDATE runs SET computed_tokens = 3", "computed_tokens is 3, but its rows sum up to 4"),
        ("UPDATE runs SET rows_total = 0", "rows_total is 0, less than"),
        ("UPDATE runs SET rows_total = 9", "of 9 rows only"),
        ("UPDATE runs SET status = 'odd'", "unknown status 'odd'"),
        ("UPDATE answers SET cached_tokens = 5", "cached 5"),
        ("UPDATE answers SET cached_tokens = NULL", "cached None"),
        ("UPDATE answers SET status = 'odd'", "unknown status 'odd'"),
        ("UPDATE answers SET answer = NULL", "without an answer"),
        ("UPDATE answers SET run_id = 'r9'", "run r9, which is not in runs"),
        ("DELETE FROM documents", "document h1, which is not in documents"),
        ("INSERT INTO documents SELECT * FROM documents", "document h1 stands twice"),
        ("INSERT INTO runs SELECT * FROM runs", "run r1 stands twice"),
        ("INSERT INTO answers SELECT * FROM answers", "2 rows instead of one"),
        ("UPDATE runs SET rows_removed = 1", "1 of its rows are left and 1 were removed, but it had 1"),
    ],
)
def test_check_finds_what_is_broken(sound_database, path, damage, sentence):
    shutil.copy(sound_database, path)
    with duckdb.connect(str(path)) as connection:
        connection.execute(damage)
    found = AnswerStore(path, read_only=True).check()
    assert any(sentence in violation for violation in found), found


def test_nothing_changes_when_opened_again(store, path):
    store.begin_run(RunRecord(run_id="r1"))
    before = path.read_bytes()
    AnswerStore(path)
    AnswerStore(path, read_only=True).check()
    assert path.read_bytes() == before


def test_dropped_view_comes_back(store, path):
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP VIEW errors")
    AnswerStore(path)
    assert query(path, "SELECT * FROM errors") == []


def test_tables_of_others_beside_ours_are_left_alone(path):
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS a")
    AnswerStore(path).begin_run(RunRecord(run_id="r1"))
    assert query(path, "SELECT a FROM mine") == [(1,)]


def test_newer_store_is_refused(store, path):
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"UPDATE docqa_meta SET value = '{STORE_VERSION + 1}'")
    for read_only in (False, True):
        with pytest.raises(
            OutputError, match=rf"version {STORE_VERSION + 1}.*up to {STORE_VERSION}.*docqa that wrote it"
        ):
            AnswerStore(path, read_only=read_only)


@pytest.mark.parametrize("statement", ["CREATE TABLE Answers (a INT)", "CREATE VIEW errors AS SELECT 1 AS a"])
def test_foreign_table_of_our_name_is_refused(path, statement):
    with duckdb.connect(str(path)) as connection:
        connection.execute(statement)
    with pytest.raises(OutputError, match="docqa did not make"):
        AnswerStore(path)
    with pytest.raises(OutputError, match="no output of docqa"):
        AnswerStore(path, read_only=True)


def test_changed_columns_are_refused(store, path):
    with duckdb.connect(str(path)) as connection:
        connection.execute("ALTER TABLE documents DROP COLUMN tokens")
    with pytest.raises(OutputError, match="columns of the table documents"):
        AnswerStore(path)


def test_what_is_no_database_is_refused(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("hello " * 5000)
    with pytest.raises(OutputError, match="is no DuckDB database"):
        AnswerStore(other)
    assert other.read_text() == "hello " * 5000
    with pytest.raises(OutputError, match="is a folder"):
        AnswerStore(tmp_path)
    with pytest.raises(OutputError, match="does not exist; make it first"):
        AnswerStore(tmp_path / "no" / "a.duckdb")
    with pytest.raises(OutputError, match="does not exist"):
        AnswerStore(tmp_path / "none.duckdb", read_only=True)
    assert not (tmp_path / "none.duckdb").exists()


def test_empty_file_is_taken_for_none(path):
    path.touch()
    assert AnswerStore(path).check() == []


def test_relative_path_survives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = AnswerStore("a.duckdb")
    os.mkdir("sub")
    monkeypatch.chdir("sub")
    assert store.runs() == []


def test_read_only_store_writes_nothing(store, path):
    reader = AnswerStore(path, read_only=True)
    with pytest.raises(RuntimeError, match="read-only"):
        reader.begin_run(RunRecord(run_id="r1"))


def test_faults_of_a_query_are_output_errors(store, path):
    with pytest.raises(OutputError, match=f"{path}.*reading failed.*bytes free"), store.reading() as connection:
        connection.execute("SELECT * FROM nowhere")


def test_own_open_connection_is_named(path, store):
    impatient = AnswerStore(path, lock_timeout_seconds=0.1)
    with store.reading(), pytest.raises(OutputBusy, match="this process"):
        impatient.begin_run(RunRecord(run_id="r1"))


def test_threads_share_a_store(store):
    store.begin_run(RunRecord(run_id="r1", rows_total=16))

    def work(number):
        for batch in range(4):
            store.write_answers([answer(doc_id=f"d{number}", question_id=f"q{batch}")])
            store.key_states()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.run("r1").rows_ok == 16
    assert store.check() == []
