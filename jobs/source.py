"""The input of a job: documents, each text once, and the rows that ask about them.

Files are read batch by batch, and each file's rows are kept apart until it has been read to its end, so a file that
turns out to be damaged leaves nothing behind. Nothing is returned before every file has been read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jobs.errors import InputError
from jobs.job_settings import InputSettings
from jobs.source_columns import LONG, NESTED, TWO_TABLES, ColumnMap, Columns, choose_layout, file_columns
from jobs.source_files import BadFile, InputFile, OpenedFile, TooLarge, find_files, open_file, read_batches
from jobs.source_join import common_columns, fill_missing_columns, join, make_row, merge_documents, merge_rows
from jobs.source_rows import Document, InputRow, Part, PartReader
from jobs.source_table import RowProblem, Table

__all__ = ["Document", "InputData", "InputRow", "RowProblem", "read_documents", "read_input"]

# Between tries, how much smaller the batches of a file become whose rows are too large for Arrow's offsets.
SHRINK = 16


@dataclass
class InputData:
    """Everything a job reads. `documents` holds, by hash, the documents that a row uses, in order of their first row.

    `merged_rows` counts input rows left out because an earlier one is the same, `unasked_documents` the documents of
    the input that have no question; `hidden_columns` are carried columns that documents and questions both have, of
    which rows have the question's. `skipped_files` are (path, reason) of
    all files passed over, `bad_files` those of them that should have been read. `layout` is `long`, `nested` or
    `two tables`.
    """

    documents: dict[str, Document]
    rows: list[InputRow]
    files: list[str]
    skipped_files: list[tuple[str, str]]
    merged_rows: int
    layout: str
    bad_files: list[tuple[str, str]] = field(default_factory=list)
    unasked_documents: int = 0
    hidden_columns: list[str] = field(default_factory=list)


@dataclass
class _Contents:
    """What a file, or all files of a table, held: whole rows, or one side of them."""

    documents: dict[str, Document] = field(default_factory=dict)
    rows: list[InputRow] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    unasked_documents: int = 0


def read_input(settings: InputSettings, folder: Path) -> InputData:
    """Read all documents and questions of a job; relative paths are relative to `folder`.

    Rows come in the order of the sorted paths and of the rows in each. A row that can't be asked has a `problem`.
    Raises InputError for what is wrong with the input as a whole: files that are missing or can't be read (all of
    them named at once, unless `on_bad_file` is `skip`), columns, types, and keys that two different rows share.
    """
    return _Reader(settings, folder).read()


def read_documents(settings: InputSettings, folder: Path) -> dict[str, Document]:
    """The documents alone, by hash, whatever the layout; their files need not have questions. Raises as read_input."""
    return _Reader(replace(settings, questions=()), folder).read_documents()


class _Reader:
    def __init__(self, settings: InputSettings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.parts = PartReader()
        self.files: list[str] = []
        self.skipped: list[tuple[str, str]] = []
        self.bad: list[tuple[str, str]] = []
        self.error: InputError | None = None

    def read(self) -> InputData:
        tables = self._open_tables()
        try:
            layout, columns = self._columns(tables)
        except InputError:
            self._raise_bad()
            raise
        contents = {table: self._read_table(table, tables, columns[table]) for table in columns}
        self._raise_bad()
        if self.error is not None:
            raise self.error
        merged = 0
        if layout == TWO_TABLES:
            documents = contents["documents"].documents
            by_id, merged = merge_documents(contents["documents"].parts)
            by_doc_id = any("doc_id" in found.used for found in columns["questions"])
            rows = list(join(by_id, contents["questions"].parts, by_doc_id))
            hidden = common_columns(columns["documents"], columns["questions"])
            unasked = len(by_id.keys() - {row.doc_id for row in rows})
        else:
            documents, rows = contents[layout].documents, contents[layout].rows
            hidden = common_columns(columns[layout], [one.element for one in columns[layout] if one.element])
            unasked = contents[layout].unasked_documents
        rows, repeated = merge_rows(rows)
        fill_missing_columns(rows, [found for files in columns.values() for found in files])
        used = dict.fromkeys(row.document_hash for row in rows if row.document_hash is not None)
        return InputData(
            documents={document_hash: documents[document_hash] for document_hash in used},
            rows=rows,
            files=self.files,
            skipped_files=self.skipped + self.bad,
            merged_rows=merged + repeated,
            layout=layout,
            bad_files=self.bad,
            unasked_documents=unasked,
            hidden_columns=hidden,
        )

    def read_documents(self) -> dict[str, Document]:
        tables, mapping = self._open_tables(), ColumnMap(self.settings.columns)
        columns = []
        for opened in tables["documents"]:
            own = file_columns(opened, "documents", mapping).used["document"]
            columns.append(Columns({"document": own}, ()))
        contents = self._read_table("documents", tables, columns)
        self._raise_bad()
        if self.error is not None:
            raise self.error
        return contents.documents

    def _open_tables(self) -> dict[str, list[OpenedFile]]:
        """Find all files and read their footers."""
        wanted = {"documents": self.settings.documents, "questions": self.settings.questions}
        found: dict[str, list[InputFile]] = {}
        for table, patterns in wanted.items():
            if patterns:
                found[table], skipped = find_files(patterns, self.folder, f"input.{table}")
                self.skipped += [entry for entry in skipped if entry not in self.skipped]
        opened: dict[str, list[OpenedFile]] = {table: [] for table in found}
        for table, files in found.items():
            for file in files:
                try:
                    opened[table].append(open_file(file))
                except BadFile as bad:
                    self.bad.append((file.name, str(bad)))
        if not all(opened.values()):
            self._raise_bad(none_left=True)
        return opened

    def _columns(self, tables: dict[str, list[OpenedFile]]) -> tuple[str, dict[str, list[Columns]]]:
        """The layout, and each file's columns by table; a single table is then called by its layout."""
        mapping = ColumnMap(self.settings.columns)
        layout = TWO_TABLES
        if "questions" not in tables:
            layout = choose_layout(tables["documents"], mapping)
            tables[layout] = tables.pop("documents")
        columns = {table: [file_columns(opened, table, mapping) for opened in files] for table, files in tables.items()}
        mapping.check_all_met()
        if layout == TWO_TABLES:
            pairs = list(zip(tables["questions"], columns["questions"], strict=True))
            having = [opened.name for opened, found in pairs if "doc_id" in found.used]
            lacking = [opened.name for opened, found in pairs if "doc_id" not in found.used]
            if having and lacking:
                raise InputError(
                    f"{lacking[0]} has no column 'doc_id' to join on, but {having[0]} has; "
                    "give all files of questions that column, or none"
                )
        return layout, columns

    def _read_table(self, table: str, tables: Mapping[str, list[OpenedFile]], columns: Sequence[Columns]) -> _Contents:
        """Read each file of a table once. An error in rows waits until all bad files are known."""
        whole, good = _Contents(), 0
        for opened, found in zip(tables[table], columns, strict=True):
            try:
                contents = self._read_file(table, opened, found, whole.documents)
            except BadFile as bad:
                self.bad.append((opened.name, str(bad)))
                continue
            except InputError as error:
                self.error = self.error or error
                contents = _Contents()
            good += 1
            self.files.append(opened.name)
            whole.documents.update(contents.documents)
            whole.rows += contents.rows
            whole.parts += contents.parts
            whole.unasked_documents += contents.unasked_documents
        if not good:
            self._raise_bad(none_left=True)
        return whole

    def _read_file(self, table: str, opened: OpenedFile, columns: Columns, known: dict[str, Document]) -> _Contents:
        """One file; read again in smaller batches if its rows turn out to be too large."""
        shrink = 1
        while True:
            contents = _Contents()
            try:
                for first_row, batch in read_batches(opened, shrink):
                    rows = Table.of_batch(opened, first_row, columns, batch)
                    self._read_rows(table, rows, contents, known)
                return contents
            except TooLarge:
                shrink *= SHRINK

    def _read_rows(self, table: str, rows: Table, contents: _Contents, known: dict[str, Document]) -> None:
        if table == "questions":
            contents.parts += self.parts.questions(rows)
            return
        documents = self.parts.documents(rows, contents.documents, known)
        if table == LONG:
            questions = self.parts.questions(rows, beside_document=True)
            pairs = zip(documents, questions, strict=True)
            contents.rows += [make_row(document, question, document.place) for document, question in pairs]
        elif table == NESTED:
            nested = list(self.parts.nested(rows, documents))
            contents.unasked_documents += len(documents) - len({id(document) for document, _ in nested})
            contents.rows += [make_row(document, question, question.place) for document, question in nested]
        else:
            contents.parts += documents

    def _raise_bad(self, none_left: bool = False) -> None:
        """Raise InputError naming every bad file, unless the job skips them and others are left."""
        if self.bad and (none_left or self.settings.on_bad_file == "fail"):
            listed = "; ".join(f"{name}: {reason}" for name, reason in self.bad)
            count = "1 file" if len(self.bad) == 1 else f"{len(self.bad)} files"
            way_out = "none is left, so" if none_left else 'set input.on_bad_file = "skip" or'
            raise InputError(f"{count} can't be read as Parquet ({listed}); {way_out} write them again")
