"""From batches of a file to documents and rows: texts, ids, what rows carry, and what is wrong with them."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobs.errors import InputError
from jobs.question_program import PLAIN, PROGRAM_COLUMNS, Program, read_programs
from jobs.source_columns import Columns
from jobs.source_files import OpenedFile
from jobs.source_values import NULL, Text, id_cells, is_blank, json_cells, text_cells
from jobs.spill_file import SpillFile

# A row that has several problems is filed under the first of these.
PROBLEM_ORDER = ("invalid_utf8", "empty_document", "empty_question")


class Document:
    """A distinct document text; `document_hash` is the SHA-256 of its UTF-8 bytes in hex, `characters` its length.

    With a `spill`, the text lies there and is read anew each time that it is asked for.
    """

    __slots__ = ("_bytes", "_place", "_spill", "_text", "characters", "document_hash")

    def __init__(self, document_hash: str, text: str, spill: SpillFile | None = None) -> None:
        self.document_hash = document_hash
        self.characters = len(text)
        self._text, self._spill = text, spill
        if spill is not None:
            content = text.encode()
            self._text, self._place, self._bytes = "", spill.write(content), len(content)

    @property
    def text(self) -> str:
        """The whole text."""
        return self._text if self._spill is None else self._spill.read(self._place, self._bytes).decode()


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Why a row can't be asked: a status of the answers table, and a sentence with file and row."""

    status: str
    error: str


@dataclass(frozen=True, slots=True)
class InputRow:
    """One question about one document.

    `document_hash` is None where there is no usable document. `schema` is the row's own, or None. `gold` and `extra`
    are JSON-ready; rows may share one `extra`, so don't change it. `place` is like `a.parquet row 17 (row group 1 of
    2)`, counted from 1.
    A row with a `problem` keeps its question as far as it can be shown: bytes that are not UTF-8 stand as `\\xff`.
    """

    doc_id: str
    question_id: str
    document_hash: str | None
    question: str | None
    schema: str | None
    gold: Any
    extra: dict[str, Any]
    problem: RowProblem | None
    place: str
    program: Program = PLAIN


@dataclass(frozen=True, slots=True)
class Part:
    """One side of a row: the document's or the question's. A long row is one of each, side by side.

    `key` is the side's id, `content` the document's hash or the question's text; `join_key` is the `doc_id` that a row
    of a questions table asks about.
    """

    key: str
    content: str | None
    schema: str | None
    gold: Any
    extra: dict[str, Any]
    problem: RowProblem | None
    place: str
    join_key: str | None = None
    program: Program = PLAIN


@dataclass(frozen=True, slots=True)
class _Carried:
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
    def of_batch(cls, opened: OpenedFile, first_row: int, columns: Columns, batch: pa.RecordBatch) -> "Table":
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

    def carried(self, id_name: str) -> list[_Carried]:
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
            _Carried(id_.value, None if is_blank(schema.value) else schema.value, golden, extra, problems.get(row))
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


class PartReader:
    """Turns tables into parts; holds each question's text and each id once, however many rows repeat it."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._spill = SpillFile()  # of the documents' texts

    def documents(self, table: Table, new: dict[str, Document], known: Mapping[str, Document]) -> list[Part]:
        """The document's side of each row. Texts that `known` doesn't have are put into `new`."""
        hashes: dict[int, str] = {}
        parts = []
        for cell, carried, place in zip(table.texts("document"), table.carried("doc_id"), table.places, strict=True):
            problem, document_hash = carried.problem, None
            if cell.bad:
                problem = bad_text("document", cell.bad, place)
            else:
                # Rows of a batch share one cell for equal values, so each is looked at once.
                document_hash = hashes.get(id(cell))
                if document_hash is None:
                    document_hash = "" if is_blank(cell.value) else self._add_document(cell.value or "", new, known)
                    hashes[id(cell)] = document_hash
            if document_hash == "":
                empty = RowProblem("empty_document", f"the document is empty in {place}")
                problem, document_hash = first_problem(problem, empty), None
            key = carried.key
            if key is None:
                key = (document_hash or text_hash(cell.value or ""))[:16]
            key = self._known.setdefault(key, key)
            parts.append(Part(key, document_hash, carried.schema, carried.gold, carried.extra, problem, place))
        return parts

    def questions(self, table: Table, beside_document: bool = False) -> list[Part]:
        """The question's side of each row; `beside_document` leaves to the document's side what a row has once."""
        if beside_document:
            own_columns = ("question_id", "question", *PROGRAM_COLUMNS)
            used = {name: own for name, own in table.columns.used.items() if name in own_columns}
            table = Table(Columns(used, ()), table.arrays, table.places, table.partitions)
        join_keys = [] if beside_document else table.texts("doc_id", id_cells)
        parts = []
        programs = read_programs(table)
        for row, (cell, carried, place) in enumerate(
            zip(table.texts("question"), table.carried("question_id"), table.places, strict=True)
        ):
            join_key = join_keys[row] if join_keys else NULL
            problem = carried.problem
            if cell.bad:
                problem = bad_text("question", cell.bad, place)
            elif join_key.bad:
                problem = bad_text("doc_id", join_key.bad, place)
            elif is_blank(cell.value):
                problem = first_problem(problem, RowProblem("empty_question", f"the question is empty in {place}"))
            question = cell.value if cell.value is None else self._known.setdefault(cell.value, cell.value)
            key = carried.key if carried.key is not None else text_hash(question or "")[:16]
            key = self._known.setdefault(key, key)
            parts.append(
                Part(
                    key, question, carried.schema, carried.gold, carried.extra, problem, place, join_key.value,
                    programs[row],
                )
            )  # fmt: skip
        return parts

    def nested(self, table: Table, documents: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
        """Each question in a `questions` column, with the document it is asked of."""
        lists = _unwrapped(table.array("questions"))
        if pa.types.is_null(lists.type):
            return
        lengths = [length or 0 for length in pc.list_value_length(lists).to_pylist()]
        flat = _unwrapped(lists.flatten())
        asked = [document for document, length in zip(documents, lengths, strict=True) for _ in range(length)]
        places = [
            f"{document.place} question {number}"
            for document, length in zip(documents, lengths, strict=True)
            for number in range(1, length + 1)
        ]
        inner = table.columns.element
        if inner is None:
            questions = Table(Columns({"question": "question"}, ()), {"question": flat}, places)
        else:
            names = [child.name for child in flat.type]
            questions = Table(inner, dict(zip(names, flat.flatten(), strict=True)), places)
        yield from zip(asked, self.questions(questions), strict=True)

    def _add_document(self, text: str, new: dict[str, Document], known: Mapping[str, Document]) -> str:
        document_hash = text_hash(text)
        if document_hash not in known and document_hash not in new:
            new[document_hash] = Document(document_hash, text, self._spill)
        return document_hash


def text_hash(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


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


def _unwrapped(array: pa.Array) -> pa.Array:
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array
