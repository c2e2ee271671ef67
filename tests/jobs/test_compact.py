"""The database stays small over many nights (case 60)."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest

from jobs.compact import compact
from jobs.errors import JobError, OutputError
from jobs.journal import Journal, journal_path
from jobs.output_lock import OutputLock, OutputLocked
from jobs.run_output import RunOutput
from jobs.store import AnswerRecord, AnswerStore, DocumentRecord, OutputBusy, RunEnding, RunRecord

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime.now(UTC)


@pytest.fixture
def database(tmp_path):
    return tmp_path / "answers.duckdb"


def query(path, text):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(text).fetchall()


def night(database, number, keys, status=lambda key: "ok", size=10):
    """One run that answers some keys, `number` days after the first."""
    rng = random.Random(number)
    moment = NOW - timedelta(days=100 - number)
    output = RunOutput(database, lambda note: None)
    run_id = f"r{number:03}"
    output.begin(RunRecord(run_id=run_id, rows_total=len(keys), started_at=moment), {})
    for key in keys:
        text = json.dumps({"answer": rng.randbytes(size).hex()})
        found = status(key)
        output.append(DocumentRecord(f"h{key}-{number}", 10, 3))
        output.append(
            AnswerRecord(
                run_id=run_id, doc_id=f"d{key}", question_id="q", status=found, raw_text=text, answered_at=moment,
                answer=text if found == "ok" else None, document_hash=f"h{key}-{number}", question=f"What is {key}?",
            )
        )  # fmt: skip
    output.publish()
    output.end(RunEnding(run_id=run_id, status="finished", finished_at=moment))
    output.close()


def attempts(database):
    found = {}
    for doc_id, attempt in query(database, "SELECT doc_id, attempt FROM answers ORDER BY ALL"):
        found.setdefault(doc_id, []).append(attempt)
    return found


@pytest.fixture(scope="module")
def four_nights(tmp_path_factory):
    """A database with four attempts of d0, the last two failed, and two of d1."""
    database = tmp_path_factory.mktemp("nights") / "answers.duckdb"
    outcomes = {0: "ok", 1: "ok", 2: "failed", 3: "failed"}
    for number in range(4):
        night(database, number, [0, 1] if number < 2 else [0], lambda key, number=number: outcomes[number])
    return database


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, {"d0": [1, 2, 3, 4], "d1": [1, 2]}),
        ({"keep_attempts": 2}, {"d0": [2, 4], "d1": [1, 2]}),
        ({"keep_attempts": 1}, {"d0": [2], "d1": [2]}),
        ({"older_than_days": 97.5}, {"d0": [2, 4], "d1": [2]}),
        ({"older_than_days": 0}, {"d0": [2], "d1": [2]}),
        ({"older_than_days": 200}, {"d0": [1, 2, 3, 4], "d1": [1, 2]}),
        ({"keep_attempts": 3, "older_than_days": 98.5}, {"d0": [2, 3, 4], "d1": [2]}),
    ],
)
def test_superseded_attempts_go_and_the_latest_answer_stays(four_nights, database, limits, expected):
    shutil.copy(four_nights, database)
    latest = query(database, "SELECT * FROM latest_answers ORDER BY doc_id")
    before = sum(len(rows) for rows in attempts(database).values())
    report = compact(database, **limits)
    assert attempts(database) == expected
    assert report.rows_removed == before - sum(len(rows) for rows in expected.values())
    assert report.bytes_after == database.stat().st_size
    assert query(database, "SELECT * FROM latest_answers ORDER BY doc_id") == latest
    store = AnswerStore(database, read_only=True)
    assert store.check() == []
    assert sum(run.rows_removed for run in store.runs()) == report.rows_removed
    assert sum(run.rows_ok + run.rows_failed for run in store.runs()) == before
    # Attempts go on counting where they were.
    night(database, 9, [0])
    assert attempts(database)["d0"][-1] == max(expected["d0"]) + 1
    assert query(database, "SELECT run_id FROM latest_answers WHERE doc_id = 'd0'") == [("r009",)]
    assert store.check() == []


def test_the_file_shrinks_and_keeps_what_others_put_in_it(database):
    for number in range(10):
        night(database, number, range(300), size=500)
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT range AS a FROM range(10)")
        connection.execute("CREATE VIEW my_view AS SELECT count(*) AS n FROM latest_answers, mine")
        connection.execute("CREATE INDEX my_index ON mine (a)")
    os.chmod(database, 0o640)
    report = compact(database, keep_attempts=1)
    assert report.rows_removed == 2700
    assert report.bytes_after == database.stat().st_size < report.bytes_before / 2
    assert query(database, "FROM my_view") == [(3000,)]
    assert database.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in database.parent.iterdir()) == ["answers.duckdb", "answers.duckdb.lock"]
    assert int.from_bytes(database.read_bytes()[12:20], "little") == 64  # readable by DuckDB 1.1
    assert len(query(database, "FROM documents")) == 300


def test_a_link_stays_a_link(database, tmp_path):
    night(database, 1, [0])
    link = tmp_path / "link.duckdb"
    link.symlink_to(database)
    compact(link, keep_attempts=1)
    assert link.is_symlink()
    assert AnswerStore(link, read_only=True).check() == []


def test_what_waits_in_the_journal_is_published_first(database):
    night(database, 1, [0])
    journal = Journal(database)
    journal.append(RunRecord(run_id="r2", rows_total=1))
    journal.append(AnswerRecord(run_id="r2", doc_id="d0", question_id="q", status="ok", answer="{}"))
    journal.close()
    assert compact(database, keep_attempts=1).rows_removed == 1
    assert query(database, "SELECT run_id FROM answers") == [("r2",)]
    assert not journal_path(database).exists()


def test_it_is_refused_while_a_run_or_a_reader_is_on(database, monkeypatch, tmp_path):
    monkeypatch.setattr("jobs.compact.BUSY_WAIT_SECONDS", 0.1)
    night(database, 1, [0])
    with OutputLock(database, "docqa run"), pytest.raises(OutputLocked):
        compact(database)
    with AnswerStore(database, read_only=True).reading(), pytest.raises(OutputBusy):
        compact(database)
    with pytest.raises(JobError, match="at least 1"):
        compact(database, keep_attempts=0)
    with pytest.raises(JobError, match="0 or more"):
        compact(database, older_than_days=-1)
    with pytest.raises(OutputError, match="does not exist"):
        compact(tmp_path / "none.duckdb")
    other = tmp_path / "other.duckdb"
    duckdb.connect(str(other)).close()
    with pytest.raises(OutputError, match="no output of docqa"):
        compact(other)
    assert AnswerStore(database, read_only=True).check() == []


def test_a_full_disk_leaves_the_old_file(database):
    for number in range(3):
        night(database, number, range(100), size=5000)
    program = """
