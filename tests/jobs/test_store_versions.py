"""Databases of older versions are read as they are and migrated in place."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from jobs.store import AnswerRecord, AnswerStore, RunRecord
from jobs.store_schema import STORE_VERSION, TABLES
from tests.jobs.store_version_1 import make_store_of_version_1
from tests.jobs.store_version_2 import make_store_of_version_2
from tests.jobs.store_version_3 import make_store_of_version_3

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.duckdb"


def query(path, text):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(text).fetchall()


def assert_migrated(path, rows):
    store = AnswerStore(path, read_only=True)
    assert store.version == STORE_VERSION
    assert [row[0] for row in query(path, "DESCRIBE latest_answers")] == list(TABLES["answers"])
    assert len(store.key_states()) == rows
    assert (store.run("old").rows_ok, store.run("old").rows_removed) == (rows, 0)
    assert len(query(path, "FROM answers_verdict")) == rows
    assert store.check() == []


OLDER = [(1, make_store_of_version_1), (2, make_store_of_version_2), (3, make_store_of_version_3)]


@pytest.mark.parametrize(("version", "make_store"), OLDER)
def test_an_older_store_can_be_read_without_a_change(path, version, make_store):
    make_store(path)
    before = path.read_bytes()
    store = AnswerStore(path, read_only=True)
    assert store.version == version
    assert store.latest_run().rows_ok == 2
    assert [(state.request_digest, state.request_parts) for state in store.key_states().values()] == [
        (f"digest{number}", None) for number in range(2)
    ]
    assert store.check() == []
    assert path.read_bytes() == before


@pytest.mark.parametrize(("version", "make_store"), OLDER)
def test_an_older_store_is_migrated_in_place(path, version, make_store):
    make_store(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 42 AS a")
    store = AnswerStore(path)
    assert_migrated(path, 2)
    assert query(path, "FROM mine") == [(42,)]
    store.begin_run(RunRecord(run_id="new", rows_total=1))
    store.write_answers([AnswerRecord(run_id="new", doc_id="d0", question_id="q", status="failed", request_parts="{}")])
    assert query(path, "SELECT attempt, request_parts FROM answers WHERE doc_id = 'd0' ORDER BY 1") == [
        (1, None),
        (2, "{}"),
    ]
    if version == 2:  # its schema marks a quote, so the view has columns for its place now
        answer = {"doc_id": "d1", "question_id": "q", "schema_name": "verdict", "status": "ok", "answer": '{"a":"x"}'}
        quotes = '{"/a":{"start":7,"end":8,"found":true,"exact":true}}'
        store.begin_run(RunRecord(run_id="newer", bad_files='[{"file":"a","reason":"b"}]'))
        store.write_answers([AnswerRecord(run_id="newer", quotes=quotes, confidence='{"a":0.5}', **answer)])
        assert query(path, "SELECT * EXCLUDE question_id FROM answers_verdict ORDER BY 1") == [
            ("d0", "x", None, None, None, None),
            ("d1", "x", 7, 8, True, 0.5),
        ]
        assert store.run("newer").bad_files == '[{"file":"a","reason":"b"}]'
    assert int.from_bytes(path.read_bytes()[12:20], "little") == 64  # still readable by DuckDB 1.1


def test_a_migration_that_is_killed_is_done_again(path):
    program = "import sys; from jobs.store import AnswerStore; print(flush=True); AnswerStore(sys.argv[1])"
    for delay in (0.01, 0.03, 0.06):
        path.unlink(missing_ok=True)
        make_store_of_version_1(path, rows=5_000)
        process = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        AnswerStore(path)
        assert query(path, "SELECT count(*) FROM answers") == [(5_000,)]
        assert_migrated(path, 5_000)
