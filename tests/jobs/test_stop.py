"""A run that is stopped, out of time, or beside a process that holds its database (cases 52 and 68)."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import duckdb
import pytest

from engine.engine import Engine
from engine.errors import ModelError
from jobs import run as run_module
from jobs import run_output
from jobs.errors import OutputError
from jobs.job_file import load_job
from jobs.journal import journal_path, unpublished_rows
from jobs.output_lock import OutputLock
from jobs.publish import publish_pending
from jobs.run import Observer, StopRequest, run_job
from jobs.run_record import RunWriter
from jobs.store import AnswerStore, OutputBusy
from tests.job_fixtures import sample_rows
from tests.jobs.test_publish import Holder

ROWS = 20


def query(database, sql):
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(sql).fetchall()


@contextmanager
def signals(stop):
    """As the command line handles them."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, lambda number, frame: stop.request(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run(path, overrides=(), **options):
    stop = options.pop("stop", StopRequest())
    with signals(stop):
        return run_job(load_job(path, overrides), command="test", stop=stop, **options)


def assert_the_next_run_does_the_rest(path, before):
    after = run(path)
    assert after.exit_status == 0
    assert after.run.rows_reused == before
    counted = "SELECT count(*), count(DISTINCT (doc_id, question_id)), bool_and(status = 'ok') FROM answers"
    assert query(after.database, counted) == [(ROWS, ROWS, True)]
    assert AnswerStore(after.database, read_only=True).check() == []
    assert not journal_path(after.database).exists()


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("reading", signal.SIGTERM),
        ("loading", signal.SIGTERM),
        ("prefill", signal.SIGTERM),
        ("decode", signal.SIGTERM),
        ("decode", signal.SIGINT),
        ("publishing", signal.SIGTERM),
        ("last publishing", signal.SIGTERM),
    ],
)
def test_a_signal_at_any_stage_ends_the_run_cleanly(make_job, monkeypatch, moment, number):
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    steps, finished_load = [], []
    real_step, real_load, real_publish = Engine.step, run_module.make_engine, AnswerStore.publish

    def send():
        os.kill(os.getpid(), number)

    def load(*arguments):
        if moment == "loading":
            send()
        finished_load.append(True)
        return real_load(*arguments)

    def step(engine):
        steps.append(engine)
        if (moment, len(steps)) in (("prefill", 1), ("decode", 8)):
            send()
        return real_step(engine)

    def publish(store, records):
        if (moment == "publishing" and len(steps) > 8) or (moment == "last publishing" and not steps[-1].has_work):
            send()
        return real_publish(store, records)

    def stage(name):
        if moment == "reading" and name == "reading the input":
            send()

    if moment != "last publishing":
        monkeypatch.setattr(run_output, "PUBLISH_ROWS", 1)
        monkeypatch.setattr(run_output, "PUBLISH_SHARE", 1e6)
    monkeypatch.setattr(Engine, "step", step)
    monkeypatch.setattr(run_module, "make_engine", load)
    # The first publishing comes before any step.
    monkeypatch.setattr(AnswerStore, "publish", lambda s, r: publish(s, r) if steps else real_publish(s, r))
    outcome = run(path, observer=Observer(on_stage=stage))
    monkeypatch.undo()
    if moment == "last publishing":
        assert (outcome.exit_status, outcome.run.status, outcome.run.rows_ok) == (0, "finished", ROWS)
        return
    assert (outcome.exit_status, outcome.run.status) == (128 + number, "interrupted")
    assert f"stopped by signal {number:d}" in outcome.run.error
    if moment == "reading":
        assert not outcome.database.exists()
    else:
        assert query(outcome.database, "SELECT status, rows_ok FROM runs") == [("interrupted", outcome.run.rows_ok)]
        assert outcome.run.rows_pending == ROWS - outcome.run.rows_ok > 0
    assert finished_load == ([] if moment in ("reading", "loading") else [True])  # it did not wait for the load
    assert_the_next_run_does_the_rest(path, outcome.run.rows_ok)


