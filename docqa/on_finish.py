"""`--on-finish COMMAND`: a command of the user's that is told how a run ended, whatever the end was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

TIMEOUT_SECONDS = 600.0
"""A notifier that hangs must not keep the next night's run from starting."""


def run_on_finish(command: str, summary: dict[str, Any], *, timeout_seconds: float = TIMEOUT_SECONDS) -> str | None:
    """Run a shell command with the summary as one line of JSON on its stdin; what it prints goes to stderr.

    Returns None if it ended with status 0, else one sentence that says what it did.
    """
    try:
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=_stderr(),  # docqa's stdout is for data alone
            stderr=_stderr(),
            process_group=0,
        )
    except (OSError, ValueError) as error:
        return f"the --on-finish command could not be started ({error}): {command}"
    try:
        process.communicate((json.dumps(summary) + "\n").encode(), timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        return f"the --on-finish command was ended after {timeout_seconds:.0f} seconds: {command}"
    except BaseException:
        _kill(process)
        raise
    if process.returncode < 0:
        return f"the --on-finish command was ended by signal {-process.returncode}: {command}"
    if process.returncode > 0:
        return f"the --on-finish command ended with status {process.returncode}: {command}"
    return None


def _stderr() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is no file
        return subprocess.DEVNULL


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the command and all it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
