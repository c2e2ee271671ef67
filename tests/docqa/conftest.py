import subprocess
import sys

import pytest

from docqa import main as command_line


@pytest.fixture(autouse=True)
def _as_in_a_pipe(monkeypatch):
    """80 columns and no colours, whatever the terminal or the build server of the tests has."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def docqa(monkeypatch, capsys):
    """docqa("run", path, ...) -> (exit status, stdout, stderr), in this process."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["docqa", *map(str, arguments)])
        status = 0
        try:
            command_line.main()
        except SystemExit as ended:
            status = ended.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def start(*arguments, **options):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "docqa.main", *map(str, arguments)]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})
