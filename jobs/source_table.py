"""A batch of a file as a table: columns by what they stand for, as texts, with what is wrong in which row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from jobs.errors import InputError
from jobs.source_columns import Columns
from jobs.source_files import OpenedFile
from jobs.source_values import NULL, Text, id_cells, is_blank, json_cells, text_cells

# A row that has several problems is filed under the first of these.
PROBLEM_ORDER = ("invalid_utf8", "empty_document", "empty_question")


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Why a row can't be asked: a status of the answers table, and a sentence with file and row."""

    status: str
    error: str


@dataclass(frozen=True, slots=True)
class Carried:
    """What a row has beside its document or question."""

    key: str | None
    schema: str | None
    gold: Any
    extra: dict[str, Any]
    problem: RowProblem | None


class Table:
    """Arrays of equal length with the columns they stand for: a batch of a file, or the structs of a nested one."""

    def __init__(
        self,
        columns: Columns,
        arrays: Mapping[str, pa.Array],
        places: Sequence[str],
        partitions: Mapping[str, str | None] | None = None,
    ) -> None:
        self.columns, self.places = columns, places
        self.arrays = dict(arrays)
        self.partitions = partitions or {}
        for name in self.partitions:
            if name in self.arrays:
                self._check_partition(name, self.arrays.pop(name))

    @classmethod
    def of_batch(cls, opened: OpenedFile, first_row: int, columns: Columns, batch: pa.RecordBatch) -> Table:
        """The rows of a batch of a file, the first being its row `first_row`."""
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        return cls(columns, arrays, opened.places(first_row, batch.num_rows), opened.file.partitions)

    def array(self, wanted: str) -> pa.Array:
        """The array of a column that the file itself has."""
        return self.arrays[self.columns.used[wanted]]

    def texts(self, wanted: str, read: Callable[[pa.Array], list[Text]] = text_cells) -> list[Text]:
        """A column as text; nulls if the file doesn't have it."""
        name = self.columns.used.get(wanted)
        if name is None:
            return [NULL] * len(self.places)
        if name in self.partitions:
            return [Text(self.partitions[name])] * len(self.places)
        return read(self.arrays[name])

    def carried(self, id_name: str) -> list[Carried]:
        """The id, schema, gold and further columns of each row."""
        problems: dict[int, RowProblem] = {}

        def note(name: str, bad: Mapping[int, str]) -> None:
            for row, reason in bad.items():
                problems.setdefault(row, bad_text(name, reason, self.places[row]))

        ids, schemas = self.texts(id_name, id_cells), self.texts("schema")
        for name, cells in ((id_name, ids), ("schema", schemas)):
            note(name, {row: cell.bad for row, cell in enumerate(cells) if cell.bad})
        values: dict[str, list[Any]] = {}
        gold_name = self.columns.used.get("gold")
        for name in (*self.columns.extra, *([gold_name] if gold_name else [])):
            if name in self.partitions:
                values[name] = [self.partitions[name]] * len(self.places)
            else:
                values[name], bad = json_cells(self.arrays[name])
                note(name, bad)
        gold = values.pop(gold_name) if gold_name else [None] * len(self.places)
        extras: list[dict[str, Any]] = [{} for _ in self.places] if values else [{}] * len(self.places)
        for name, column in values.items():
            for extra, value in zip(extras, column, strict=True):
                extra[name] = value
        return [
            Carried(id_.value, None if is_blank(schema.value) else schema.value, golden, extra, problems.get(row))
            for row, (id_, schema, golden, extra) in enumerate(zip(ids, schemas, gold, extras, strict=True))
        ]

    def _check_partition(self, name: str, array: pa.Array) -> None:
        """A folder's value is used where the file has the same value, or null, in a column of the same name."""
        folder_value = self.partitions[name]
        for row, value in enumerate(json_cells(array)[0]):
            if value is not None and not _same(folder_value, value):
                raise InputError(
                    f"{self.places[row]}: column {name!r} holds {value!r}, but the file lies in a folder "
                    f"{name}={'' if folder_value is None else folder_value}; rename the folder or correct the column"
                )


def bad_text(column: str, reason: str, place: str) -> RowProblem:
    """The problem of a value that is not UTF-8."""
    return RowProblem("invalid_utf8", f"the column {column!r} is not valid UTF-8 in {place}: {reason}")


def first_problem(*problems: RowProblem | None) -> RowProblem | None:
    """The one of several problems that a row is filed under."""
    real = [problem for problem in problems if problem is not None]
    return min(real, key=lambda problem: PROBLEM_ORDER.index(problem.status), default=None)


def _same(folder_value: str | None, value: Any) -> bool:
    """Whether a folder's text says the same as a value of the file: `007` is the number 7, `TRUE` is true."""
    if folder_value is None or isinstance(value, list | dict):
        return False
    if isinstance(value, bool):
        return folder_value.lower() == str(value).lower()
    if isinstance(value, int | float):
        try:
            return Decimal(folder_value) == Decimal(str(value))
        except InvalidOperation:
            return False
    return folder_value == value
