"""Which Parquet files a setting names, and reading them batch by batch.

A file that can't be read raises `BadFile` here, never a pyarrow error, so that the caller can name all of them at once.
"""

import fnmatch
import glob
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.errors import InputError

# About how many bytes of a file are decoded at a time. It bounds memory; larger batches are hardly faster.
BATCH_BYTES = 64 * 2**20
# Nested text is expanded when it is decoded, whatever its size in the file, so fewer such rows are read at a time.
BATCH_ROWS, NESTED_BATCH_ROWS = 65_536, 1024
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
READ_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, RuntimeError, EOFError, MemoryError)


class BadFile(Exception):
    """One file can't be read; the message is the reason, without the file's name."""


@dataclass(frozen=True)
class InputFile:
    """One file to read: its path, its name in messages, and the `key=value` folders on its way."""

    path: str
    name: str
    partitions: dict[str, str | None]


@dataclass(frozen=True)
class OpenedFile:
    """A file whose footer was read. The file itself is closed again, so any number of them can be held."""

    file: InputFile
    metadata: pq.FileMetaData
    schema: pa.Schema

    @property
    def name(self) -> str:
        """The file's name in messages."""
        return self.file.name

    def place(self, row: int) -> str:
        """Where a row stands, counted from 1: `a.parquet row 17`, and its row group if there are several."""
        return f"{self.name} row {row}{self._group(row)}"

    def places(self, first_row: int, rows: int) -> list[str]:
        """The places of consecutive rows."""
        if self.metadata.num_row_groups < 2:
            return [f"{self.name} row {row}" for row in range(first_row, first_row + rows)]
        return [self.place(row) for row in range(first_row, first_row + rows)]

    def _group(self, row: int) -> str:
        groups = self.metadata.num_row_groups
        if groups < 2:
            return ""
        return f" (row group {min(bisect_left(self._group_ends, row) + 1, groups)} of {groups})"

    @cached_property
    def _group_ends(self) -> list[int]:
        """The last row of each row group, counted from 1."""
        sizes = [self.metadata.row_group(number).num_rows for number in range(self.metadata.num_row_groups)]
        return list(accumulate(sizes))


def find_files(patterns: Sequence[str], folder: Path, setting: str) -> tuple[list[InputFile], list[tuple[str, str]]]:
    """All files that `patterns` (files, folders, globs) name, sorted by path, and those passed over, with reasons.

    Names that begin with `_` or `.` are passed over without a word (markers and side files). Raises InputError,
    naming `setting`, for a pattern that names nothing.
    """
    root = os.path.abspath(folder)
    found: dict[str, InputFile] = {}
    skipped: dict[str, tuple[str, str]] = {}
    for pattern in patterns:
        before = len(found)
        seen = set()
        for path, explicit in _matches(pattern, root, setting):
            seen.add(path)
            name = _display_name(path, root)
            if not explicit and not path.lower().endswith(".parquet"):
                skipped.setdefault(path, (name, "its name does not end in .parquet"))
            elif os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
                skipped.setdefault(path, (name, "it is not a regular file"))  # opening a pipe would wait for ever
            elif path not in found:
                written = path if os.path.isabs(os.path.expanduser(pattern)) else os.path.relpath(path, root)
                found[path] = InputFile(path, name, _partitions(written, name))
        if len(found) == before and not seen & set(found):
            raise InputError(f"{setting}: {pattern!r} holds no .parquet file (looked in {_printable(root)})")
    order = sorted(found, key=lambda path: path.split(os.sep))
    return [found[path] for path in order], [skipped[path] for path in sorted(skipped)]


def open_file(file: InputFile) -> OpenedFile:
    """Read a file's footer. Raises BadFile."""
    try:
        if os.path.getsize(file.path) == 0:
            raise BadFile("it is empty (0 bytes)")
        with _parquet(file.path) as parquet:
            return OpenedFile(file, parquet.metadata, parquet.schema_arrow)
    except READ_ERRORS as error:
        raise BadFile(_reason(error)) from None


def read_batches(opened: OpenedFile, shrink: int = 1) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Every batch of a file with the number of its first row, counted from 1.

    Top-level text comes as dictionaries, so that a document repeated over many rows is held once a batch. `shrink`
    divides the batch size. Raises BadFile, or TooLarge where a smaller batch may succeed.
    """
    schema, total = opened.schema, opened.metadata.num_rows
    if total == 0:
        return
    dictionaries = [field.name for field in schema if _comes_as_dictionary(field.type)]
    rows = max(1, _batch_rows(opened) // shrink)
    row = 1
    try:
        with _parquet(opened.file.path, metadata=opened.metadata, read_dictionary=dictionaries) as parquet:
            batches = parquet.iter_batches(batch_size=rows)
            while True:
                try:
                    batch = next(batches, None)
                    if batch is None:
                        break
                    _check_indices(batch)
                except READ_ERRORS as error:
                    where = opened.place(row).removeprefix(opened.name).strip()
                    if not _is_too_large(error):
                        raise BadFile(f"{_reason(error)} (at {where} or after it)") from None
                    if rows > 1:
                        raise TooLarge from None
                    raise BadFile(
                        f"{where} is too large to read ({_reason(error)}); rewrite it as smaller rows"
                    ) from None
                yield row, batch
                row += batch.num_rows
    except FileNotFoundError as error:
        raise BadFile(_reason(error)) from None
    if row - 1 != total:
        raise BadFile(f"it holds {row - 1} rows but says {total}")


class TooLarge(Exception):
    """A batch was too large for Arrow's offsets; reading the file again in smaller batches may succeed."""


