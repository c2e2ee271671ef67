"""Journal to database: what waits is published once, whoever comes by, and nobody waits for a reader (cases 52, 53)."""

import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from jobs import publish as publish_module
from jobs import run_output
from jobs.errors import OutputError
from jobs.journal import Journal, JournalError, journal_path, read_journal, unpublished_rows
from jobs.journal_records import RunEnding, SchemaViews
from jobs.output_lock import OutputLock
from jobs.publish import publish_pending
from jobs.run_output import RunOutput
from jobs.store import AnswerRecord, AnswerStore, DocumentRecord, RunRecord

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
__file__ = "program"  # without one, DuckDB thinks that a person looks on and draws a bar for what takes over 2 s
import duckdb, sys
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "read")
print(connection.execute("SELECT count(*) FROM answers").fetchall()[0][0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def database(tmp_path):
    return tmp_path / "answers.duckdb"


class Holder:
    """Another process that has the database open."""

    def __init__(self, database, mode="read"):
        command = [sys.executable, "-c", HOLDER, str(database), mode]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.rows = int(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *arguments):
        self._process.communicate()


def answer(number, run_id="r1", status="ok", **values):
    values.setdefault("answer", "{}" if status == "ok" else None)
    return AnswerRecord(run_id=run_id, doc_id=f"d{number}", question_id="q", status=status, **values)


def query(path, text):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(text).fetchall()


def left_by_a_killed_run(database, rows=3, run_id="r1", before=0):
    """A journal as a killed run leaves it, after `before` answers that it has published."""
    journal = Journal(database)
    journal.append(RunRecord(run_id=run_id, rows_total=before + rows))
    for number in range(before, before + rows):
        journal.append(DocumentRecord(f"h{number}", 5, 2))
        journal.append(answer(number, run_id, document_hash=f"h{number}"))
    journal.sync()
    return journal


def test_nothing_to_publish(database):
    assert publish_pending(database) == publish_module.PublishReport()
    assert not database.exists()
    assert list(database.parent.iterdir()) == []


def test_what_a_killed_run_left_is_published_once(database):
    left_by_a_killed_run(database)
    assert unpublished_rows(database) == 3
    report = publish_pending(database)
    assert (report.rows_published, report.rows_waiting, report.note) == (3, 0, None)
    assert not journal_path(database).exists()
    store = AnswerStore(database, read_only=True)
    assert (store.run("r1").rows_ok, store.run("r1").error) == (3, "killed")
    assert len(query(database, "FROM documents")) == 3
    assert store.check() == []
    assert publish_pending(database).rows_published == 0


def test_a_crash_between_publishing_and_clearing_doubles_nothing(database):
    journal = left_by_a_killed_run(database)
    content = journal.path.read_bytes()
    for _ in range(3):
        publish_pending(database)
        journal.path.write_bytes(content)  # as if the clearing had not reached the disk
    assert publish_pending(database).rows_published == 0
    assert query(database, "SELECT count(*), count(DISTINCT doc_id), sum(attempt) FROM answers") == [(3, 3, 3)]
    assert AnswerStore(database, read_only=True).check() == []


def test_a_crash_in_the_middle_of_publishing_is_made_good(database, monkeypatch):
    monkeypatch.setattr(publish_module, "RECORDS_IN_A_TRANSACTION", 3)
    left_by_a_killed_run(database, rows=5)
    real_publish, calls = AnswerStore.publish, []

    def publish(store, records):
        calls.append(records)
        if len(calls) == 3:
            raise OutputError("the disk is full")
        return real_publish(store, records)

    monkeypatch.setattr(AnswerStore, "publish", publish)
    with pytest.raises(OutputError, match="full"):
        publish_pending(database)
    assert unpublished_rows(database) == 5
    assert 0 < len(query(database, "FROM answers")) < 5
    publish_pending(database)
    assert len(query(database, "FROM answers")) == 5
    assert AnswerStore(database, read_only=True).check() == []


def test_runs_of_several_nights_wait_in_one_journal(database):
    """A database that was held for two nights gets both, in order, with how each ended."""
    left_by_a_killed_run(database).close()
    journal = Journal(database)
    journal.append(RunRecord(run_id="r2", rows_total=4, rows_reused=3))
    journal.append(answer(3, "r2"))
    journal.append(answer(0, "r2", "failed"))
    journal.append(SchemaViews({"verdict": {"type": "object", "properties": {"a": {"type": "string"}}}}))
    ended_at = datetime(2026, 1, 2, tzinfo=UTC)
    journal.append(RunEnding(run_id="r2", status="finished", finished_at=ended_at, forced_tokens=4, seconds=2.0))
    assert publish_pending(database).rows_published == 5
    store = AnswerStore(database, read_only=True)
    assert [(run.run_id, run.status) for run in store.runs()] == [("r2", "finished"), ("r1", "failed")]
    assert (store.run("r2").finished_at, store.run("r2").forced_tokens) == (ended_at, 4)
    assert query(database, "SELECT attempt FROM answers WHERE doc_id = 'd0' ORDER BY 1") == [(1,), (2,)]
    assert query(database, "FROM answers_verdict") == []


def test_a_torn_tail_is_dropped_with_a_note(database):
    """Case 63."""
    journal = left_by_a_killed_run(database)
    journal.path.write_bytes(journal.path.read_bytes()[:-5])
    report = publish_pending(database)
    assert report.rows_published == 2
    assert str(journal.path) in report.note
    assert "cut off" in report.note


def test_what_stands_before_damage_is_published_and_the_file_kept(database):
    journal = left_by_a_killed_run(database, rows=6)
    journal.append(answer(7))
    content = bytearray(journal.path.read_bytes())
    content[-600] ^= 1
    journal.path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(JournalError, match=r"byte \d+ is damaged"):
            publish_pending(database)
        assert 0 < len(query(database, "FROM answers")) < 6
        assert journal.path.read_bytes() == content
    journal.path.rename(journal.path.with_suffix(".away"))
    publish_pending(database)


def test_a_newer_database_is_refused_and_the_journal_kept(database):
    AnswerStore(database)
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE docqa_meta SET value = '99'")
    journal = left_by_a_killed_run(database)
    with pytest.raises(OutputError, match="version 99"):
        publish_pending(database)
    assert unpublished_rows(database) == 3
    assert journal.path.exists()


@pytest.mark.parametrize("mode", ["read", "write"])
def test_while_somebody_has_it_open_answers_wait(database, mode):
    AnswerStore(database)
    left_by_a_killed_run(database)
    with Holder(database, mode) as holder:
        report = publish_pending(database, wait_seconds=0.1)
        assert (report.rows_published, report.rows_waiting) == (0, 3)
        assert f"process {holder.pid} has {database} open" in report.note
        assert unpublished_rows(database) == 3
    assert publish_pending(database).rows_published == 3


def test_a_run_that_is_on_publishes_itself(database):
    left_by_a_killed_run(database)
    with OutputLock(database, "docqa run nightly.toml"):
        report = publish_pending(database)
        assert report.rows_published == 0
        assert "docqa run nightly.toml" in report.note
        assert unpublished_rows(database) == 3
        assert publish_pending(database, locked=True).rows_published == 3


def test_a_run_goes_on_beside_a_reader_and_publishes_when_it_is_gone(database, monkeypatch):
    """Case 52: the lock appears in the middle of a run."""
    monkeypatch.setattr(run_output, "PUBLISH_SHARE", 1e6)
    notes = []
    output = RunOutput(database, notes.append)
    output.begin(RunRecord(run_id="r1", rows_total=600), {})
    with Holder(database) as holder:
        for number in range(300):
            output.append(answer(number))
            output.keep_up()
        assert output.rows_waiting == 300
        assert len(notes) == 1
        assert f"process {holder.pid}" in notes[0]
        assert str(journal_path(database)) in notes[0]
        assert len(read_journal(journal_path(database)).answers) == 300
    for number in range(300, 600):
        output.append(answer(number))
    output.publish()
    assert output.rows_waiting == 0
    assert "free again" in notes[1]
    output.end(RunEnding(run_id="r1", status="finished"))
    output.close()
    assert not journal_path(database).exists()
    store = AnswerStore(database, read_only=True)
    assert (store.run("r1").rows_ok, store.run("r1").status) == (600, "finished")
    assert store.check() == []


def test_a_run_that_ends_beside_a_reader_leaves_its_end_in_the_journal(database, monkeypatch):
    monkeypatch.setattr(run_output, "END_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(run_output, "START_WAIT_SECONDS", 0.1)
    AnswerStore(database)
    with Holder(database):
        output = RunOutput(database, lambda note: None)
        output.begin(RunRecord(run_id="r1", rows_total=1), {})
        output.append(answer(1))
        output.publish()
        output.end(RunEnding(run_id="r1", status="finished", forced_tokens=9))
        output.close()
        assert AnswerStore(database, read_only=True).runs() == []
    publish_pending(database)
    run = AnswerStore(database, read_only=True).run("r1")
    assert (run.status, run.rows_ok, run.forced_tokens) == ("finished", 1, 9)


def test_others_read_a_growing_count_while_a_run_is_on(database, monkeypatch):
    """Case 53."""
    monkeypatch.setattr(run_output, "PUBLISH_ROWS", 5)
    monkeypatch.setattr(run_output, "PUBLISH_SHARE", 1.0)
    output = RunOutput(database, lambda note: None)
    output.begin(RunRecord(run_id="r1", rows_total=10_000), {})
    stop, rows = threading.Event(), [0]

    def work():
        while not stop.is_set():
            output.append(answer(rows[0]))
            output.keep_up()
            rows[0] += 1
            stop.wait(0.002)

    thread = threading.Thread(target=work)
    thread.start()
    script = """
__file__ = "program"
import duckdb, sys, time
counts = []
while len(set(counts)) < 4:
    try:
        with duckdb.connect(sys.argv[1], read_only=True) as connection:
            counts.append(connection.execute("SELECT rows_ok FROM runs").fetchall()[0][0])
    except duckdb.Error:
        pass
    time.sleep(0.02)
print(*counts)
"""
    try:
        reader = subprocess.run(
            [sys.executable, "-c", script, str(database)], capture_output=True, text=True, check=True, timeout=600
        )
    finally:
        stop.set()
        thread.join()
    seen = [int(word) for word in reader.stdout.split()]
    assert seen == sorted(seen)
    output.publish()
    assert query(database, "SELECT rows_ok FROM runs") == [(rows[0],)]


def test_a_database_that_was_taken_away_is_made_anew_with_its_run(database):
    output = RunOutput(database, lambda note: None)
    output.begin(RunRecord(run_id="r1", rows_total=2), {})
    output.append(answer(1))
    output.publish()
    database.unlink()
    output.append(answer(2))
    output.publish()
    assert query(database, "SELECT run_id, rows_ok FROM runs") == [("r1", 1)]


def test_publishing_takes_a_small_share_of_a_run(database, monkeypatch):
    """A slow database is published to less often, so that a run is never held up by it for long."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    output = RunOutput(database, lambda note: None)
    real_publish = run_output.publish_records

    def slow_publish(store, records):
        clock[0] += 3.0
        return real_publish(store, records)

    monkeypatch.setattr(run_output, "publish_records", slow_publish)
    output.begin(RunRecord(run_id="r1", rows_total=5000), {})
    began, before = clock[0], output.publish_seconds
    for number in range(5000):
        output.append(answer(number))
        output.keep_up()
        clock[0] += 0.1
    share = (output.publish_seconds - before) / (clock[0] - began)
    assert 0.03 < share < 0.06
    output.publish()
    assert query(database, "SELECT rows_ok FROM runs") == [(5000,)]


@pytest.mark.slow
def test_fifty_thousand_answers_are_journaled_and_published(database):
    """Prints the seconds; the aim is less than 20. `pytest -m slow -s -k fifty_thousand tests/jobs/test_publish.py`."""
    import time

    started = time.monotonic()
    output = RunOutput(database, print)
    output.begin(RunRecord(run_id="r1", rows_total=50_000), {})
    text = '{"label":"Not mentioned","quote":"' + "x" * 300 + '"}'
    for number in range(50_000):
        output.append(answer(number, answer=text, raw_text=text, question="?" * 80, request_digest="0" * 64))
        output.keep_up()
    output.publish()
    output.end(RunEnding(run_id="r1", status="finished"))
    output.close()
    print(f"{time.monotonic() - started:.1f} s, of which {output.publish_seconds:.1f} s to publish")
    assert query(database, "SELECT rows_ok FROM runs") == [(50_000,)]
    assert AnswerStore(database, read_only=True).check() == []
