"""Which rows come after which: the `after` columns of an input checked, and put in an order."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from jobs.errors import InputError
from jobs.source import InputRow

Key = tuple[str, str]
"""A row's `(doc_id, question_id)`."""

SHOWN_IDS = 8


def needed_keys(rows: Sequence[InputRow]) -> set[Key]:
    """The keys of the rows that others come after."""
    return {(row.doc_id, other) for row in rows for other in row.program.after}


def dependent_order(rows: Sequence[InputRow]) -> list[InputRow]:
    """The rows that come after others, each behind all of those.

    Raises InputError, with the row's place, for one that names itself, a question that its document doesn't have, or a
    question that comes after it.
    """
    documents = {row.doc_id for row in rows if row.program.after}
    if not documents:
        return []
    by_key = {(row.doc_id, row.question_id): row for row in rows if row.doc_id in documents}
    sorter: TopologicalSorter[Key] = TopologicalSorter()
    for (doc_id, question_id), row in by_key.items():
        for other in row.program.after:
            if other == question_id:
                raise InputError(f"{row.place}: question {question_id!r} comes after itself; take it out of `after`")
            if (doc_id, other) not in by_key:
                known = [repr(known_id) for known_doc, known_id in by_key if known_doc == doc_id]
                more = ", …" if len(known) > SHOWN_IDS else ""
                raise InputError(
                    f"{row.place}: `after` names question {other!r}, but doc_id {doc_id!r} has no such question (it "
                    f"has {', '.join(known[:SHOWN_IDS])}{more}); correct the id or add the question"
                )
        if row.program.after:
            sorter.add((doc_id, question_id), *((doc_id, other) for other in row.program.after))
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        raise InputError(_cycle_text(by_key, error.args[1])) from None
    return [by_key[key] for key in order if by_key[key].program.after]


def _cycle_text(by_key: dict[Key, InputRow], cycle: Sequence[Key]) -> str:
    """`cycle` has the first key again at its end, each standing before one that comes after it."""
    chain = " after ".join(repr(question_id) for _, question_id in reversed(cycle))
    row = by_key[cycle[0]]
    return f"{row.place}: questions come after each other in a circle ({chain}); break it in one of their `after`"
