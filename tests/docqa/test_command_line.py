import json
import os
import re
import signal
import subprocess
import sys
import time

import duckdb
import pytest

from docqa import main as command_line
from docqa.progress import duration, progress_line
from jobs.run import Progress
from tests.job_fixtures import sample_rows


@pytest.fixture
def docqa(monkeypatch, capsys):
    """docqa("run", path, ...) -> (exit status, stdout, stderr), in this process."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["docqa", *map(str, arguments)])
        status = 0
        try:
            command_line.main()
        except SystemExit as ended:
            status = ended.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def start(*arguments, **options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "docqa.main", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_run_plan_and_report(docqa, make_job, tmp_path):
    path = make_job(sample_rows())
    status, out, err = docqa("plan", path)
    assert (status, err) == (0, "")
    assert re.search(r"rows\s+20", out)
    assert re.search(r"documents\s+4", out)
    status, out, err = docqa("run", path)
    assert (status, out) == (0, "")
    assert "20 ok, 0 failed" in err
    status, out, err = docqa("report", tmp_path / "answers.duckdb")
    assert (status, err) == (0, "")
    assert "1.000 of the least possible" in out
    status, out, _ = docqa("plan", path, "--json")
    summary = json.loads(out)
    assert (summary["rows"], summary["rows_to_run"], summary["rows_answered"]) == (20, 0, 20)


def test_json_is_on_stdout_and_totals_agree(docqa, make_job, tmp_path):
    path = make_job(sample_rows())
    plan = json.loads(docqa("plan", path, "--json")[1])
    status, out, _ = docqa("run", path, "--json")
    summary = json.loads(out)
    assert summary["exit_status"] == status == 0
    assert summary["rows_ok"] == plan["rows"] == 20
    assert summary["minimum_tokens"] == summary["computed_tokens"] == plan["minimum_tokens"]
    assert summary["prompt_tokens"] == plan["prompt_tokens"]
    report = json.loads(docqa("report", tmp_path / "answers.duckdb", "--json")[1])
    assert report["rows_by_status"] == {"ok": 20}
    assert report["computed_to_minimum"] == 1.0
    assert sum(document["computed_tokens"] for document in report["documents"]) == summary["computed_tokens"]
    assert docqa("report", tmp_path / "answers.duckdb", "--run", "nothing")[0] == 2


def test_quiet_success_writes_nothing(docqa, make_job):
    assert docqa("run", make_job(sample_rows(1, 2)), "--quiet") == (0, "", "")


def test_environment_twins(docqa, make_job, monkeypatch):
    monkeypatch.setenv("DOCQA_QUIET", "1")
    monkeypatch.setenv("DOCQA_SET", "sampling.max_tokens=3 run.max_failures=100%")
    status, out, err = docqa("run", make_job(sample_rows(1, 2)))
    assert (status, out, err) == (1, "", "")


def test_flags_instead_of_a_job_file(docqa, make_job, tmp_path, tiny_model_folder, monkeypatch):
    make_job(sample_rows(2, 2))
    monkeypatch.chdir(tmp_path)
    flags = ("--documents", "rows.parquet", "--schema", "verdict.json", "--model", tiny_model_folder)
    status, out, _ = docqa("run", *flags, "--output", "flags.duckdb", "--json")
    assert (status, json.loads(out)["rows_ok"]) == (0, 4)
    status, out, _ = docqa("run", *flags, "--output", "mapped.duckdb", "--column", "question=doc_id", "--json")
    assert (status, json.loads(out)["rows_ok"]) == (0, 4)
    with duckdb.connect("mapped.duckdb", read_only=True) as connection:
        assert connection.execute("SELECT DISTINCT question = doc_id FROM answers").fetchall() == [(True,)]


def test_flags_win_over_the_job_file(docqa, make_job, tmp_path, monkeypatch):
    path = make_job(sample_rows(1, 2))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert docqa("run", path, "--output", "mine.duckdb", "--quiet")[0] == 0
    assert (elsewhere / "mine.duckdb").exists()
    assert not (tmp_path / "answers.duckdb").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_text("[input"), r"line 1"),
        (
            lambda path: path.write_text(path.read_text().replace("[sampling]", "[smapling]")),
            r"nearest known one is \[sampling\]",
        ),
        (lambda path: path.write_text(path.read_text().replace("rows.parquet", "none.parquet")), "none.parquet"),
        (lambda path: path.write_text(path.read_text().replace('"verdict.json"', '"missing.json"')), "missing.json"),
        (lambda path: (path.parent / "rows.parquet").write_bytes(b"PAR1nonsense"), "rows.parquet"),
        (lambda path: path.unlink(), "can't be read"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_2(docqa, make_job, tmp_path, change, message):
    path = make_job(sample_rows(1, 2))
    change(path)
    status, out, err = docqa("run", path)
    assert (status, out) == (2, "")
    assert re.search(message, err)
    assert err.startswith("docqa: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "answers.duckdb").exists()


def test_an_unknown_model_is_exit_2(docqa, make_job, tmp_path):
    (tmp_path / "model").mkdir()
    status, _, err = docqa("run", make_job(sample_rows(1, 1)), "--model", tmp_path / "model")
    assert (status, "config.json" in err) == (2, True)


def test_failed_rows_are_exit_1_and_reported(docqa, make_job, tmp_path):
    rows = sample_rows(1, 3)
    rows[0]["question"] = ""
    status, _, err = docqa("run", make_job(rows, run={"max_failures": "50%"}))
    assert (status, "2 ok, 1 failed" in err) == (1, True)
    out = docqa("report", tmp_path / "answers.duckdb")[1]
    assert "empty_question: d0" in out


def test_a_held_output_is_exit_4(docqa, make_job, tmp_path):
    from jobs.output_lock import OutputLock

    path = make_job(sample_rows(1, 1))
    with OutputLock(tmp_path / "answers.duckdb", "docqa run nightly.toml"):
        status, _, err = docqa("run", path)
    assert (status, "nightly.toml" in err, str(os.getpid()) in err) == (4, True, True)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_cleanly(make_job, tmp_path, number, status):
    process = start("run", make_job(sample_rows(8, 8), engine={"step_tokens": 1}))
    database = tmp_path / "answers.duckdb"
    deadline = time.monotonic() + 60
    while not database.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    with duckdb.connect(str(database), read_only=True) as connection:
        assert connection.execute("SELECT status FROM runs").fetchall() == [("interrupted",)]
    assert b"Traceback" not in err


def test_an_ascii_locale_and_paths_with_other_letters(make_job, tmp_path):
    import shutil

    folder = tmp_path / "Prüfung" / "вход"
    folder.mkdir(parents=True)
    make_job(sample_rows(1, 2))
    for name in ("rows.parquet", "verdict.json", "job.toml"):
        shutil.copy(tmp_path / name, folder / name)
    environment = {"PATH": os.environ["PATH"], "LANG": "C", "PYTHONIOENCODING": "ascii", "HOME": str(tmp_path)}
    process = start("run", folder / "job.toml", env=environment, stdin=subprocess.DEVNULL, cwd=os.getcwd())
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, b""), err
    assert b"2 ok" in err
    assert b"\r" not in err
    assert b"\x1b" not in err


def test_progress_is_counted_in_tokens():
    progress = Progress(10, 4, 1, 900, 600, 500, 1000, 50.0)
    assert progress_line(progress) == " 50% of tokens, 4/10 rows, 0.1 rows/s, 67% reused, 1 failed, 50 s left"
    assert [duration(seconds) for seconds in (3, 185, 7800)] == ["3 s", "3 min 05 s", "2 h 10 min"]
