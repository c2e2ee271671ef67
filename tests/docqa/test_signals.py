"""Signals in every part of a run: case 68 of what users run into."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path
from queue import SimpleQueue

import duckdb
import pytest

import jobs.run
from docqa.stop_signals import stop_signals
from jobs.observe import StopRequest
from jobs.store import AnswerStore
from tests.job_fixtures import sample_rows

ROOT = Path(__file__).resolve().parents[2]
PHASES = ("load", "prefill", "decode", "publish")
PATIENCE_SECONDS = 300  # for what is due at once, on a machine that is busy

STEP = """
__file__ = "program"  # without one, DuckDB thinks that a person looks on and draws a bar for what takes over 2 s
import os, sys, time
from docqa.main import main
from engine.engine import Engine
from jobs.observe import StopRequest

real_step, real_request, steps = Engine.step, StopRequest.request, []

def step(engine):
    steps.append(engine)
    if len(steps) == 12:
        {}
    return real_step(engine)

def request(stop, number):
    print("asked to stop", flush=True)
    real_request(stop, number)

Engine.step, StopRequest.request = step, request
sys.argv = ["docqa", "run", *sys.argv[1:]]
main()
"""


@pytest.fixture(autouse=True)
def _none_is_ignored():
    """As in a terminal: tests that are started in the background ignore SIGINT, with nohup SIGHUP too."""
    default = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in default.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def start():
    """start(program, job, options of Popen) -> a process that runs a job; it does not outlive the test."""
    started = []

    def start(program, path, **options):
        started.append(subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT, **options))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def send_in(monkeypatch):
    """send_in(phase, signal): the run sends itself the signal when it gets there, once."""
    from engine.engine import Engine

    def send_in(phase, number):
        sent = []

        def once(is_time=True):
            if is_time and not sent:
                sent.append(number)
                os.kill(os.getpid(), number)

        def before(place, name, is_time=lambda calls: True):
            real, calls = getattr(place, name), []

            def wrapped(*arguments, **options):
                calls.append(1)
                once(is_time(len(calls)))
                return real(*arguments, **options)

            monkeypatch.setattr(place, name, wrapped)

        if phase == "load":
            before(jobs.run, "make_engine")
        elif phase == "publish":
            before(AnswerStore, "publish")
        else:
            before(Engine, "step", lambda calls: calls == (1 if phase == "prefill" else 12))
        return sent

    return send_in


def query(database, text):
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(text).fetchall()


def assert_whole(docqa, path, database):
    """The next run does the rest: every row once, nothing lost, nothing doubled."""
    assert docqa("run", path, "--quiet")[0] == 0
    assert query(database, "SELECT count(*), count(DISTINCT (doc_id, question_id)) FROM answers") == [(20, 20)]
    assert query(database, "SELECT status FROM runs ORDER BY started_at")[-1] == ("finished",)
    assert AnswerStore(database, read_only=True).check() == []


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_whole_rows_and_says_so(docqa, make_job, tmp_path, send_in, phase, number):
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    sent = send_in(phase, number)
    status, out, err = docqa("run", path, "--json")
    assert sent == [number]
    summary = json.loads(out)
    assert summary["exit_status"] == status
    assert "Traceback" not in err
    if phase == "publish" and status == 0:
        assert summary["rows_ok"] == 20  # there was nothing left to stop
    else:
        assert (status, summary["status"]) == (128 + number, "interrupted")
        assert summary["rows_ok"] + summary["rows_pending"] == 20
    statuses = query(tmp_path / "answers.duckdb", "SELECT status, rows_ok FROM runs")
    assert statuses == [(summary["status"], summary["rows_ok"])]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert_whole(docqa, path, tmp_path / "answers.duckdb")


@pytest.mark.parametrize("phase", PHASES)
def test_a_hangup_is_survived(docqa, make_job, tmp_path, send_in, monkeypatch, phase):
    monkeypatch.setattr("os.isatty", lambda descriptor: False)  # or the terminal of these tests would be let go
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    sent = send_in(phase, signal.SIGHUP)
    status, _, err = docqa("run", path)
    assert (status, sent) == (0, [signal.SIGHUP])
    assert "20 ok, 0 failed" in err
    assert AnswerStore(tmp_path / "answers.duckdb", read_only=True).check() == []


def test_a_hangup_is_told_in_another_thread(monkeypatch):
    """The thread that a signal interrupts may hold a lock of the log."""
    monkeypatch.setattr("os.isatty", lambda descriptor: False)
    told = SimpleQueue()
    with stop_signals(StopRequest(), lambda: told.put(threading.get_ident())):
        os.kill(os.getpid(), signal.SIGHUP)
        assert told.get(timeout=PATIENCE_SECONDS) != threading.get_ident()


def test_a_terminal_that_goes_away_ends_no_run(make_job, tmp_path, start):
    """A window that is closed: the kernel sends SIGHUP, and every later write to the terminal fails."""
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    gone = tmp_path / "gone"
    ours, theirs = pty.openpty()
    process = start(
        STEP.format(f"while not os.path.exists({str(gone)!r}): time.sleep(0.01)"), path,
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"% of tokens" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    gone.touch()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert query(tmp_path / "answers.duckdb", "SELECT status, rows_ok FROM runs") == [("finished", 20)]


def test_a_second_interrupt_stops_at_once(docqa, make_job, tmp_path, start):
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    process = start(
        STEP.format("print('stuck', flush=True), time.sleep(600)"), path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout.readline() == b"stuck\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"asked to stop\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)  # the first one waits for the step
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert b"Traceback" not in err
    database = tmp_path / "answers.duckdb"
    assert "killed" in docqa("status", database)[1]
    assert_whole(docqa, path, database)


def test_what_was_ignored_stays_ignored():
    """nohup, and a shell's & for SIGINT."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with stop_signals(stop, lambda: pytest.fail("the hang-up was not ignored")):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.signal_number == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
