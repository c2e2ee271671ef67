"""How a question is asked beside its text: after which other questions, as a continued talk, how many times.

Read from the columns `after` (a list of question ids, one id, or a JSON list as text), `follow_up` and `samples` of the
table of questions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobs.errors import InputError
from jobs.question_columns import PROGRAM_COLUMNS
from jobs.source_table import Table
from jobs.source_values import id_cells, is_blank, is_list_type, json_cells, plain_type


@dataclass(frozen=True, slots=True)
class Program:
    """How one question is asked.

    `after`: ids of questions on the same document whose answers its text uses. `follow_up`: the one question of
    `after`, with its answer, stands before it in the prompt as an earlier turn. `samples`: how often it is asked, None
    for as often as the job says.
    """

    after: tuple[str, ...] = ()
    follow_up: bool = False
    samples: int | None = None


PLAIN = Program()
"""The program of a question without any of the columns."""


def read_programs(table: Table) -> list[Program]:
    """The program of each row. Raises InputError, with the row's place, for a value that can't be read."""
    used = table.columns.used
    if not any(name in used for name in PROGRAM_COLUMNS):
        return [PLAIN] * len(table.places)
    afters: list[tuple[str, ...]] = [()] * len(table.places)
    flags: list[Any] = [None] * len(table.places)
    if "after" in used:
        afters = _after(table)
    if "follow_up" in used:
        name = used["follow_up"]
        if name in table.partitions:
            flags = [table.partitions[name] == "true"] * len(table.places)
        else:
            flags = json_cells(table.array("follow_up"))[0]
    counts = _counts(table) if "samples" in used else [None] * len(table.places)
    known = {PLAIN: PLAIN}
    programs = []
    for after, flag, samples, place in zip(afters, flags, counts, table.places, strict=True):
        if flag and len(after) != 1:
            raise InputError(
                f"{place}: follow_up needs exactly one question in {used.get('after', 'after')!r}, which it follows, "
                f"but there {'is none' if not after else f'are {len(after)}'}; name one, or set follow_up to false"
            )
        program = Program(after, bool(flag), samples)
        programs.append(known.setdefault(program, program))
    return programs


def _counts(table: Table) -> list[int | None]:
    name = table.columns.used["samples"]
    if name in table.partitions:
        text = table.partitions[name]
        counts: list[Any] = [int(text) if text and text.isascii() and text.isdigit() else text] * len(table.places)
    else:
        counts = json_cells(table.array("samples"))[0]
    for count, place in zip(counts, table.places, strict=True):
        if count is not None and (not isinstance(count, int) or count < 1):
            raise InputError(f"{place}: samples is {count!r}; give a whole number of at least 1, or nothing")
    return counts


def _after(table: Table) -> list[tuple[str, ...]]:
    name, places = table.columns.used["after"], table.places
    if name in table.partitions:
        return [_ids(table.partitions[name], place) for place in places]
    array = table.array("after")
    if not is_list_type(plain_type(array.type)):
        if pa.types.is_null(plain_type(array.type)):
            return [()] * len(places)
        return [_ids(_sound(cell, place), place) for cell, place in zip(id_cells(array), places, strict=True)]
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    ids, start, afters = id_cells(array.flatten()), 0, []
    for length, place in zip(pc.list_value_length(array).to_pylist(), places, strict=True):
        cells = ids[start : start + (length or 0)]
        start += length or 0
        afters.append(_distinct([_sound(cell, place) for cell in cells], place))
    return afters


def _sound(cell: Any, place: str) -> str | None:
    if cell.bad:
        raise InputError(f"{place}: an id in `after` is not valid UTF-8 ({cell.bad}); write it again")
    value: str | None = cell.value
    return value


def _ids(text: str | None, place: str) -> tuple[str, ...]:
    """One id, or a JSON list of ids as text."""
    if is_blank(text):
        return ()
    assert text is not None
    if not text.lstrip().startswith("["):
        return (text,)
    try:
        values = json.loads(text)
    except ValueError:
        raise InputError(
            f"{place}: `after` begins with [ but is no JSON list ({text[:60]!r}); write it as in "
            '["leave_days", "notice"], or use a list column'
        ) from None
    if any(isinstance(value, bool) or not isinstance(value, str | int) for value in values):
        raise InputError(f'{place}: `after` must list question ids, as in ["leave_days"], not {text[:60]!r}')
    return _distinct([str(value) for value in values], place)


def _distinct(ids: Sequence[str | None], place: str) -> tuple[str, ...]:
    if any(is_blank(one) for one in ids):
        raise InputError(f"{place}: `after` lists an id that is empty; name the questions it comes after")
    return tuple(dict.fromkeys(one for one in ids if one is not None))