import resource, signal, sys
from pathlib import Path
from jobs.compact import _rewrite
from jobs.errors import OutputError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    _rewrite(Path(sys.argv[1]))
except OutputError as error:
    print(error)
"""
    before = database.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", program, str(database)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"{database}: compacting failed" in done.stdout
    assert "bytes free" in done.stdout
    assert database.read_bytes() == before
    assert not database.with_name("answers.duckdb.compact").exists()


def test_a_kill_leaves_a_whole_database(database):
    program = "import sys; from pathlib import Path; from jobs.compact import compact\n" + (
        "print(flush=True); compact(Path(sys.argv[1]), keep_attempts=1)"
    )
    for number in range(3):
        night(database, number, range(400), size=500)
    latest = query(database, "SELECT * FROM latest_answers ORDER BY doc_id")
    for delay in (0.02, 0.08, 0.2):
        process = subprocess.Popen([sys.executable, "-c", program, str(database)], cwd=ROOT, stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        store = AnswerStore(database)  # mends a block that the kill tore
        assert query(database, "SELECT * FROM latest_answers ORDER BY doc_id") == latest
        assert store.check() == []
    compact(database, keep_attempts=1)
    assert sorted(path.name for path in database.parent.iterdir()) == ["answers.duckdb", "answers.duckdb.lock"]
    assert query(database, "SELECT * FROM latest_answers ORDER BY doc_id") == latest


@pytest.mark.parametrize(
    ("nights", "rows"), [(6, 200), pytest.param(30, 1000, marks=pytest.mark.slow)], ids=["short", "thirty"]
)
def test_many_nights_stay_below_three_times_the_first(database, nights, rows):
    """Case 60: every night all rows are answered anew, and some are new; compacted once at the end, and nightly."""
    night(database, 0, range(rows), size=150)
    first = database.stat().st_size
    for number in range(1, nights):
        night(database, number, range(number * 5, rows + number * 5), size=150)
    grown = database.stat().st_size
    report = compact(database, keep_attempts=1)
    assert report.bytes_before == grown
    assert report.bytes_after < 3 * first
    store = AnswerStore(database, read_only=True)
    assert len(store.key_states()) == rows + 5 * (nights - 1)
    assert len(store.runs()) == nights
    assert store.check() == []
    print(f"first {first:,}, grown to {grown:,}, compacted {report.bytes_after:,} bytes")
