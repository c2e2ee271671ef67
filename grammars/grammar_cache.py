"""Grammars of one vocabulary, each distinct schema compiled once: in another process, and kept on disk.

outlines-core aborts its process when it can't allocate, and can't be stopped; so it runs in a child with limits. The
calling process goes on meanwhile and waits only when it asks for the grammar.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from .compile import AUTO, LLGUIDANCE, AnswerGrammar, compile_schema
from .compile_worker import framed, vocabulary_message
from .errors import UnsupportedSchema
from .grammar_file import Refusal, load_result, result_key
from .vocabulary import TokenVocabulary

COMPILE_SECONDS = 20
COMPILE_MEMORY_BYTES = 3 << 30
"""What compiling one schema may take."""

LARGEST_FILE_BYTES = 128 << 20
"""Larger results aren't kept on disk."""


class WorkerDied(Exception):
    """The compiling process ran out of time or memory."""


class GrammarCache:
    """Grammars of one vocabulary. `folder` is where results are kept; None: nowhere.

    Settings for a schema: `backend` and `lenient`, as for `compile_schema`. The order of properties counts.
    """

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        folder: Path | None = None,
        *,
        seconds: int = COMPILE_SECONDS,
        memory_bytes: int = COMPILE_MEMORY_BYTES,
    ) -> None:
        self.vocabulary = vocabulary
        self.compile_seconds = 0.0
        self._folder = folder
        self._limits = {"seconds": seconds, "memory_bytes": memory_bytes}
        self._futures: dict[str, Future[AnswerGrammar]] = {}
        self._lock = Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._worker: _Worker | None = None

    def start(self, schema: Any, *, backend: str = AUTO, lenient: bool = False) -> None:
        """Begin to compile a schema, if that isn't done yet, and don't wait for it. Never raises."""
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            self._future(schema, backend, lenient)

    def get(self, schema: Any, *, backend: str = AUTO, lenient: bool = False) -> AnswerGrammar:
        """The grammar of a schema; raises as `compile_schema` does."""
        try:
            future = self._future(schema, backend, lenient)
        except (TypeError, ValueError, RecursionError):
            return compile_schema(schema, self.vocabulary, backend=backend, lenient=lenient)
        return future.result()

    def close(self) -> None:
        """End the compiling process. A later schema starts a new one."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _future(self, schema: Any, backend: str, lenient: bool) -> Future[AnswerGrammar]:
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
        key = json.dumps([text, backend, lenient])
        with self._lock:
            if key not in self._futures:
                if self._executor is None:
                    self._executor = ThreadPoolExecutor(1, "docqa-grammars")
                self._futures[key] = self._executor.submit(self._make, schema, text, backend, lenient)
            return self._futures[key]

    def _make(self, schema: Any, text: str, backend: str, lenient: bool) -> AnswerGrammar:
        started = time.monotonic()
        path = None
        if self._folder is not None:
            path = self._folder / f"{result_key(text, backend, lenient, self.vocabulary)}.grammar"
        result = _from_disk(path, schema, self.vocabulary)
        if result is None:
            try:
                content = self._compiled(text, backend, lenient)
            except WorkerDied as death:
                if backend != AUTO:
                    raise UnsupportedSchema("", "", str(death)) from None
                try:
                    content = self._compiled(text, LLGUIDANCE, lenient)
                except WorkerDied:
                    raise UnsupportedSchema("", "", str(death)) from None
            else:
                _to_disk(path, content)
            result = load_result(content, schema, self.vocabulary)
        self.compile_seconds += time.monotonic() - started
        if isinstance(result, Exception):
            raise result
        return result

    def _compiled(self, text: str, backend: str, lenient: bool) -> bytes:
        if self._worker is None or not self._worker.is_alive:
            self._worker = _Worker(self.vocabulary)
        request = {"schema": text, "backend": backend, "lenient": lenient, **self._limits}
        try:
            return self._worker.ask(json.dumps(request).encode(), self._limits["seconds"])
        except WorkerDied as death:
            self._worker.end()
            self._worker = None
            megabytes = self._limits["memory_bytes"] >> 20
            limits = f"{self._limits['seconds']} s or {megabytes:,} MiB"
            raise WorkerDied(f"compiling it takes more than {limits} ({death})") from None


class _Worker:
    """A compiling process."""

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


def _from_disk(path: Path | None, schema: Any, vocabulary: TokenVocabulary) -> AnswerGrammar | Refusal | None:
    """What is kept; None if there is nothing, it is damaged, or others could have written it."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None
            return load_result(file.read(), schema, vocabulary)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _to_disk(path: Path | None, content: bytes) -> None:
    """Keep a result, whole or not at all; where that fails, it is compiled again next time."""
    if path is None or len(content) > LARGEST_FILE_BYTES:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
