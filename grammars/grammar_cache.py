"""Grammars of one vocabulary, each distinct schema compiled once: in another process, and kept on disk.

outlines-core aborts its process when it can't allocate, and can't be stopped; so it runs in a child with limits. The
calling process goes on meanwhile and waits only when it asks for the grammar.
"""

import contextlib
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from .compile import AUTO, LLGUIDANCE, AnswerGrammar, compile_schema
from .compiling_process import CompilingProcess, WorkerDied
from .errors import UnsupportedSchema
from .grammar_file import Refusal, load_result, result_key
from .grammar_folder import GrammarFolder
from .vocabulary import TokenVocabulary

COMPILE_SECONDS = 40
COMPILE_MEMORY_BYTES = 3 << 30
"""What compiling one schema may take."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """What it took to get a grammar: `seconds` of work, in the background, and whether it lay on disk."""

    seconds: float
    from_disk: bool


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
        self._folder = None if folder is None else GrammarFolder(folder)
        self._limits = {"seconds": seconds, "memory_bytes": memory_bytes}
        self._futures: dict[str, Future[AnswerGrammar]] = {}
        self._compilations: dict[str, Compilation] = {}
        self._lock = Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._worker: CompilingProcess | None = None

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

    @property
    def compile_seconds(self) -> float:
        """Seconds of work for all schemas so far."""
        return sum(compilation.seconds for compilation in list(self._compilations.values()))

    def compilation(self, schema: Any, *, backend: str = AUTO, lenient: bool = False) -> Compilation | None:
        """What it took to get the grammar, or the refusal, of a schema; None as long as there is neither."""
        return self._compilations.get(_key(_text(schema), backend, lenient))

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
        text = _text(schema)
        key = _key(text, backend, lenient)
        with self._lock:
            if key not in self._futures:
                if self._executor is None:
                    self._executor = ThreadPoolExecutor(1, "docqa-grammars")
                self._futures[key] = self._executor.submit(self._timed, schema, text, backend, lenient)
            return self._futures[key]

    def _timed(self, schema: Any, text: str, backend: str, lenient: bool) -> AnswerGrammar:
        started = time.monotonic()
        result, from_disk = self._result(schema, text, backend, lenient)
        self._compilations[_key(text, backend, lenient)] = Compilation(time.monotonic() - started, from_disk)
        if isinstance(result, Exception):
            raise result
        return result

    def _result(self, schema: Any, text: str, backend: str, lenient: bool) -> tuple[AnswerGrammar | Refusal, bool]:
        """The grammar or the refusal, and whether it lay on disk."""
        name = ""
        if self._folder is not None:
            name = result_key(text, backend, lenient, self.vocabulary)
            kept = self._folder.read(name, schema, self.vocabulary)
            if kept is not None:
                return kept, True
        try:
            content = self._compiled(text, backend, lenient)
        except WorkerDied as death:
            refusal = UnsupportedSchema("", "", str(death))
            if backend != AUTO:
                return refusal, False
            try:
                content = self._compiled(text, LLGUIDANCE, lenient)
            except WorkerDied:
                return refusal, False
        else:
            if self._folder is not None:
                self._folder.write(name, content)
        return load_result(content, schema, self.vocabulary), False

    def _compiled(self, text: str, backend: str, lenient: bool) -> bytes:
        if self._worker is None or not self._worker.is_alive:
            self._worker = CompilingProcess(self.vocabulary)
        request = {"schema": text, "backend": backend, "lenient": lenient, **self._limits}
        try:
            return self._worker.ask(json.dumps(request).encode(), self._limits["seconds"])
        except WorkerDied as death:
            self._worker.end()
            self._worker = None
            megabytes = self._limits["memory_bytes"] >> 20
            limits = f"{self._limits['seconds']} s or {megabytes:,} MiB"
            raise WorkerDied(f"compiling it takes more than {limits} ({death})") from None


def _text(schema: Any) -> str:
    return json.dumps(schema, separators=(",", ":"), allow_nan=False)


def _key(text: str, backend: str, lenient: bool) -> str:
    return json.dumps([text, backend, lenient])
