"""`docqa schedule` with stand-ins for crontab and systemctl that keep what they are told in a folder."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docqa.schedule_cron import cron_block
from docqa.schedule_systemd import units
from docqa.scheduled_run import ScheduledRun, ScheduleError, machine_time_zone, time_of_day

CRONTAB = """#!/bin/sh
case "$1" in
-l) if [ -e "$STATE/crontab" ]; then cat "$STATE/crontab"; else echo "no crontab for me" >&2; exit 1; fi ;;
-) cat >"$STATE/crontab.new"; mv "$STATE/crontab.new" "$STATE/crontab" ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$STATE/systemctl.log"
case "$*" in *"$(cat "$STATE/fails" 2>/dev/null || echo never)"*) echo "Failed to connect to bus" >&2; exit 1 ;; esac
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with crontab and systemctl, and nothing else of note: its state lies in the folder that is returned."""
    state, tools = tmp_path / "state", tmp_path / "tools"
    state.mkdir()
    tools.mkdir()
    for name, script in (("crontab", CRONTAB), ("systemctl", SYSTEMCTL)):
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    for name in [name for name in os.environ if name.startswith("DOCQA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STATE", str(state))
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(state / "config"))
    return state


@pytest.fixture
def job_file(tmp_path):
    folder = tmp_path / "a job's 100 % folder"
    folder.mkdir()
    (folder / "nightly.toml").write_text('[job]\nname = "Prüfung 1"\n[input]\ndocuments = "in/*.parquet"\n')
    return folder / "nightly.toml"


def unit(machine, ending):
    return (machine / "config" / "systemd" / "user" / f"docqa-Pr-fung-1.{ending}").read_text()


def test_printing_changes_nothing(docqa, machine, job_file):
    for kind in ("cron", "systemd"):
        status, out, err = docqa("schedule", job_file, "--at", "02:00", "--kind", kind)
        assert status == 0
        assert machine_time_zone() in out
        assert "nothing was changed" in err
    assert list(machine.iterdir()) == []
    assert docqa("schedule", job_file, "--at", "02:00", "--kind", "cron", "--quiet")[2] == ""


def test_the_cron_line_does_what_the_command_would(docqa, machine, job_file, tmp_path, monkeypatch):
    """As cron does it: the line's backslashes before % removed, a bare environment, sh from another folder."""
    here = tmp_path / "here; $HOME"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HF_HOME", "/models/it's 5% here")
    monkeypatch.setenv("DOCQA_QUIET", "1")
    monkeypatch.setenv("HF_TOKEN", "secret")
    program = tmp_path / "docqa 100%"
    program.write_text('#!/bin/sh\npwd; env; for word in "$@"; do echo "[$word]"; done; echo oops >&2\n')
    program.chmod(0o755)
    monkeypatch.setattr("docqa.schedule.docqa_command", lambda: (str(program),))
    notify = """tell 'me' 100% "$X" \\done"""
    docqa("schedule", job_file, "--at", "2:05", "--kind", "cron", "--install", "--env", "A=b c",
          "--", "--set", "run.time_budget=5h", "--on-finish", notify)  # fmt: skip
    (line,) = [line for line in (machine / "crontab").read_text().splitlines() if line[0] != "#"]
    minute, hour, *days, command = line.split(" ", 5)
    assert (minute, hour, days) == ("5", "2", ["*", "*", "*"])
    assert "%" not in command.replace(r"\%", "")
    subprocess.run(["/bin/sh", "-c", command.replace(r"\%", "%")], env={"HOME": "/"}, cwd="/", check=True)
    log = (job_file.parent / "nightly.log").read_text().splitlines()
    assert log[0] == str(here)
    assert {"HF_HOME=/models/it's 5% here", "DOCQA_QUIET=1", "A=b c", f"PATH={os.environ['PATH']}"} <= set(log)
    assert not any("secret" in line for line in log)
    words = ["run", str(job_file), "--log-format", "json", "--set", "run.time_budget=5h", "--on-finish", notify]
    assert log[-len(words) - 1 :] == [*(f"[{word}]" for word in words), "oops"]


def test_installing_in_a_crontab_leaves_other_lines_alone(docqa, machine, job_file):
    before = b"MAILTO=me\n\n*/5 * * * * other\xff # docqa schedule: /not/this.toml"
    (machine / "crontab").write_bytes(before)
    for at in ("02:00", "03:30"):
        status, out, err = docqa("schedule", job_file, "--at", at, "--kind", "cron", "--install")
        assert (status, out) == (0, "")
        assert f"every night at {at}" in err
        now = (machine / "crontab").read_bytes()
        assert now.startswith(before + b"\n# docqa schedule: ")
        assert now.count(b" * * * cd ") == 1
    assert b"\n30 3 * * * cd " in now
    assert docqa("schedule", job_file, "--remove")[0] == 0
    assert (machine / "crontab").read_bytes() == before + b"\n"
    status, _, err = docqa("schedule", job_file, "--remove")
    assert (status, "nothing was removed" in err) == (2, True)


