"""From batches of a file to documents and rows: texts, ids, what rows carry, and what is wrong with them."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobs.question_columns import PROGRAM_COLUMNS
from jobs.question_program import PLAIN, Program, read_programs
from jobs.source_columns import Columns
from jobs.source_table import RowProblem, Table, bad_text, first_problem
from jobs.source_values import NULL, id_cells, is_blank
from jobs.spill_file import SpillFile


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


def _unwrapped(array: pa.Array) -> pa.Array:
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array
