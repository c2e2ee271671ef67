"""Documents and questions joined to rows, and rows that say the same twice merged."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jobs.errors import InputError
from jobs.source_columns import Columns
from jobs.source_rows import InputRow, Part
from jobs.source_table import RowProblem, first_problem


def make_row(document: Part, question: Part, place: str) -> InputRow:
    """A row of its two sides. Where both have a schema, gold or a further column, the question's counts."""
    extra = {**document.extra, **question.extra} if document.extra and question.extra else None
    return InputRow(
        doc_id=document.key,
        question_id=question.key,
        document_hash=document.content,
        question=question.content,
        schema=document.schema if question.schema is None else question.schema,
        gold=document.gold if question.gold is None else question.gold,
        extra=(document.extra or question.extra) if extra is None else extra,
        problem=first_problem(document.problem, question.problem),
        place=place,
        program=question.program,
    )


def merge_documents(parts: Sequence[Part]) -> tuple[dict[str, Part], int]:
    """Documents of a documents table by id, and how many repeated an earlier one.

    Raises InputError for two different texts under one id.
    """
    by_id: dict[str, Part] = {}
    for part in parts:
        first = by_id.setdefault(part.key, part)
        if first is not part and (first.content, _status(first)) != (part.content, _status(part)):
            raise InputError(
                f"doc_id {part.key!r} has two different documents, in {first.place} and in {part.place}; "
                "give each document its own doc_id"
            )
    return by_id, len(parts) - len(by_id)


def join(documents: dict[str, Part], questions: Sequence[Part], by_doc_id: bool) -> Iterator[InputRow]:
    """Rows of two tables: each question with the document it names, or with every document.

    A question whose document isn't there is a row with a problem; if that goes for all of them, it is an InputError.
    """
    if not by_doc_id:
        for document in documents.values():
            for question in questions:
                yield make_row(document, question, f"{question.place} with {document.place}")
        return
    if questions and documents and not any(question.join_key in documents for question in questions):
        question, document = questions[0], next(iter(documents.values()))
        raise InputError(
            f"no doc_id of the questions is one of the documents': {question.place} has {question.join_key!r}, "
            f"{document.place} has {document.key!r}; make them equal or map the right column"
        )
    for question in questions:
        found = None if question.join_key is None else documents.get(question.join_key)
        if found is not None:
            yield make_row(found, question, f"{question.place} with {found.place}")
            continue
        reason = "there is no doc_id" if question.join_key is None else f"no document has doc_id {question.join_key!r}"
        missing = RowProblem("empty_document", f"{reason} in {question.place}")
        yield make_row(
            Part(question.join_key or "", None, None, None, {}, missing, question.place), question, question.place
        )


def merge_rows(rows: Sequence[InputRow]) -> tuple[list[InputRow], int]:
    """Rows without those that repeat an earlier one, and how many those were.

    Raises InputError for two rows with one key that ask different things, or have different golds.
    """
    by_key: dict[tuple[str, str], InputRow] = {}
    for row in rows:
        key = row.doc_id, row.question_id
        first = by_key.setdefault(key, row)
        if first is row:
            continue
        if _asked(first) != _asked(row):
            raise InputError(
                f"two different rows have doc_id {row.doc_id!r} and question_id {row.question_id!r}: {first.place} "
                f"and {row.place}; give each its own question_id"
            )
        if first.gold is None:
            by_key[key] = replace(first, gold=row.gold)
        elif row.gold is not None and row.gold != first.gold:
            raise InputError(
                f"{first.place} and {row.place} ask the same (doc_id {row.doc_id!r}, question_id {row.question_id!r}), "
                "but their golds differ; keep one of them"
            )
    return list(by_key.values()), len(rows) - len(by_key)


def common_columns(documents: Sequence[Columns], questions: Sequence[Columns]) -> list[str]:
    """The carried columns that both sides have."""
    sides = [{name for columns in side for name in columns.extra} for side in (documents, questions)]
    return sorted(sides[0] & sides[1])


def fill_missing_columns(rows: Sequence[InputRow], files: Sequence[Columns]) -> None:
    """Give every row all further columns that any file has, null where its own file lacks them."""
    own = [{*columns.extra, *(columns.element.extra if columns.element else ())} for columns in files]
    names = sorted(set().union(*own))
    if not any(set(names) - had for had in own):
        return
    for row in rows:
        for name in names:
            row.extra.setdefault(name, None)


def _asked(row: InputRow) -> tuple[object, ...]:
    return row.document_hash, row.question, row.schema, row.problem.status if row.problem else None, row.program


def _status(part: Part) -> str | None:
    return part.problem.status if part.problem else None
