"""The store beside other processes: readers, holders, kills and full disks."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest

from jobs.errors import OutputError
from jobs.store import AnswerRecord, AnswerStore, OutputBusy, RunRecord

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
__file__ = "program"  # without one, DuckDB thinks that a person looks on and draws a bar for what takes over 2 s
import os, resource, sys
from jobs.errors import OutputError
from jobs.store import AnswerRecord, AnswerStore, RunRecord
path, run_id, mode = sys.argv[1:4]
store = AnswerStore(path)
store.begin_run(RunRecord(run_id=run_id, rows_total=10_000))
def batch(number):
    return [
        AnswerRecord(run_id=run_id, doc_id=f"d{number}", question_id=f"q{row}", status="ok", answer="{}",
                     raw_text=os.urandom(1000).hex())
        for row in range(50)
    ]
if mode == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_500_000, 2_500_000))
for number in range(200):
    if mode == "exit" and number == 3:
        with store._connection(writing=True, doing="dying") as connection:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO answers SELECT * FROM answers")
            os._exit(9)
    try:
        store.write_answers(batch(number))
    except OutputError as error:
        print("error", error, flush=True)
        break
    print(number, flush=True)
"""

HOLDER = """
__file__ = "program"
import duckdb, sys, time
with duckdb.connect(sys.argv[1], read_only=True) as connection:
    print(connection.execute("SELECT count(*) FROM answers").fetchone()[0], flush=True)
    time.sleep(float(sys.argv[2]))
    print(time.monotonic(), flush=True)
"""


def start(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def counts(path):
    with duckdb.connect(str(path)) as connection:
        return connection.execute("SELECT count(*), count(DISTINCT doc_id) FROM answers").fetchone()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.duckdb"


def test_exit_in_the_middle_of_a_batch_keeps_the_batches_before(path):
    with start(WRITER, path, "r1", "exit") as writer:
        assert writer.stdout.read().split() == ["0", "1", "2"]
        assert writer.wait() == 9
    assert counts(path) == (150, 3)
    store = AnswerStore(path)
    assert store.check() == []
    assert store.run("r1").rows_ok == 150
    store.begin_run(RunRecord(run_id="r2"))
    assert (store.run("r1").status, store.run("r1").error) == ("failed", "killed")


def test_kill_at_any_moment_keeps_what_was_reported(path):
    for attempt in range(3):
        with start(WRITER, path, f"r{attempt}", "kill") as writer:
            for _ in range(3):
                reported = int(writer.stdout.readline())
            time.sleep(0.007 * attempt)
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            rest = writer.stdout.read().split()
        reported = int(rest[-1]) if rest else reported
        store = AnswerStore(path)
        rows = store.run(f"r{attempt}").rows_ok
        assert rows in ((reported + 1) * 50, (reported + 2) * 50)
        assert store.check() == []


def test_full_disk_is_named_and_what_was_committed_stays(path):
    with start(WRITER, path, "r1", "full") as writer:
        *written, last = writer.stdout.read().strip().splitlines()
        assert writer.wait() == 0
    assert str(path) in last
    assert "writing answers" in last
    assert "bytes free" in last
    assert "File too large" in last
    assert len(written) > 3
    store = AnswerStore(path)
    assert store.run("r1").rows_ok in (50 * len(written), 50 * (len(written) + 1))
    assert store.check() == []
    store.write_answers([AnswerRecord(run_id="r1", doc_id="new", question_id="q", status="failed")])
    assert store.run("r1").rows_failed == 1


def test_writer_waits_for_a_reader(path):
    store = AnswerStore(path)
    with start(HOLDER, path, 0.7) as holder:
        holder.stdout.readline()
        store.begin_run(RunRecord(run_id="r1"))
        written = time.monotonic()
        assert written > float(holder.stdout.readline())
    assert store.run("r1").status == "running"


def test_holder_is_named_after_the_timeout(path):
    store = AnswerStore(path, lock_timeout_seconds=0.3)
    with start(HOLDER, path, 60) as holder:
        holder.stdout.readline()
        with pytest.raises(OutputBusy, match=rf"{path}.*process {holder.pid} has the database open") as caught:
            store.begin_run(RunRecord(run_id="r1"))
        assert caught.value.pid == holder.pid
        assert isinstance(caught.value, OutputError)
        # Two readers get along.
        assert store.runs() == []
        holder.kill()
    store.begin_run(RunRecord(run_id="r1"))


def test_other_processes_read_while_a_run_writes(path):
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id="r1"))
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            store.write_answers([AnswerRecord(run_id="r1", doc_id=str(number), question_id="q", status="failed")])
            number += 1
            stop.wait(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        script = """
__file__ = "program"
import sys
from jobs.store import AnswerStore
store = AnswerStore(sys.argv[1], read_only=True)
for _ in range(10):
    print(store.run("r1").rows_failed)
"""
        with start(script, path) as reader:
            seen = [int(line) for line in reader.stdout.read().split()]
            assert reader.wait() == 0
    finally:
        stop.set()
        thread.join()
    assert len(seen) == 10
    assert seen == sorted(seen)
    assert store.check()[1:] == []  # the first is rows_total, which this run never set
