import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.errors import JobError, OutputError
from jobs.output_lock import LockHolder, OutputLock, OutputLocked, lock_holder

ROOT = Path(__file__).resolve().parents[2]

HOLDER = """
import os, subprocess, sys, time
from jobs.output_lock import OutputLock
mode = sys.argv[2]
with OutputLock(sys.argv[1], "docqa run nightly.toml"):
    child = None
    if mode == "spawn":
        child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, close_fds=False).pid
    if mode == "fork":
        child = os.fork()
        if child == 0:
            os.close(1)
            time.sleep(600)
            os._exit(0)
    print(child, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def database(tmp_path):
    return tmp_path / "answers.duckdb"


def hold(database, mode="plain"):
    command = [sys.executable, "-c", HOLDER, str(database), mode]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    child = process.stdout.readline().strip()
    return process, None if child == "None" else int(child)


def test_lock_is_taken_described_and_released(database):
    assert lock_holder(database) is None
    assert not database.with_name("answers.duckdb.lock").exists()
    with OutputLock(database, "docqa run a.toml") as lock:
        facts = json.loads(lock.path.read_text())
        assert facts["pid"] == os.getpid()
        assert facts["command"] == "docqa run a.toml"
        assert set(facts) == {"pid", "started_at", "host", "command"}
        assert lock_holder(database) == LockHolder(**facts)
    assert lock_holder(database) is None
    assert not database.exists()
    with OutputLock(database, "again"):
        pass


def test_second_holder_is_told_who_holds(database):
    process, _ = hold(database)
    try:
        with pytest.raises(OutputLocked) as caught, OutputLock(database, "second"):
            pass
        message = str(caught.value)
        assert isinstance(caught.value, JobError)
        for fact in (str(database), str(process.pid), "docqa run nightly.toml", "started at 2"):
            assert fact in message
        assert caught.value.holder.pid == process.pid
        assert lock_holder(database).pid == process.pid
    finally:
        process.kill()
        process.communicate()
    with OutputLock(database, "third"):
        assert lock_holder(database).command == "third"


@pytest.mark.parametrize("mode", ["spawn", "fork"])
def test_children_of_a_killed_holder_do_not_hold(database, mode):
    process, child = hold(database, mode)
    try:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        os.kill(child, 0)  # the child lives on
        with OutputLock(database, "next"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_one_process_can_not_hold_twice(database):
    with OutputLock(database, "first"):
        with pytest.raises(OutputLocked, match="first"), OutputLock(database, "second"):
            pass
        assert lock_holder(database).command == "first"


def test_two_names_of_one_file_meet_in_one_lock(database, tmp_path):
    other = tmp_path / "link.duckdb"
    other.symlink_to(database)
    with OutputLock(database, "first"), pytest.raises(OutputLocked), OutputLock(other, "second"):
        pass


def test_left_over_or_broken_file_never_blocks(database):
    file = database.with_name("answers.duckdb.lock")
    for text in ('{"pid": 1, "command": "init"}', "garbage", "[]", ""):
        file.write_text(text)
        assert lock_holder(database) is None
        with OutputLock(database, "next"):
            assert lock_holder(database).pid == os.getpid()


def test_holder_that_can_not_be_read(database):
    with OutputLock(database, "first") as lock:
        lock.path.write_text("garbage")
        with pytest.raises(OutputLocked, match="another process"), OutputLock(database, "second"):
            pass


def test_exception_inside_releases(database):
    with pytest.raises(ZeroDivisionError), OutputLock(database, "first"):
        raise ZeroDivisionError
    assert lock_holder(database) is None


def test_folder_that_is_missing_or_not_writable(database, tmp_path, monkeypatch):
    missing = tmp_path / "no" / "answers.duckdb"
    with pytest.raises(OutputError, match=rf"{missing}.lock.*make the folder {missing.parent} first"):
        OutputLock(missing, "x").__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="make the folder"):
        OutputLock(tmp_path / "file" / "a.duckdb", "x").__enter__()

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutputError, match=r"Permission denied; make the folder .* writable"):
        OutputLock(database, "x").__enter__()


def test_a_waiting_lock_is_taken_when_the_holder_is_gone(database):
    process, _ = hold(database)
    told, polls = [], []

    def poll():
        polls.append(bool(told))
        if sum(polls) == 3:
            process.kill()
            process.communicate()

    with OutputLock(database, "second", wait_seconds=600, on_wait=told.append, on_poll=poll):
        assert lock_holder(database).command == "second"
    assert [holder.pid for holder in told] == [process.pid]  # told once


def test_waiting_ends_after_its_time_or_when_told(database):
    process, _ = hold(database)
    try:
        with pytest.raises(OutputLocked, match=rf"process {process.pid} on .*wait for it with --wait, or stop it"):
            OutputLock(database, "second", wait_seconds=0.7).__enter__()

        def poll():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            OutputLock(database, "second", wait_seconds=60, on_poll=poll).__enter__()
        assert lock_holder(database).pid == process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_lock_file_of_another_user_is_named(database, monkeypatch):
    database.with_name("answers.duckdb.lock").touch()

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutputError, match="make that file writable"):
        OutputLock(database, "x").__enter__()