def _matches(pattern: str, root: str, setting: str) -> Iterator[tuple[str, bool]]:
    """Paths that one pattern names, each with whether its ending was asked for by name."""
    written = os.path.expanduser(pattern) if pattern.startswith("~/") else pattern
    path = os.path.normpath(os.path.join(root, written))
    if os.path.isdir(path):
        yield from ((inner, False) for inner in _walk(path, ()))
    elif os.path.lexists(path):
        yield path, True
    elif "://" in pattern:
        raise InputError(f"{setting}: {pattern!r} is an address, but only files of this machine are read; fetch it")
    elif glob.has_magic(written):
        # Only the user's text is a pattern: a job folder named `runs [old]` is not.
        full = written if os.path.isabs(written) else os.path.join(glob.escape(root), written)
        names = [part for part in written.split("/") if part]
        explicit = bool(os.path.splitext(names[-1])[1]) and not glob.has_magic(os.path.splitext(names[-1])[1])
        matches = sorted(os.path.normpath(match) for match in glob.glob(full, recursive=True))
        if not matches:
            raise InputError(f"{setting}: no file matches {pattern!r} (looked in {_printable(root)})")
        for match in matches:
            # A part that the pattern spells out itself, as in `_staging/*.parquet`, is not hidden.
            parts = os.path.relpath(match, root).split(os.sep) if not os.path.isabs(written) else match.split(os.sep)
            if any(_hidden(part) and not any(fnmatch.fnmatch(part, n) and _hidden(n) for n in names) for part in parts):
                continue
            if os.path.isdir(match):
                yield from ((inner, False) for inner in _walk(match, ()))
            else:
                yield match, explicit
    else:
        raise InputError(f"{setting}: there is no file or folder {pattern!r} (looked in {_printable(root)})")


def _walk(folder: str, above: tuple[str, ...]) -> Iterator[str]:
    """Every file below a folder that is not hidden; follows links, but never back up to a folder it is in."""
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"the folder {_printable(folder)} can't be read: {error.strerror}") from None
    for entry in entries:
        if _hidden(entry.name):
            continue
        if entry.is_dir():
            yield from _walk(entry.path, (*above, real))
        else:
            yield entry.path


def _hidden(name: str) -> bool:
    return name[:1] in ("_", ".") and name not in (".", "..")


def _partitions(path: str, name: str) -> dict[str, str | None]:
    """The `key=value` folders of a path. Values stay text, percent-encoding is decoded once."""
    values: dict[str, str | None] = {}
    for part in path.split(os.sep)[:-1]:
        key, equals, value = part.partition("=")
        if not equals or not key:
            continue
        key, text = unquote(key), None if value == HIVE_NULL else unquote(_printable(value))
        if values.setdefault(key, text) != text:
            raise InputError(f"{name}: two folders give {key!r} two values, {values[key]!r} and {text!r}; rename one")
    return values


@contextmanager
def _parquet(path: str, **options: Any) -> Iterator[pq.ParquetFile]:
    source: str | BinaryIO = path
    try:
        path.encode()
    except UnicodeEncodeError:
        source = open(path, "rb")  # noqa: SIM115 - closed below; pyarrow itself takes no name that isn't UTF-8
    # Thousands of row groups make a footer larger than the default limits.
    limits = {"thrift_string_size_limit": 2**31 - 1, "thrift_container_size_limit": 2**31 - 1}
    try:
        with pq.ParquetFile(source, page_checksum_verification=True, **limits, **options) as parquet:
            yield parquet
    finally:
        if not isinstance(source, str):
            source.close()


def _batch_rows(opened: OpenedFile) -> int:
    """How many rows make up about `BATCH_BYTES`, by the row group with the largest rows."""
    metadata = opened.metadata
    row_bytes = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows:
            row_bytes = max(row_bytes, group.total_byte_size // group.num_rows)
    nested = any(pa.types.is_nested(field.type) for field in opened.schema)
    return max(1, min(BATCH_BYTES // row_bytes, NESTED_BATCH_ROWS if nested else BATCH_ROWS))


def _comes_as_dictionary(data_type: pa.DataType) -> bool:
    is_ = pa.types
    return is_.is_string(data_type) or is_.is_large_string(data_type) or is_.is_binary(data_type)


def _is_too_large(error: BaseException) -> bool:
    """Whether a smaller batch may be read where this one was not; Arrow says so in three ways."""
    if isinstance(error, pa.ArrowNotImplementedError):
        return "chunked array" in str(error)
    return isinstance(error, pa.ArrowCapacityError | MemoryError)


def _check_indices(batch: pa.RecordBatch) -> None:
    """A damaged page can point past its dictionary, which Arrow itself does not check here."""
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and column.null_count < len(column):
            bounds = pc.min_max(column.indices).as_py()
            if bounds["min"] < 0 or bounds["max"] >= len(column.dictionary):
                raise ValueError("a value points outside its dictionary")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return _printable(lines[0].rstrip(".")) if lines else type(error).__name__


def _display_name(path: str, root: str) -> str:
    inside = path.startswith(root.rstrip(os.sep) + os.sep)
    return _printable(os.path.relpath(path, root) if inside else path)


def _printable(text: str) -> str:
    """File names may hold bytes that are no text; shown escaped, so that no message fails on them."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")
