"""A job that runs every night, as its user sees it: exit statuses, retries, overlaps, status, upkeep."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import duckdb
import pytest

from jobs.output_lock import OutputLock
from jobs.store import AnswerRecord, AnswerStore, RunEnding, RunRecord
from tests.job_fixtures import sample_rows, write_rows


def query(database, text):
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(text).fetchall()


@pytest.fixture
def hold():
    """hold(database) -> a process that holds its output as another run would; ended after the test."""
    held = []

    def hold(database):
        program = (
            "import sys, time; from jobs.output_lock import OutputLock\n"
            "with OutputLock(sys.argv[1], 'docqa run nightly.toml'): print('held', flush=True); time.sleep(600)"
        )
        process = subprocess.Popen([sys.executable, "-c", program, str(database)], stdout=subprocess.PIPE)
        held.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield hold
    for process in held:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("failing", "status"), [(0, 0), (1, 1), (6, 1), (7, 3)])
def test_exit_statuses_tell_failures_apart(docqa, make_job, failing, status):
    """Case 72: rows that fail, within max_failures and above; the last line on stdout is the summary.

    One who reads only what a quiet run writes is told why the exit status is 3.
    """
    rows = sample_rows(2, 5)
    for row in rows[:failing]:
        row["question"] = ""
    found, out, err = docqa("run", make_job(rows, run={"max_failures": "60%"}), "--json", "--quiet")
    summary = json.loads(out.splitlines()[-1])
    assert (found, summary["exit_status"], summary["rows_failed"]) == (status, status, failing)
    why = '7 of 10 rows failed, and run.max_failures is "60%": exit status 3; docqa report says why they failed'
    assert err == (f"docqa: {why}\n" if status == 3 else "")
    assert (summary["message"].splitlines()[-1] == why) == (status == 3)


def test_exit_statuses_of_runs_that_did_not_end_well(docqa, make_job, tmp_path, monkeypatch):
    """Case 72: a bad setting, a held output, a full disk, an engine that dies."""
    path = make_job(sample_rows(1, 2))
    status, out, _ = docqa("run", path, "--set", "sampling.max_tokens=none", "--json")
    assert (status, json.loads(out)["status"]) == (2, "not_run")
    with OutputLock(tmp_path / "answers.duckdb", "docqa run other.toml"):
        status, out, _ = docqa("run", path, "--json")
    assert (status, json.loads(out)["status"]) == (4, "locked")

    from engine.engine import Engine

    def dies(engine):
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", dies)
        status, out, err = docqa("run", path, "--json")
    assert (status, json.loads(out)["status"]) == (3, "failed")
    assert "the device is gone" in err
    assert "Traceback" not in err
    assert docqa("run", path, "--quiet") == (0, "", "")


def test_a_full_stdout_does_not_change_how_a_run_ended(make_job, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("/dev/full is not here")
    path = make_job(None, "none.toml")
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "docqa.main", "run", str(path), "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "could not be printed" in result.stderr


def test_a_second_run_names_the_first(docqa, make_job, tmp_path, hold):
    """Case 69: the second exits at once with the holder's facts; after kill -9 of the first, the next one runs.

    So does one that finds the pid of a living program in the lock file that the dead one left.
    """
    path = make_job(sample_rows(1, 2))
    holder = hold(tmp_path / "answers.duckdb")
    status, out, err = docqa("run", path)
    assert (status, out, err.count("\n")) == (4, "", 1)
    for fact in (str(holder.pid), "docqa run nightly.toml", "20"):
        assert fact in err
    status, out, _ = docqa("status", tmp_path / "answers.duckdb", "--json")
    assert (status, json.loads(out)["holder"]["pid"]) == (0, holder.pid)
    holder.kill()
    holder.wait()
    lock_file = tmp_path / "answers.duckdb.lock"
    left = json.loads(lock_file.read_text())
    lock_file.write_text(json.dumps(left | {"pid": os.getppid()}))
    assert docqa("run", path, "--quiet") == (0, "", "")


@pytest.fixture
def once_it_waits(monkeypatch):
    """once_it_waits(act): act is called when a run has said that it waits for its output."""

    def once_it_waits(act):
        def lock(*arguments, on_wait, **options):
            return OutputLock(*arguments, on_wait=lambda holder: (on_wait(holder), act()), **options)

        monkeypatch.setattr("jobs.run.OutputLock", lock)

    return once_it_waits


def test_a_second_run_waits(docqa, make_job, tmp_path, hold, once_it_waits):
    path = make_job(sample_rows(1, 2))
    holder = hold(tmp_path / "answers.duckdb")
    assert docqa("run", path, "--wait", "0.2s", "--quiet")[0] == 4
    once_it_waits(holder.kill)
    status, _, err = docqa("run", path, "--wait", "5m")
    assert (status, "2 ok" in err, "waiting" in err) == (0, True, True)


def test_waiting_ends_with_a_signal(docqa, make_job, tmp_path, hold, once_it_waits):
    path = make_job(sample_rows(1, 2))
    hold(tmp_path / "answers.duckdb")
    once_it_waits(lambda: os.kill(os.getpid(), signal.SIGTERM))
    status, out, _ = docqa("run", path, "--wait", "5m", "--json")
    assert (status, json.loads(out)["status"]) == (143, "interrupted")


@pytest.mark.parametrize("wait", ["soon", "-5", "0", "10 parsecs", ""])
def test_a_bad_duration(docqa, make_job, wait):
    status, _, err = docqa("run", make_job(sample_rows(1, 1)), f"--wait={wait}")
    assert status == 2
    assert '"90m"' in err


def test_retry_takes_failed_rows_with_new_limits(docqa, make_job, tmp_path):
    """Case 66, from the command line; earlier attempts stay."""
    path = make_job(sample_rows(2, 5), sampling={"max_tokens": 60}, run={"max_failures": "100%"})
    assert docqa("run", path, "--quiet")[0] == 0
    status, out, _ = docqa("run", path, "--rerun", "--set", "sampling.max_tokens=3", "--json")
    assert (status, json.loads(out)["rows_failed"]) == (1, 10)
    # All have a valid answer to the job's own request, from the first run.
    status, out, _ = docqa("retry", path, "--json")
    assert (status, json.loads(out)["rows_ok"]) == (0, 0)
    status, out, _ = docqa("run", path, "--output", tmp_path / "b.duckdb", "--set", "sampling.max_tokens=3", "--json")
    assert (status, json.loads(out)["rows_failed"]) == (1, 10)
    status, out, _ = docqa("retry", path, "--output", tmp_path / "b.duckdb", "--json")
    assert (status, json.loads(out)["rows_ok"]) == (0, 10)
    attempts = query(tmp_path / "b.duckdb", "SELECT status, count(*) FROM answers GROUP BY ALL ORDER BY ALL")
    assert attempts == [("ok", 10), ("truncated", 10)]
    assert query(tmp_path / "b.duckdb", "SELECT DISTINCT status FROM latest_answers") == [("ok",)]
    status, _, err = docqa("retry", path, "--output", tmp_path / "b.duckdb")
    assert (status, "0 ok, 0 failed" in err) == (0, True)


def test_rerun_answers_every_row_again(docqa, make_job, tmp_path, monkeypatch):
    path = make_job(sample_rows(1, 3))
    docqa("run", path, "--quiet")
    monkeypatch.setenv("DOCQA_RERUN", "1")
    status, out, _ = docqa("run", path, "--json")
    assert (status, json.loads(out)["rows_ok"], json.loads(out)["rows_reused"]) == (0, 3, 0)
    assert query(tmp_path / "answers.duckdb", "SELECT max(attempt), count(*) FROM answers") == [(2, 6)]


def test_a_plan_says_what_is_new_changed_done_and_gone(docqa, make_job, tmp_path):
    rows = sample_rows(4, 5)
    path = make_job(rows)
    docqa("run", path, "--quiet")
    assert json.loads(docqa("plan", path, "--json")[1])["rows_done"] == 20
    for row in rows:
        if row["doc_id"] == "d2":
            row["document"] += "An addition."
    keys = [row for row in rows if row["doc_id"] != "d3"]
    write_rows(tmp_path / "rows.parquet", [*keys, {**keys[0], "question_id": "new"}])
    found = json.loads(docqa("plan", path, "--json")[1])
    assert {name: found[f"rows_{name}"] for name in ("new", "changed", "done", "gone", "to_run")} == {
        "new": 1, "changed": 5, "done": 10, "gone": 5, "to_run": 6,
    }  # fmt: skip
    assert found["changed_by"] == {"document": 5}
    out = docqa("plan", path)[1]
    for line in (r"new\s+1", r"changed\s+5\s+document of 5", r"done\s+10", r"gone\s+5", r"to run\s+6"):
        assert re.search(line, out), out


def test_everything_new_since_the_last_success_is_taken(docqa, make_job, tmp_path):
    """Case 71: the machine was off for three nights; one run takes what came in all of them."""
    folder = tmp_path / "in"
    folder.mkdir()
    path = make_job(None, input={"documents": "in/*.parquet"})
    for night, present in enumerate((True, False, False, True)):
        rows = [row | {"doc_id": f"night{night}-{row['doc_id']}"} for row in sample_rows(1, 2)]
        write_rows(folder / f"night{night}.parquet", rows)
        if present:
            status, out, _ = docqa("run", path, "--json")
    summary = json.loads(out)
    assert (status, summary["rows_ok"], summary["rows_reused"]) == (0, 6, 2)


def test_status_of_an_output(docqa, make_job, tmp_path):
    rows = sample_rows(2, 5)
    rows[0]["question"] = ""
    database = tmp_path / "answers.duckdb"
    path = make_job(rows, run={"max_failures": "50%"})
    status, _, err = docqa("status", database)
    assert (status, err.count("\n"), "does not exist" in err) == (2, 1, True)
    docqa("run", path, "--quiet", "--set", "run.time_budget=0.000001")
    status, out, _ = docqa("status", database, "--json")
    found = json.loads(out)
    assert (status, found["rows_pending"], found["runs"][0]["state"]) == (0, 9, "out_of_time")
    assert "9 rows of the latest run are pending" in docqa("status", database)[1]
    docqa("run", path, "--quiet")
    found = json.loads(docqa("status", database, "--json")[1])
    assert [run["state"] for run in found["runs"]] == ["finished", "out_of_time"]
    assert (found["rows_pending"], found["failed_rows"], found["rows_in_journal"]) == (0, {"empty_question": 1}, 0)
    assert found["database_bytes"] == database.stat().st_size
    assert (found["holder"], found["busy"]) == (None, None)
    status, out, err = docqa("status", database)
    assert (status, err) == (0, "")
    assert "No run is going on." in out
    assert "Without a valid answer: 1 empty_question" in out


def test_status_tells_bad_files_and_reuse(docqa, tmp_path):
    database = tmp_path / "answers.duckdb"
    store = AnswerStore(database)
    bad = [{"file": f"part-{number}.parquet", "reason": "it is empty"} for number in range(2)]
    store.begin_run(RunRecord(run_id="r1", rows_total=1, bad_files=json.dumps(bad)))
    tokens = {"prompt_tokens": 8, "cached_tokens": 6, "computed_tokens": 2, "minimum_tokens": 2}
    store.write_answers([AnswerRecord(run_id="r1", doc_id="d", question_id="q", status="ok", answer="{}", **tokens)])
    store.finish_run(RunEnding(run_id="r1", status="finished"))
    [run] = json.loads(docqa("status", database, "--json")[1])["runs"]
    assert (run["bad_files"], run["reused_share"]) == (bad, 0.75)
    out = docqa("status", database)[1]
    assert "In the latest run, 2 files can't be read and were skipped: part-0.parquet, part-1.parquet." in out
    assert re.search(r"finished +75\.0% +1 ok, 0 failed; 2 bad files", out)


READER = """
import sys, duckdb
with duckdb.connect(sys.argv[1], read_only=True):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_answers_that_wait_in_the_journal_are_published(docqa, make_job, tmp_path, monkeypatch):
    """Case 52, as its user sees it: a program opens the database during a run and keeps it open."""
    from engine.engine import Engine

    monkeypatch.setattr("jobs.run_output.END_WAIT_SECONDS", 0.2)
    monkeypatch.setattr("docqa.status.PATIENCE_SECONDS", 0.2)
    database = tmp_path / "answers.duckdb"
    rows = sample_rows(2, 5)
    path = make_job(rows[:4])
    docqa("run", path, "--quiet")
    write_rows(tmp_path / "rows.parquet", rows)
    readers = []
    real_step = Engine.step

    def step(engine):
        if not readers:
            command = [sys.executable, "-c", READER, str(database)]
            readers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            readers[0].stdout.readline()
        return real_step(engine)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", step)
        status, out, err = docqa("run", path, "--json")
    summary = json.loads(out)
    assert (status, summary["rows_ok"], summary["rows_waiting"]) == (0, 6, 6)
    assert "6 answers wait in the journal" in err
    found = json.loads(docqa("status", database, "--json")[1])
    assert (found["rows_in_journal"], found["journal_bytes"] > 0) == (6, True)
    status, out, err = docqa("status", database, "--publish")
    assert (status, "6 answers wait" in err, "6 answers wait in the journal" in out) == (4, True, True)
    readers[0].communicate()
    status, out, err = docqa("status", database, "--publish")
    assert (status, err) == (0, "docqa: 6 answers were published\n")
    assert "journal" not in out
    assert query(database, "SELECT count(*) FROM latest_answers WHERE status = 'ok'") == [(10,)]
    assert json.loads(docqa("plan", path, "--json")[1])["rows_done"] == 10