def test_a_crontab_that_cannot_be_read_is_never_written(docqa, machine, job_file, tmp_path):
    (tmp_path / "tools" / "crontab").write_text(
        f'#!/bin/sh\n[ "$1" = - ] && touch {machine}/written\necho "not allowed" >&2; exit 1\n'
    )
    status, _, err = docqa("schedule", job_file, "--at", "02:00", "--kind", "cron", "--install")
    assert (status, err.count("\n"), "not allowed" in err) == (2, 1, True)
    assert list(machine.iterdir()) == []


def test_a_block_without_its_end_is_not_guessed_at(docqa, machine, job_file):
    docqa("schedule", job_file, "--at", "02:00", "--kind", "cron", "--install")
    crontab = "".join((machine / "crontab").read_text().splitlines(keepends=True)[:-1]) + "0 1 * * * other\n"
    (machine / "crontab").write_text(crontab)
    assert docqa("schedule", job_file, "--remove")[0] == 2
    assert (machine / "crontab").read_text() == crontab


def test_installing_and_removing_units(docqa, machine, job_file):
    status, out, err = docqa("schedule", job_file, "--at", "02:00", "--kind", "systemd", "--install")
    assert (status, out) == (0, "")
    assert "every night at 02:00" in err
    assert "OnCalendar=*-*-* 02:00:00\nPersistent=true\n" in unit(machine, "timer")
    calls = (machine / "systemctl.log").read_text().splitlines()
    name = "docqa-Pr-fung-1.timer"
    assert calls[1:] == ["--user daemon-reload", f"--user enable {name}", f"--user restart {name}"]
    # Again under another name: the first one goes.
    assert docqa("schedule", job_file, "--at", "03:00", "--kind", "systemd", "--install", "--name", "two")[0] == 0
    folder = machine / "config" / "systemd" / "user"
    assert sorted(path.name for path in folder.iterdir()) == ["docqa-two.service", "docqa-two.timer"]
    job_file.unlink()  # a schedule outlives its job file, and is removed all the same
    assert docqa("schedule", job_file, "--remove")[0] == 0
    assert list(folder.iterdir()) == []
    assert (machine / "systemctl.log").read_text().splitlines()[-2:] == [
        "--user disable --now docqa-two.timer",
        "--user daemon-reload",
    ]


def test_units_of_another_job_are_not_overwritten(docqa, machine, job_file, tmp_path):
    docqa("schedule", job_file, "--at", "02:00", "--kind", "systemd", "--install")
    other = tmp_path / "other.toml"
    shutil.copy(job_file, other)
    before = unit(machine, "service")
    status, _, err = docqa("schedule", other, "--at", "02:00", "--kind", "systemd", "--install")
    assert (status, "--name" in err) == (2, True)
    assert unit(machine, "service") == before


def test_a_failing_systemctl_leaves_what_was_there(docqa, machine, job_file):
    (machine / "fails").write_text("daemon-reload")
    status, _, err = docqa("schedule", job_file, "--at", "02:00", "--kind", "systemd", "--install")
    assert (status, err.count("\n"), "connect to bus" in err) == (2, 1, True)
    assert list((machine / "config" / "systemd" / "user").iterdir()) == []


def test_a_job_is_scheduled_by_one_of_them_only(docqa, machine, job_file):
    for kind, other in (("cron", "systemd"), ("systemd", "cron")):
        assert docqa("schedule", job_file, "--at", "02:00", "--kind", kind, "--install")[0] == 0
        status, _, err = docqa("schedule", job_file, "--at", "02:00", "--kind", other, "--install")
        assert (status, f"--remove --kind {kind}" in err) == (2, True)
        assert docqa("schedule", job_file, "--remove", "--kind", kind)[0] == 0


