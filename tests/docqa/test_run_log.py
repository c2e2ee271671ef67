"""What is said on stderr: text lines, JSON lines, how often, and that a lost stderr ends no run."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta

import pytest

from docqa.log_lines import JsonLog
from docqa.progress import LINE_SECONDS, LineInterval, progress_line
from docqa.run_log import TextLog
from docqa.wording import bytes_text, duration, row_counts
from jobs.observe import Progress

PROGRESS = Progress(10, 4, 1, 900, 600, 500, 1000, 50.0, seconds_left=50.0)
SUMMARY = {
    "run_id": "abc", "status": "finished", "rows_ok": 3, "rows_failed": 1, "rows_reused": 2, "rows_pending": 0,
    "rows_waiting": 0, "bad_files": [], "unreached_documents": [], "error": None, "database": "/Prüfung/a.duckdb",
    "exit_status": 1, "config": {"job": {}}, "message": "Run abc finished.\nAnd more.",
}  # fmt: skip


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("docqa.progress.monotonic", clock)
    return clock


def tell_a_run(log, clock, seconds):
    """A run that says where it is every second."""
    with log:
        log.stage("reading the input")
        for row in range(100):
            log.stage(f"planning, row {row} of 100")
        log.note("b.parquet was skipped: it is empty")
        log.stage("loading the model")
        for _ in range(seconds):
            clock.now += 1
            log.progress(PROGRESS)
    log.finished(SUMMARY)


def test_progress_is_counted_in_tokens():
    assert progress_line(PROGRESS) == " 50% of tokens, 4/10 rows, 0.1 rows/s, 67% reused, 1 failed, 50 s left"


def test_figures_in_words():
    assert [duration(seconds) for seconds in (3, 185, 7800)] == ["3 s", "3 min 05 s", "2 h 10 min"]
    assert [bytes_text(size) for size in (812, 4200, 3 << 20, 5 << 31)] == [
        "812 bytes",
        "4.1 KiB",
        "3.0 MiB",
        "10.0 GiB",
    ]
    assert row_counts(SUMMARY) == "3 ok, 1 failed, 2 answered before"


def test_nothing_is_divided_by_zero():
    empty = Progress(0, 0, 0, 0, 0, 0, 0, 0.0)
    assert progress_line(empty).startswith("100% of tokens, 0/0 rows")
    assert "left" not in progress_line(empty)


def test_a_line_is_due_at_most_every_thirty_seconds(clock):
    """Case 75."""
    at_once, later = LineInterval(first_at_once=True), LineInterval(first_at_once=False)
    due = []
    for second in range(100):
        clock.now = 1000.0 + second
        due.append((at_once.is_due(), later.is_due()))
    assert LINE_SECONDS == 30
    assert [second for second, (is_due, _) in enumerate(due) if is_due] == [0, 30, 60, 90]
    assert [second for second, (_, is_due) in enumerate(due) if is_due] == [30, 60, 90]


def test_text_without_a_terminal(capsys, clock):
    """Case 75."""
    tell_a_run(TextLog(quiet=False), clock, seconds=95)
    out, err = capsys.readouterr()
    assert out == ""
    assert "\r" not in err
    assert "\x1b" not in err
    lines = err.splitlines()
    assert lines[0] == "docqa: b.parquet was skipped: it is empty"
    assert [line.count("50% of tokens") for line in lines[1:4]] == [1, 1, 1]
    assert lines[4] == "Run abc finished: 3 ok, 1 failed, 2 answered before. Answers: /Prüfung/a.duckdb"
    assert len(lines) == 5


def test_json_lines(capsys, clock):
    before = datetime.now(UTC)
    tell_a_run(JsonLog(quiet=False), clock, seconds=95)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.isascii()
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["event"] for line in lines] == ["stage", "stage", "note", "stage", *["progress"] * 4, "finished"]
    assert [line["level"] for line in lines] == ["info", "info", "warning", *["info"] * 5, "warning"]
    assert [line["stage"] for line in lines if line["event"] == "stage"] == [
        "reading the input", "planning", "loading the model",
    ]  # fmt: skip
    for line in lines:
        assert line["time"].endswith("Z")
        time = datetime.fromisoformat(line["time"])
        assert before - timedelta(seconds=1) <= time <= datetime.now(UTC)
    progress = lines[4]
    assert (progress["rows_done"], progress["rows_total"], progress["share_done"]) == (4, 10, 0.5)
    assert (lines[-1]["rows_ok"], lines[-1]["message"]) == (3, "Run abc finished.")
    assert lines[-1]["database"] == "/Prüfung/a.duckdb"
    assert "config" not in lines[-1]


@pytest.mark.parametrize("log", [TextLog, JsonLog])
def test_quiet_writes_nothing_but_errors(capsys, clock, log):
    tell_a_run(log(quiet=True), clock, seconds=95)
    assert capsys.readouterr() == ("", "")
    failed = SUMMARY | {"run_id": None, "error": "the disk is full", "message": "the disk is full", "exit_status": 3}
    log(quiet=True).finished(failed)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "the disk is full" in err


@pytest.mark.parametrize("log", [TextLog, JsonLog])
def test_a_stderr_that_is_gone_ends_no_run(monkeypatch, clock, log):
    """A closed pipe, as after `2>&1 | head`; a terminal that is gone gives another OSError."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        tell_a_run(log(quiet=False), clock, seconds=95)
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@pytest.mark.parametrize("log", [TextLog, JsonLog])
def test_no_stderr_at_all(monkeypatch, clock, log):
    monkeypatch.setattr(sys, "stderr", None)  # as Python has it after 2>&-
    tell_a_run(log(quiet=False), clock, seconds=95)
