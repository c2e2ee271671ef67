"""Whole numbers that their columns can't hold: few schemas put a bound on an integer, so types follow the answers.

A column is 64 bits wide, or 128 if a bound of the schema is beyond that. When an answer has a number that does not fit,
the column becomes HUGEINT, and text if 128 bits are not enough; a list or an object with such a number becomes JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from jobs.schema_types import AnswerColumn

LONG_NUMBER = "[0-9]{19}"
"""What a text holds that has a whole number beyond 64 bits, as a regular expression of Python and of DuckDB."""

_BITS = {"BIGINT": 63, "HUGEINT": 127}
_ORDER = ("BIGINT", "HUGEINT", "VARCHAR")


def has_long_number(answer: str) -> bool:
    """Whether an answer's text may hold a whole number beyond 64 bits; also if a string in it looks like one."""
    return re.search(LONG_NUMBER, answer) is not None


def widened(columns: Sequence[AnswerColumn], answers: Iterable[str]) -> list[AnswerColumn]:
    """The columns, each wide enough for all of `answers`, which are valid JSON texts."""
    found = list(columns)
    for text in answers:
        answer = json.loads(text)
        for place, column in enumerate(found):
            name = column.property_name
            value = answer if name is None else answer.get(name) if isinstance(answer, dict) else None
            found[place] = _wide_enough(column, value)
    return found


def is_narrower(duckdb_type: str, column: AnswerColumn) -> bool:
    """Whether a view's column of this type holds less than `column`, another type of the same property, does."""
    if duckdb_type in _ORDER and column.duckdb_type in _ORDER:
        return _ORDER.index(duckdb_type) < _ORDER.index(column.duckdb_type)
    return column.duckdb_type == "JSON" != duckdb_type


def _wide_enough(column: AnswerColumn, value: Any) -> AnswerColumn:
    if column.structure is not None:
        is_held = _is_held(column.structure, value)
        return column if is_held else replace(column, duckdb_type="JSON", structure=None)
    kind = column.duckdb_type
    while kind in _BITS and not _is_held(kind, value):
        kind = _ORDER[_ORDER.index(kind) + 1]
    return column if kind == column.duckdb_type else replace(column, duckdb_type=kind)


def _is_held(structure: Any, value: Any) -> bool:
    """Whether the whole numbers of a value fit a structure of json_transform; other kinds don't count."""
    if isinstance(structure, list) and isinstance(value, list):
        return all(_is_held(structure[0], item) for item in value)
    if isinstance(structure, dict) and isinstance(value, dict):
        return all(_is_held(part, value.get(name)) for name, part in structure.items())
    if isinstance(structure, str) and structure in _BITS and isinstance(value, int):
        limit = 2 ** _BITS[structure]
        return -limit <= value < limit
    return True