@pytest.mark.parametrize("kind", ["cron", "systemd"])
def test_a_missing_tool_is_one_sentence(docqa, machine, job_file, monkeypatch, kind):
    monkeypatch.setenv("PATH", str(machine))
    status, out, err = docqa("schedule", job_file, "--at", "02:00", "--kind", kind, "--install")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "on this machine; " in err
    assert list(machine.iterdir()) == []
    assert docqa("schedule", job_file, "--remove")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--at 02:00"),
        (("--at", "25:00"), "no time of day"),
        (("--at", "2am"), "no time of day"),
        (("--at", "02:00", "--time-zone", "Mars/Olympus"), "no such zone"),
        (("--at", "02:00", "--kind", "cron", "--time-zone", "Pacific/Kiritimati"), "use --kind systemd"),
        (("--at", "02:00", "--kind", "cron", "--env", "PATH=" + "x" * 900), "--env PATH=/usr/local/bin"),
        (("--at", "02:00", "--env", "NOT_SET_ANYWHERE"), "is not set"),
        (("--at", "02:00", "--env", "A=b\nc"), "control character"),
        (("--at", "02:00", "--log-file", "no/such/folder/log"), "--log-file"),
        (("--at", "02:00", "--", "--no-such-option"), "no-such-option"),
        (("--at", "02:00", "--", "--set", "smapling.seed=1"), "nearest known one"),
        (("--at", "02:00", "--install", "--remove"), "not both"),
    ],
)
def test_mistakes_are_found_now_and_not_at_night(docqa, machine, job_file, arguments, message):
    status, out, err = docqa("schedule", job_file, *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_json(docqa, machine, job_file):
    status, out, _ = docqa("schedule", job_file, "--at", "02:00", "--kind", "systemd", "--json",
                           "--time-zone", "Europe/Berlin")  # fmt: skip
    found = json.loads(out)
    assert (status, found["kind"], found["at"], found["time_zone"]) == (0, "systemd", "02:00", "Europe/Berlin")
    assert found["installed"] is False
    (timer,) = [text for place, text in found["texts"].items() if place.endswith(".timer")]
    assert "OnCalendar=*-*-* 02:00:00 Europe/Berlin\n" in timer


def test_times_of_day():
    assert [time_of_day(text) for text in ("00:00", "2:07", "23:59")] == [(0, 0), (2, 7), (23, 59)]


def scheduled(*arguments, **changes):
    values = {
        "job_file": Path("/jobs/a.toml"),
        "job_name": "a",
        "hour": 2,
        "minute": 0,
        "time_zone": None,
        "arguments": ("/bin/echo", *arguments),
        "environment": {"PATH": "/bin"},
        "working_directory": Path("/"),
        "log_file": Path("/tmp/a.log"),
    }
    return ScheduledRun(**(values | changes))


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)


@given(st.lists(WORDS, max_size=5), WORDS)
@settings(max_examples=60, deadline=None)
def test_any_word_reaches_the_command_through_cron(words, value):
    run = scheduled(*words, environment={"A": value})
    (line,) = [line for line in cron_block(run).splitlines() if line[0] != "#"]
    command = line.split(" ", 5)[5].replace(r"\%", "%")
    assert shlex.split(command)[3:][: 3 + len(words)] == ["env", f"A={value}", "/bin/echo", *words]


def unquoted(line):
    """The words of a unit file's value, by the rules of systemd.syntax(7) and systemd.unit(5)."""
    words, word, quoted, characters = [], "", False, iter(line)
    for character in characters:
        if character == '"':
            quoted = not quoted
            if not quoted:
                words.append(word)
                word = ""
        elif character == "\\":
            word += next(characters)
        elif character == "%":
            assert next(characters) == "%"
            word += "%"
        elif quoted:
            word += character
    return words


@given(st.lists(WORDS, max_size=5), WORDS)
@settings(max_examples=60, deadline=None)
def test_any_word_reaches_the_command_through_a_unit(words, value):
    service = units(scheduled(*words, environment={"A": value}), "docqa-a")["docqa-a.service"]
    values = dict(line.split("=", 1) for line in service.splitlines() if "=" in line)
    assert unquoted(values["Environment"]) == [f"A={value}"]
    assert [word.replace("$$", "$") for word in unquoted(values["ExecStart"])[1:]] == words


def test_no_schedule_holds_a_line_break():
    with pytest.raises(ScheduleError, match="control character"):
        scheduled("a\nb")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_itself_accepts_the_units(docqa, machine, job_file, tmp_path):
    notify = """tell 'me' 100% "$X" \\done"""
    docqa("schedule", job_file, "--at", "02:00", "--kind", "systemd", "--install", "--time-zone", "Europe/Berlin",
          "--env", 'A=1 2 "3" 4%', "--", "--on-finish", notify)  # fmt: skip
    folder = machine / "config" / "systemd" / "user"
    result = subprocess.run(
        [shutil.which("systemd-analyze", path="/usr/bin:/bin"), "verify", "--user", *sorted(folder.iterdir())],
        capture_output=True, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, check=False,
    )  # fmt: skip
    mine = [line for line in (result.stdout + result.stderr).splitlines() if "docqa" in line]
    assert mine == []


def test_the_program_that_is_scheduled_is_this_one(machine):
    from docqa.scheduled_run import docqa_command

    result = subprocess.run([*docqa_command(), "--version"], capture_output=True, text=True, cwd=machine, check=True)
    assert "version" in result.stdout
    assert Path(docqa_command()[0]).parent == Path(sys.executable).parent