def test_a_first_run_that_has_not_answered_yet(docqa, tmp_path, hold):
    holder = hold(tmp_path / "answers.duckdb")
    status, out, _ = docqa("status", tmp_path / "answers.duckdb")
    assert status == 0
    assert f"Held by process {holder.pid}" in out
    assert "There is no run in it yet." in out


def test_compact(docqa, make_job, tmp_path, hold):
    path = make_job(sample_rows(2, 5))
    database = tmp_path / "answers.duckdb"
    for _ in range(3):
        docqa("run", path, "--rerun", "--quiet")
    assert query(database, "SELECT count(*) FROM answers") == [(30,)]
    status, out, err = docqa("compact", database, "--keep-attempts", "2", "--json")
    assert (status, json.loads(out)["rows_removed"]) == (0, 10)
    assert "10 old attempts removed" in err
    status, out, err = docqa("compact", database, "--older-than", "90d", "--quiet")
    assert (status, out, err) == (0, "", "")
    assert query(database, "SELECT count(*) FROM answers") == [(20,)]
    time.sleep(0.01)
    assert json.loads(docqa("compact", database, "--older-than", "0.001s", "--json")[1])["rows_removed"] == 10
    assert query(database, "SELECT count(*) FROM latest_answers") == [(10,)]
    assert docqa("compact", database, "--keep-attempts", "0")[0] == 2
    assert docqa("compact", tmp_path / "none.duckdb")[0] == 2
    hold(database)
    assert docqa("compact", database)[0] == 4
