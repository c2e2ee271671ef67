"""A run that dies at any moment, and the next one (cases 62, 63, 67, 68 and 69 of the needs)."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import duckdb
import psutil
import pytest

from jobs.checkpoint_guard import undo_path
from jobs.journal import journal_path, read_journal
from jobs.store import AnswerStore
from tests.job_fixtures import sample_rows
from tests.jobs.fork_server import ROOT, ForkServer

ROWS = 20


@pytest.fixture(scope="module")
def server():
    server = ForkServer()
    yield server
    server.close()


def query(database, sql):
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def answers(database):
    rows = query(database, "SELECT doc_id, question_id, status, answer FROM latest_answers")
    return {(doc_id, question_id): (status, answer) for doc_id, question_id, status, answer in rows}


def remove_output(database):
    for name in ("", ".journal", ".wal", ".lock", ".undo"):
        database.with_name(database.name + name).unlink(missing_ok=True)


def run_to_end(server, path, log, **options):
    options = {"publish_rows": 1000, **options}
    status = server.wait(server.start(path, log, **options))
    assert status == 0, log.read_text()


def assert_whole(database, whole):
    """Everything answered once, nothing left over."""
    assert answers(database) == whole
    assert query(database, "SELECT count(*), count(DISTINCT (doc_id, question_id)) FROM answers") == [(ROWS, ROWS)]
    assert AnswerStore(database, read_only=True).check() == []
    assert not journal_path(database).exists()
    assert not database.with_name(database.name + ".wal").exists()


def published_rows(database):
    """As DuckDB's own tools see it, which all but a kill within a few microseconds allows."""
    try:
        return len(query(database, "FROM answers"))
    except duckdb.Error:
        assert undo_path(database).exists()
        AnswerStore(database)  # mends it
        return len(query(database, "FROM answers"))


def kill_and_resume(server, tmp_path, path, kills, seed):
    """Kill runs at random moments of their whole length; returns how many rows each had finished."""
    database, log = tmp_path / "answers.duckdb", tmp_path / "log"
    started = time.monotonic()
    run_to_end(server, path, log, publish_rows=3, step_seconds=0.005)
    seconds = time.monotonic() - started
    whole = answers(database)
    moments, kept = random.Random(seed), []
    for _ in range(kills):
        remove_output(database)
        pid = server.start(path, log, publish_rows=3, step_seconds=0.005)
        time.sleep(moments.uniform(0.02, 1.0) * seconds)
        os.kill(pid, signal.SIGKILL)
        server.wait(pid)
        # The machine may be busy now and idle later: most kills shall hit a run that is on.
        seconds *= 0.93 if "\nended" in log.read_text() else 1.02
        reported = [int(line.split()[1]) for line in whole_lines(log) if line.startswith("done ")]
        published = 0
        if database.exists() and database.stat().st_size:
            published = published_rows(database)
        in_journal = {(record.doc_id, record.question_id) for record in read_journal(journal_path(database)).answers}
        kept.append(max(reported, default=0))
        # What was reported as done is durable, in the one or in the other.
        assert published + len(in_journal) >= kept[-1]
        run_to_end(server, path, log)
        assert_whole(database, whole)
        runs = query(database, "SELECT rows_reused, rows_ok, status, error FROM runs ORDER BY started_at")
        assert runs[-1][0] >= kept[-1]
        assert runs[-1][0] + runs[-1][1] == ROWS
        assert all(run[2:] == ("failed", "killed") for run in runs[:-1] if run[2] != "finished")
    return kept


def test_a_run_killed_at_five_moments_is_resumed_without_loss_or_doubling(server, make_job, tmp_path):
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    kill_and_resume(server, tmp_path, path, kills=5, seed=5)


@pytest.mark.slow
def test_a_run_killed_at_a_hundred_moments_is_resumed_without_loss_or_doubling(server, make_job, tmp_path):
    """Case 62."""
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    kept = kill_and_resume(server, tmp_path, path, kills=100, seed=62)
    print(sorted(kept))
    assert len(set(kept)) > 5  # the moments were spread over the run


@pytest.mark.slow
def test_a_run_that_always_dies_gets_on(server, make_job, tmp_path):
    """Killed again and again on one output, each run begins where the last one died."""
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    database, log = tmp_path / "answers.duckdb", tmp_path / "log"
    run_to_end(server, path, log, overrides=["output.database=whole.duckdb"])
    for wanted in (3, 6, 9):
        pid = server.start(path, log, publish_rows=1000, gate=tmp_path / "gate", gate_rows=3)
        wait_for_rows(log, 3)
        os.kill(pid, signal.SIGKILL)
        server.wait(pid)
        rows = {(record.doc_id, record.question_id) for record in read_journal(journal_path(database)).answers}
        published_rows(database)
        rows |= set(answers(database))
        assert len(rows) >= wanted
    run_to_end(server, path, log)
    assert_whole(database, answers(tmp_path / "whole.duckdb"))
    assert len(query(database, "FROM runs WHERE error = 'killed'")) == 3


def whole_lines(log):
    """Lines of the log so far, without one that is being written or was cut by a kill."""
    return log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


def wait_for_rows(log, rows):
    def is_far_enough():
        lines = whole_lines(log)
        assert not any(line.startswith(("ended", "error")) for line in lines), lines
        return any(line.startswith("done ") and int(line.split()[1]) >= rows for line in lines)

    wait_until(is_far_enough)


