"""How far a run is: the live line of a terminal, the file beside the database, and `docqa status` meanwhile."""

import io
import json
import os
import re
import sys

import duckdb
import pytest

from docqa.progress import progress_line
from docqa.run_log import TextLog
from engine.engine import Engine
from jobs.job_file import load_job
from jobs.observe import Observer, Progress, StopRequest
from jobs.output_lock import OutputLock
from jobs.progress_file import WRITE_SECONDS, ProgressFile, read_progress
from jobs.run import run_job
from tests.docqa.test_run_log import tell_a_run
from tests.job_fixtures import sample_rows

PROGRESS = Progress(10, 4, 1, 900, 600, 500, 1000, 50.0, seconds_left=42.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """terminal(columns) makes stderr one, to be called in the test: pytest sets its own stderr until then."""

    def make(columns=100):
        stream = Terminal()
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        return stream

    return make


def screen(text):
    """What a terminal shows after `text`: its lines, with those that were gone over again or erased taken away."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", text):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part and part != "\r" and not part.startswith("\x1b"):
            lines[row] += part
    return [line for line in lines if line]


def test_a_terminal_has_one_line_that_is_rewritten_and_leaves_nothing(terminal):
    stream = terminal()
    with TextLog(quiet=False) as log:
        log.stage("loading the model")
        log._live.refresh()
        for done in range(5):
            log.progress(Progress(10, done, 0, 900, 600, 100 * done, 1000, 50.0, seconds_left=9.0))
            log._live.refresh()
            if done == 2:
                log.note("the database is free again")
    written = stream.getvalue()
    assert "loading the model ..." in written
    assert "20% of tokens, 2/10 rows" in written
    assert "\x1b[?25h" in written.rpartition("\x1b[?25l")[2]  # the cursor is shown again
    assert screen(written) == ["docqa: the database is free again"]  # notes stay, the line is gone
    # In the middle of it, the live line alone was under the note.
    middle = written[: written.rindex("30% of tokens") + len("30% of tokens, 3/10 rows")]
    assert [line.strip()[:24] for line in screen(middle)] == ["docqa: the database is f", "30% of tokens, 3/10 rows"]


def test_a_narrow_terminal_cuts_the_line_and_does_not_wrap_it(terminal):
    stream = terminal(columns=30)
    with TextLog(quiet=False) as log:
        log.progress(PROGRESS)
        log._live.refresh()
        shown = screen(stream.getvalue())
    assert len(shown) == 1
    assert len(shown[0]) <= 30
    assert "50% of tokens" in shown[0]


def test_quiet_writes_nothing_on_a_terminal_either(terminal):
    stream = terminal()
    with TextLog(quiet=True) as log:
        log.stage("loading the model")
        log.progress(PROGRESS)
        log.note("a note")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("name", "value"), [("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("TERM", "dumb")])
def test_a_pipe_gets_log_lines_whatever_the_environment_says(capsys, monkeypatch, name, value):
    """Case 75: build servers set FORCE_COLOR; a dumb terminal can't rewrite a line."""
    if name == "TERM":
        monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv(name, value)

    class Clock:
        now = 1000.0

        def __call__(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr("docqa.progress.monotonic", clock)
    stream = sys.stderr
    tell_a_run(TextLog(quiet=False), clock, seconds=95)
    err = stream.getvalue() if name == "TERM" else capsys.readouterr().err
    assert "\r" not in err
    assert "\x1b" not in err
    assert err.count("of tokens") == 3
    assert len(err.splitlines()) == 5


def test_a_run_is_done_when_all_of_it_is():
    assert progress_line(Progress(10, 9, 0, 900, 600, 9_996, 10_000, 50.0)).startswith(" 99% of tokens")
    assert progress_line(Progress(10, 10, 0, 900, 600, 10_000, 10_000, 50.0)).startswith("100% of tokens")
    assert "rows/s" not in progress_line(Progress(10, 0, 0, 0, 0, 10, 1000, 5.0))


def test_the_progress_file_says_what_was_said_last(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("jobs.progress_file.monotonic", lambda: now[0])
    database = tmp_path / "answers.duckdb"
    file = ProgressFile(database)
    assert read_progress(database) is None
    file.stage("loading the model")
    found = read_progress(database)
    assert (found.pid, found.stage, found.progress) == (os.getpid(), "loading the model", None)
    file.progress(PROGRESS)
    assert read_progress(database).progress is None  # too soon to write again
    now[0] += WRITE_SECONDS
    file.progress(PROGRESS)
    assert (read_progress(database).stage, read_progress(database).progress) == ("answering", PROGRESS)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.duckdb.progress"]
    (tmp_path / "answers.duckdb.progress").write_text('{"pid": 1, "sta')
    assert read_progress(database) is None
    file.remove()
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_let_pass(tmp_path):
    file = ProgressFile(tmp_path / "nowhere" / "answers.duckdb")
    file.stage("loading the model")
    file.progress(PROGRESS)
    file.remove()


def test_status_and_queries_while_a_run_goes_on(docqa, make_job, tmp_path, monkeypatch):
    """Cases 53 and 87: partial answers can be queried, and status says how far the run is, in tokens."""
    monkeypatch.setattr("jobs.progress_file.WRITE_SECONDS", 0.0)
    monkeypatch.setattr("jobs.run_output.PUBLISH_ROWS", 1)
    monkeypatch.setattr("jobs.run_output.PUBLISH_SHARE", 1e9)
    database = tmp_path / "answers.duckdb"
    path = make_job(sample_rows(), sampling={"max_tokens": 60}, engine={"step_tokens": 32})
    real_step, seen, counts = Engine.step, [], []

    def step(engine):
        if len(seen) % 5 == 0:
            seen.append(json.loads(docqa("status", database, "--json")[1]))
            with duckdb.connect(str(database), read_only=True) as connection:
                counts.append(connection.execute("SELECT count(*) FROM latest_answers").fetchone()[0])
        else:
            seen.append(None)
        return real_step(engine)

    monkeypatch.setattr(Engine, "step", step)
    said = []
    job = load_job(path, [])
    outcome = run_job(job, command="test", stop=StopRequest(), observer=Observer(on_progress=said.append))
    assert outcome.run.rows_ok == 20
    found = [status for status in seen if status is not None]
    assert found[0]["progress"] == {"stage": "loading the model", "line": "loading the model"}
    assert all(status["runs"][0]["state"] == "running" for status in found)
    later = [status["progress"] for status in found[1:]]
    shares = [progress["share_done"] for progress in later]
    assert 0 < shares[0] < shares[-1] < 1
    assert all(progress["line"].startswith(f"{int(100 * progress['share_done'])}% of tokens") for progress in later)
    # Work is told of before the first row has ended.
    assert any(progress["rows_done"] == 0 and progress["share_done"] > 0.1 for progress in later)
    done = [progress["tokens_done"] for progress in later]
    assert done == sorted(done)
    assert counts == sorted(counts)
    assert 0 < counts[-1] < 20
    # What was said last is what the run's record has.
    last = said[-1]
    run = outcome.run
    assert (last.rows_done, last.rows_failed, last.prompt_tokens, last.cached_tokens) == (
        20, 0, run.prompt_tokens, run.cached_tokens,
    )  # fmt: skip
    assert last.tokens_done == last.tokens_total == run.computed_tokens + run.output_tokens
    assert last.seconds_left == 0
    after = json.loads(docqa("status", database, "--json")[1])
    assert (after["progress"], after["holder"]) == (None, None)
    assert not list(tmp_path.glob("*.progress*"))


def test_status_says_it_in_words_and_believes_no_file_of_a_dead_run(docqa, make_job, tmp_path):
    database = tmp_path / "answers.duckdb"
    docqa("run", make_job(sample_rows(1, 2)), "--quiet")
    ProgressFile(database).stage("loading the model")
    assert json.loads(docqa("status", database, "--json")[1])["progress"] is None  # nobody holds the output
    with OutputLock(database, "test"):
        assert "Now: loading the model" in docqa("status", database)[1].splitlines()
        text = (tmp_path / "answers.duckdb.progress").read_text()
        (tmp_path / "answers.duckdb.progress").write_text(text.replace(str(os.getpid()), "1"))
        assert json.loads(docqa("status", database, "--json")[1])["progress"] is None
