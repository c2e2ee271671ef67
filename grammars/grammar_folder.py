"""The folder where compiled grammars are kept: read with care, written whole, and never larger than it may be."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from .compile import AnswerGrammar
from .grammar_file import Refusal, load_result
from .vocabulary import TokenVocabulary

LARGEST_FILE_BYTES = 128 << 20
"""Larger results aren't kept."""

LARGEST_FOLDER_BYTES = 1 << 30
"""Beyond, the files go that were used least recently."""

_SUFFIX, _UNFINISHED = ".grammar", ".unfinished"


class GrammarFolder:
    """Results by the key that `grammar_file.result_key` makes. What can't be read or written is compiled again."""

    def __init__(self, path: Path, most_bytes: int = LARGEST_FOLDER_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes

    def read(self, key: str, schema: Any, vocabulary: TokenVocabulary) -> AnswerGrammar | Refusal | None:
        """What is kept; None if there is nothing, it is damaged, or others could have written it."""
        path = self._path / f"{key}{_SUFFIX}"
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.getuid() or status.st_mode & 0o022:
                    return None
                result = load_result(file.read(), schema, vocabulary)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return result

    def write(self, key: str, content: bytes) -> None:
        """Keep a result, whole or not at all, and make room for it."""
        if len(content) > LARGEST_FILE_BYTES:
            return
        with contextlib.suppress(OSError):
            self._path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path, suffix=_UNFINISHED, delete=False) as file:
                file.write(content)
            os.replace(file.name, self._path / f"{key}{_SUFFIX}")
            self._trim()

    def _trim(self) -> None:
        files = []
        for entry in os.scandir(self._path):
            if entry.name.endswith((_SUFFIX, _UNFINISHED)):
                status = entry.stat()
                files.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._most_bytes:
                break
            with contextlib.suppress(FileNotFoundError):  # another process makes room as well
                os.unlink(path)
            total -= size
