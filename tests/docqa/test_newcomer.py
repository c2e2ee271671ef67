"""A newcomer's path: install, init, plan, run, query, report, typed exactly as README's "First minutes" prints it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests.docqa.test_readme import FIRST_MINUTES, ROOT

PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", FIRST_MINUTES, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def install_line():
    [line] = blocks("")
    return line.strip()


def commands():
    [block] = blocks("console")
    return [line.removeprefix("$ ") for line in block.splitlines()]


def walk(folder, shell_begins="", **environment):
    """Type everything in one folder; (exit status, stdout, stderr) by command, the query as `python`."""
    [query] = blocks("python")
    (folder / "query.py").write_text(query)
    ended = {}
    for command in [*commands(), "python query.py"]:
        done = subprocess.run(["bash", "-c", shell_begins + command], cwd=folder, env=environment, capture_output=True,
                              text=True, timeout=600)  # fmt: skip
        ended[command.partition(" query")[0]] = (done.returncode, done.stdout, done.stderr)
    return ended


def assert_it_went_well(ended, folder):
    assert {command: done[2] for command, done in ended.items() if done[0]} == {}
    database = folder / "first" / "answers.duckdb"
    with duckdb.connect(str(database), read_only=True) as connection:
        answers = connection.execute("SELECT question_id, status, answer FROM latest_answers").fetchall()
    assert len(answers) == 6
    assert {status for _, status, _ in answers} == {"ok"}
    said = {command.split()[1]: done[1] + done[2] for command, done in ended.items() if command.startswith("docqa")}
    assert "first/job.toml" in said["init"]
    assert re.search(r"Run \w+ finished: 6 ok, 0 failed", said["run"])
    assert "1.000 of the least possible" in said["report"]
    assert "nothing was computed more than once" in said["report"]
    assert "A run would work." in said["doctor"]
    for question_id, _, answer in answers:  # the query shows each answer
        assert re.search(rf"{question_id} .*{json.loads(answer)['verdict']}", ended["python"][1])


def test_the_install_line_names_what_exists():
    make, activate = install_line().split(" && ")
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{make.removeprefix('make ')}: ", makefile, flags=re.MULTILINE)
    assert activate == ". .venv/bin/activate"
    assert "-m venv .venv" in makefile
    steps = [command.split()[1] for command in commands()]
    assert steps[:4] == ["init", "plan", "run", "report"]


@pytest.mark.skipif(shutil.which("docqa", path=PATH) is None, reason="docqa is not installed in this environment")
def test_the_path_as_it_is_typed(tmp_path, embedded_folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOCQA_")}
    assert_it_went_well(walk(tmp_path, **kept | {"PATH": PATH}), tmp_path)


@pytest.mark.slow
def test_the_path_after_a_real_install(tmp_path):
    """In a copy of the repository with a home folder that is empty. It downloads what the install needs."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "home").mkdir()
    environment = {"HOME": str(tmp_path / "home"), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    environment |= {
        name: value for name, value in os.environ.items() if name.lower().startswith(("pip_", "http", "no_"))
    }
    subprocess.run(["bash", "-c", install_line()], cwd=tmp_path, env=environment, check=True, timeout=3600)
    ended = walk(tmp_path, shell_begins=f"{install_line()} >/dev/null 2>&1; ", **environment)
    assert_it_went_well(ended, tmp_path)