def test_a_stop_while_waiting_for_another_run(make_job, tmp_path):
    path = make_job(sample_rows(1, 1))
    stop = StopRequest()
    with OutputLock(tmp_path / "answers.duckdb", "docqa run other.toml"):
        notes = []

        def note(text):
            notes.append(text)
            stop.request(signal.SIGTERM)

        outcome = run(path, stop=stop, observer=Observer(on_note=note), wait_seconds=60)
    assert outcome.exit_status == 143
    assert "docqa run other.toml" in notes[0]
    assert not outcome.database.exists()


def test_time_runs_out_while_loading_too(make_job, monkeypatch):
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    clock = [0.0]
    real_load = run_module.make_engine
    monkeypatch.setattr("jobs.run.time.monotonic", lambda: clock[0])

    def load(*arguments):
        clock[0] += 7200
        return real_load(*arguments)

    monkeypatch.setattr(run_module, "make_engine", load)
    outcome = run(path, ["run.time_budget=1h"])
    monkeypatch.undo()
    assert (outcome.exit_status, outcome.run.rows_ok, outcome.run.load_seconds) == (5, 0, 7200)
    assert_the_next_run_does_the_rest(path, 0)


def test_a_reader_from_before_the_start_to_after_the_end(make_job, tmp_path, monkeypatch):
    """The run reads what is answered, journals its answers, and the next one publishes them."""
    path = make_job(sample_rows(2, 2))
    database = run(path).database
    make_job(sample_rows())
    monkeypatch.setattr(run_output, "END_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(run_output, "START_WAIT_SECONDS", 0.1)
    notes = []
    with Holder(database) as holder:
        outcome = run(path, observer=Observer(on_note=notes.append))
        assert (outcome.exit_status, outcome.run.rows_ok, outcome.run.rows_reused) == (0, 16, 4)
        assert outcome.rows_waiting == unpublished_rows(database) == 16
        assert any(f"process {holder.pid}" in note for note in notes)
        again = run(path)  # knows what waits
        assert (again.exit_status, again.run.rows_ok, again.run.rows_reused) == (0, 0, 20)
    assert publish_pending(database).rows_published == 16
    assert query(database, "SELECT status, rows_ok, rows_reused FROM runs ORDER BY started_at") == [
        ("finished", 4, 0),
        ("finished", 16, 4),
        ("finished", 0, 20),
    ]
    assert len(query(database, "FROM answers_verdict")) == 20
    assert AnswerStore(database, read_only=True).check() == []


def test_a_writer_stops_the_run_before_the_model_is_loaded(make_job, monkeypatch):
    """Case 52: with a process that nobody can read beside, the run ends at once and names it."""
    path = make_job(sample_rows(1, 2))
    database = run(path).database
    monkeypatch.setattr("jobs.run.make_engine", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setattr("jobs.resume.READ_WAIT_SECONDS", 0.1)
    with Holder(database, "write") as holder, pytest.raises(OutputBusy, match=f"process {holder.pid} has the database"):
        run(path, ["sampling.seed=1"])


def test_a_model_that_can_not_be_loaded_is_a_failed_run_without_rows(make_job, monkeypatch):
    path = make_job(sample_rows())

    def refuse(*arguments):
        raise ModelError("model.device is 'cuda', but torch finds no GPU; use auto or cpu.")

    monkeypatch.setattr(run_module, "make_engine", refuse)
    with pytest.raises(ModelError):
        run(path)
    monkeypatch.setattr(run_module, "make_engine", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
    outcome = run(path)
    assert (outcome.exit_status, outcome.run.status, outcome.run.error) == (3, "failed", "MemoryError: no room")
    assert query(outcome.database, "SELECT status, rows_ok, error FROM runs ORDER BY started_at") == [
        ("failed", 0, "model.device is 'cuda', but torch finds no GPU; use auto or cpu."),
        ("failed", 0, "MemoryError: no room"),
    ]
    monkeypatch.undo()
    assert_the_next_run_does_the_rest(path, 0)


def test_a_fault_in_one_row_keeps_the_rows_before_it(make_job, monkeypatch):
    """Case 67: nothing has to be deleted by hand before the next run."""
    path = make_job(sample_rows(), engine={"step_tokens": 64})
    real_add, added = RunWriter.add_completed, []

    def add(writer, planned, *completions):
        if len(added) == 8:
            raise ZeroDivisionError("a fault of docqa")
        added.append(planned)
        return real_add(writer, planned, *completions)

    monkeypatch.setattr(RunWriter, "add_completed", add)
    outcome = run(path)
    assert (outcome.exit_status, outcome.run.status, outcome.run.rows_ok) == (3, "failed", 8)
    assert outcome.run.error == "ZeroDivisionError: a fault of docqa"
    monkeypatch.undo()
    assert_the_next_run_does_the_rest(path, 8)


def test_a_newer_database_is_refused_before_anything_is_read_or_loaded(make_job, monkeypatch):
    path = make_job(sample_rows(1, 2))
    database = run(path).database
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE docqa_meta SET value = '99'")
    before = database.read_bytes()
    monkeypatch.setattr("jobs.run.make_engine", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(OutputError, match=r"answers\.duckdb is a docqa store of version 99.*docqa that wrote it"):
        run(path)
    assert database.read_bytes() == before


def test_a_damaged_journal_stops_the_run_and_is_kept(make_job):
    path = make_job(sample_rows(1, 2))
    database = run(path).database
    journal = journal_path(database)
    journal.write_bytes(b"what is this?")
    with pytest.raises(OutputError, match=r"answers\.duckdb\.journal is no journal of docqa; move it away"):
        run(path)
    assert journal.read_bytes() == b"what is this?"


def test_a_full_file_system(make_job, tmp_path):
    """Case 55 on a small file system of its own; where user namespaces are off, test_kill limits file sizes instead."""
    inside = tmp_path / "small"
    inside.mkdir()
    probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(inside)]
    try:
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            pytest.skip("this system mounts no file systems for its users")
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    make_job(sample_rows(8, 8))
    program = """
__file__ = "program"  # without one, DuckDB thinks that a person looks on and draws a bar for what takes over 2 s
import os, shutil, subprocess, sys
from pathlib import Path
small, source = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=True)
for name in ("rows.parquet", "verdict.json", "job.toml"):
    shutil.copy(source / name, small)
import duckdb
from jobs import run_output
from jobs.job_file import load_job
from jobs.journal import journal_path, read_journal
from jobs.run import Observer, StopRequest, run_job
from jobs.run_record import RunWriter
from jobs.store import AnswerStore
run_output.PUBLISH_SHARE = 1.0
run_output.PUBLISH_ROWS = 8
def fill(progress):
    if progress.rows_done < 20:
        return
    with open(small / "filler", "ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
def run(**observed):
    return run_job(load_job(small / "job.toml"), command="test", stop=StopRequest(), observer=Observer(**observed))
database = small / "answers.duckdb"
first = run(on_progress=fill)
print("first", first.exit_status, first.run.status, first.run.error)
with duckdb.connect(str(database), read_only=True) as connection:
    kept = connection.execute("SELECT count(*) FROM answers").fetchall()[0][0]
kept += len(read_journal(journal_path(database)).answers)
(small / "filler").unlink()
assert kept >= 20
second = run()
with duckdb.connect(str(database), read_only=True) as connection:
    counts = connection.execute("SELECT count(*), count(DISTINCT (doc_id, question_id)) FROM answers").fetchall()
print("second", second.exit_status, second.run.rows_reused - kept, *counts[0], AnswerStore(database).check())
"""
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", program, str(inside), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    first, second = done.stdout.splitlines() or [done.stderr, ""]
    assert first.startswith("first 3 failed"), done.stderr
    assert str(inside / "answers.duckdb") in first
    assert "bytes free" in first
    assert second == "second 0 0 64 64 []"