def test_a_signal_ends_a_run_cleanly(server, make_job, tmp_path):
    """Case 68, in a process of its own; test_stop has all stages."""
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    database, log = tmp_path / "answers.duckdb", tmp_path / "log"
    pid = server.start(path, log, gate=tmp_path / "gate", gate_rows=2)
    wait_for_rows(log, 2)
    os.kill(pid, signal.SIGTERM)
    (tmp_path / "gate").touch()
    assert server.wait(pid) == 143
    assert query(database, "SELECT status FROM runs") == [("interrupted",)]
    assert not journal_path(database).exists()
    assert 2 <= len(answers(database)) < ROWS
    run_to_end(server, path, log)
    assert query(database, "SELECT count(*), count(DISTINCT (doc_id, question_id)) FROM answers") == [(ROWS, ROWS)]


def test_two_runs_at_once_and_a_third_after_a_kill(server, make_job, tmp_path):
    """Case 69: the second is refused and told who holds the output; a dead holder's lock blocks nobody."""
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    database, first_log, log = tmp_path / "answers.duckdb", tmp_path / "first", tmp_path / "second"
    first = server.start(path, first_log, gate=tmp_path / "gate", gate_rows=1)
    wait_for_rows(first_log, 1)
    assert server.wait(server.start(path, log)) == 4
    said = log.read_text()
    assert "stage" not in said  # nothing was read or loaded
    for fact in ("another run holds", f"process {first} ", "docqa run test", "started at 2"):
        assert fact in said
    os.kill(first, signal.SIGKILL)
    server.wait(first)
    assert json.loads(database.with_name("answers.duckdb.lock").read_text())["pid"] == first
    run_to_end(server, path, log)
    assert query(database, "SELECT count(*), count(DISTINCT (doc_id, question_id)) FROM answers") == [(ROWS, ROWS)]


def test_a_second_run_waits_and_finds_everything_answered(server, make_job, tmp_path):
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    database, log = tmp_path / "answers.duckdb", tmp_path / "second"
    first = server.start(path, tmp_path / "first", gate=tmp_path / "gate", gate_rows=1)
    wait_for_rows(tmp_path / "first", 1)
    second = server.start(path, log, wait_seconds=60)
    wait_until(lambda: "waiting for another run" in log.read_text())
    (tmp_path / "gate").touch()
    assert server.wait(first) == 0
    assert server.wait(second) == 0
    assert f"waiting for another run on {database}: process {first}" in log.read_text()
    assert query(database, "SELECT rows_ok, rows_reused FROM runs ORDER BY started_at") == [(ROWS, 0), (0, ROWS)]


def test_three_runs_over_a_stale_lock_of_a_reused_pid(server, make_job, tmp_path):
    """Case 69: the file is from before the last boot, and its process id is now another program's."""
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    database = tmp_path / "answers.duckdb"
    holder = {"pid": os.getpid(), "started_at": "2001-01-01T00:00:00+00:00", "host": "old", "command": "docqa run"}
    database.with_name("answers.duckdb.lock").write_text(json.dumps(holder))
    logs = [tmp_path / f"log{number}" for number in range(3)]
    started = [server.start(path, log, gate=tmp_path / "gate") for log in logs]
    wait_until(lambda: sum("another run holds" in log.read_text() for log in logs) == 2)
    (tmp_path / "gate").touch()
    assert sorted(server.wait(pid) for pid in started) == [0, 4, 4]
    assert query(database, "SELECT count(*), count(DISTINCT (doc_id, question_id)) FROM answers") == [(ROWS, ROWS)]


@pytest.mark.parametrize(("limit_rows", "publish_rows", "expected"), [(0, 1, 2), (4, 1000, 3)])
def test_a_full_disk_is_named_and_what_was_finished_stays(
    server, make_job, tmp_path, limit_rows, publish_rows, expected
):
    """Case 55 with a limit on the size of files, which needs no rights: before the first row, and in the middle."""
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    database, log = tmp_path / "answers.duckdb", tmp_path / "log"
    options = {"publish_rows": publish_rows, "file_limit": 6000, "limit_rows": limit_rows}
    status = server.wait(server.start(path, log, step_seconds=0.01, **options))
    said = log.read_text()
    assert status == expected, said
    assert str(database) in said
    assert "bytes free" in said
    kept = len(answers(database)) if database.exists() else 0
    kept += len(read_journal(journal_path(database)).answers)
    assert kept >= limit_rows
    run_to_end(server, path, log)
    assert query(database, "SELECT count(*), count(DISTINCT (doc_id, question_id)) FROM answers") == [(ROWS, ROWS)]
    assert query(database, "SELECT rows_reused FROM runs ORDER BY started_at")[-1][0] >= limit_rows
    assert AnswerStore(database, read_only=True).check() == []
    assert not database.with_name("answers.duckdb.new").exists()


def test_no_process_outlives_a_killed_run(make_job):
    """A killed run takes the process with it that compiles its schemas, in the middle of its work."""
    path = make_job(sample_rows(1, 1))
    program = (
        "import psutil, time\n"
        "from grammars import GrammarCache\nfrom jobs.job_file import load_job\nfrom jobs.model import JobModel\n"
        f"grammars = GrammarCache(JobModel.of(load_job({str(path)!r})).grammars.vocabulary)\n"
        "schema = {'type': 'array', 'items': {'type': 'string', 'maxLength': 400}, 'maxItems': 20}\n"
        "grammars.start(schema, backend='index')\n"
        "while not psutil.Process().children(): time.sleep(0.01)\n"
        "child = psutil.Process().children()[0]\n"
        "while sum(child.cpu_times()[:2]) < 1.0: time.sleep(0.01)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.communicate()

    def has_ended():
        try:
            return child.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_until(has_ended)
