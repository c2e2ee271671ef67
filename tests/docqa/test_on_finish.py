"""`--on-finish`: a command that is told how a run ended."""

import json
import shlex
import time

import psutil
import pytest

from docqa.on_finish import run_on_finish
from tests.job_fixtures import sample_rows


@pytest.fixture
def told(tmp_path):
    """(command that keeps what it is told, function that returns it)."""
    place = tmp_path / "told.json"
    return f"cat >{shlex.quote(str(place))}", lambda: json.loads(place.read_text())


def test_a_finished_run(docqa, make_job, told):
    command, summary = told
    status, out, err = docqa("run", make_job(sample_rows(1, 2)), "--on-finish", command, "--json", "--quiet")
    assert (status, err) == (0, "")
    assert summary() == json.loads(out)
    assert (summary()["status"], summary()["rows_ok"], summary()["exit_status"]) == ("finished", 2, 0)
    assert "finished: 2 ok, 0 failed. Answers: " in summary()["message"]


def test_a_run_with_failed_rows(docqa, make_job, told):
    rows = sample_rows(1, 3)
    rows[0]["question"] = ""
    command, summary = told
    assert docqa("run", make_job(rows, run={"max_failures": "50%"}), "--on-finish", command)[0] == 1
    assert (summary()["rows_failed"], summary()["exit_status"]) == (1, 1)


def test_a_run_that_never_began(docqa, make_job, tmp_path, told, monkeypatch):
    command, summary = told
    monkeypatch.setenv("DOCQA_ON_FINISH", command)
    path = make_job(sample_rows(1, 1))
    (tmp_path / "rows.parquet").write_bytes(b"PAR1nonsense")
    status, out, _ = docqa("run", path, "--json")
    assert status == 2
    assert summary() == json.loads(out)
    assert (summary()["status"], summary()["exit_status"], summary()["job_name"]) == ("not_run", 2, "test")
    assert "rows.parquet" in summary()["error"]
    assert summary()["message"] == summary()["error"]
    assert docqa("run", tmp_path / "none.toml")[0] == 2
    assert (summary()["job_name"], summary()["database"]) == (None, None)


def test_an_output_that_is_held(docqa, make_job, tmp_path, told):
    from jobs.output_lock import OutputLock

    command, summary = told
    with OutputLock(tmp_path / "answers.duckdb", "docqa run other.toml"):
        assert docqa("run", make_job(sample_rows(1, 1)), "--on-finish", command)[0] == 4
    assert (summary()["status"], summary()["holder"]["command"]) == ("locked", "docqa run other.toml")


def test_a_fault_of_docqa_is_exit_3_and_told(docqa, make_job, told, monkeypatch):
    command, summary = told
    monkeypatch.setattr("docqa.run.run_job", lambda *_, **__: {}["nothing"])
    status, _, err = docqa("run", make_job(sample_rows(1, 1)), "--on-finish", command)
    assert (status, summary()["status"], summary()["exit_status"]) == (3, "failed", 3)
    assert "please report it" in err
    assert "KeyError" in err


def test_its_failure_is_a_note_and_changes_nothing(docqa, make_job):
    path = make_job(sample_rows(1, 1))
    status, out, err = docqa("run", path, "--quiet", "--on-finish", "echo heard; exit 7")
    assert (status, out) == (0, "")
    assert err == "docqa: the --on-finish command ended with status 7: echo heard; exit 7\n"
    status, _, err = docqa("run", path, "--log-format", "json", "--on-finish", "kill -9 $$")
    assert status == 0
    assert json.loads(err.splitlines()[-1])["message"].startswith("the --on-finish command was ended by signal 9")


def test_a_command_that_does_not_read(docqa, make_job):
    assert run_on_finish("true", {"text": "x" * 1_000_000}) is None


def is_alive(pid):
    try:
        # Where no process adopts it, what has ended stays as a zombie.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path):
    place = tmp_path / "pid"
    command = f"sleep 600 & echo $! >{shlex.quote(str(place))}; wait"
    for seconds in (1.0, 10.0, 100.0):  # on a busy machine it takes a while to start
        fault = run_on_finish(command, {}, timeout_seconds=seconds)
        assert fault is not None
        assert fault.startswith(f"the --on-finish command was ended after {seconds:.0f} seconds")
        if place.exists() and place.read_text():
            break
    pid = int(place.read_text())
    deadline = time.monotonic() + 300
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)
