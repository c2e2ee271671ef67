"""A child process that compiles, seen from the parent: requests go in, results or its death come out."""

import contextlib
import os
import select
import subprocess
import sys
import time
import weakref
from pathlib import Path

from .compile_worker import framed, vocabulary_message
from .vocabulary import TokenVocabulary


class WorkerDied(Exception):
    """The compiling process ran out of time or memory."""


class CompilingProcess:
    """Runs `compile_worker` for one vocabulary."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        root = str(Path(__file__).resolve().parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.compile_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
        )
        self._first: bytes | None = framed(vocabulary_message(vocabulary))
        self._finalizer = weakref.finalize(self, _end, self._process)

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def ask(self, request: bytes, seconds: float) -> bytes:
        """Send a request and wait for the answer. Raises WorkerDied; the worker is of no use then."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            if self._first is not None:
                stdin.write(self._first)
                self._first = None
                seconds += 10  # it has to start
            stdin.write(framed(request))
            stdin.flush()
        except OSError:
            raise WorkerDied("the process is gone") from None
        deadline = time.monotonic() + seconds
        return self._read(int.from_bytes(self._read(8, deadline), "little"), deadline)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._finalizer()

    def _read(self, length: int, deadline: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        content = bytearray()
        while len(content) < length:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise WorkerDied("it was stopped")
            piece = os.read(stdout.fileno(), min(length - len(content), 1 << 20))
            if not piece:
                raise WorkerDied(f"it ended with status {self._process.wait()}")
            content += piece
        return bytes(content)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
