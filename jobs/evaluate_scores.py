"""One value of an answer against its gold, by what kind of value the schema says it is."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jobs.evaluate_text import exact_match, token_f1
from jobs.schema_types import Schema, answer_columns, property_values

_NUMBER_TYPES = ("BIGINT", "HUGEINT", "DOUBLE")
_ROUNDING = 1e-9
"""Relative difference of numbers that only their writing makes."""


class Kind(StrEnum):
    """How values of a property are compared."""

    LABEL = "label"
    NUMBER = "number"
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class PropertyType:
    """A top-level property of a schema's answers (`name` None: the whole answer); `values` are a label's."""

    schema_name: str | None
    name: str | None
    kind: Kind
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from its gold: `absolute`, or `relative` to the gold, whichever allows more."""

    absolute: float = 0.0
    relative: float = _ROUNDING

    @classmethod
    def from_text(cls, text: str) -> Tolerance:
        """Read `0.5` or `1%`. Raises ValueError."""
        number = float(text.strip().removesuffix("%"))
        if not math.isfinite(number) or number < 0:
            raise ValueError(text)
        return cls(relative=max(number / 100, _ROUNDING)) if text.strip().endswith("%") else cls(absolute=number)

    def admits(self, number: float, gold: float) -> bool:
        """Whether a number is near enough."""
        return abs(number - gold) <= max(self.absolute, self.relative * abs(gold))


@dataclass(frozen=True, slots=True)
class Score:
    """A value against its gold. `golds` are the right values, of which one is enough; the first that matches is first.

    `answered` is False where the row has no valid answer: it is then wrong. `f1` is of a text, `error` the distance of
    a number from the nearest gold. `confidence` is how sure the model was, if that is known.
    """

    property: PropertyType
    golds: tuple[Any, ...]
    predicted: Any
    answered: bool
    correct: bool
    f1: float | None = None
    error: float | None = None
    confidence: float | None = None


class GoldMismatch(ValueError):
    """The property can't have such a value; the message says why."""


def property_types(schema_name: str | None, schema: Schema) -> list[PropertyType]:
    """The properties of a schema's answers, in its order."""
    listed = property_values(schema)
    types = []
    for column in answer_columns(schema):
        values = listed[column.property_name]
        if column.duckdb_type == "BOOLEAN" and values is None:
            values = [True, False]
        if values is not None and not any(isinstance(value, list | dict) for value in values):
            kind = Kind.LABEL
        elif column.duckdb_type in _NUMBER_TYPES:
            kind = Kind.NUMBER
        else:
            kind = Kind.TEXT if column.duckdb_type == "VARCHAR" else Kind.JSON
        distinct = {label_key(value): value for value in values or []} if kind is Kind.LABEL else {}
        types.append(PropertyType(schema_name, column.property_name, kind, tuple(distinct.values())))
    return types


def inferred_types(schema_name: str | None, answers: Sequence[Any]) -> list[PropertyType]:
    """The same where the schema is not known, from what the answers hold."""
    if not answers or not all(isinstance(answer, dict) for answer in answers):
        return [PropertyType(schema_name, None, *_inferred_kind(answers))]
    names = dict.fromkeys(name for answer in answers for name in answer)
    return [
        PropertyType(schema_name, name, *_inferred_kind([answer[name] for answer in answers if name in answer]))
        for name in names
    ]


def score(property_type: PropertyType, gold: Any, predicted: Any, answered: bool, tolerance: Tolerance) -> Score:
    """Hold a value against its gold: one value or, but for kind json, a list of right ones.

    Raises GoldMismatch for a gold that the property can't have.
    """
    if isinstance(gold, list) and property_type.kind is not Kind.JSON:
        golds = tuple(fitting(property_type, one) for one in gold) or ("" if property_type.kind is Kind.TEXT else None,)
    else:
        golds = (fitting(property_type, gold),)
    matching = [one for one in golds if answered and _matches(property_type.kind, predicted, one, tolerance)]
    f1 = error = None
    if property_type.kind is Kind.TEXT:
        f1 = max(_text_f1(predicted, one) for one in golds) if answered else 0.0
    elif property_type.kind is Kind.NUMBER and answered and _is_number(predicted):
        error = min((abs(predicted - one) for one in golds if one is not None), default=None)
    golds = tuple(sorted(golds, key=lambda one: not any(one is match for match in matching[:1])))
    return Score(property_type, golds, predicted, answered, bool(matching), f1, error)


def fitting(property_type: PropertyType, gold: Any) -> Any:
    """A gold value as one of the property's own, which a text may spell. Raises GoldMismatch if it can't be."""
    kind = property_type.kind
    if kind is Kind.JSON or (gold is None and kind is not Kind.LABEL):
        return gold
    if kind is Kind.LABEL:
        spelled = _spelling(gold)
        exact = [value for value in property_type.values if label_key(value) == label_key(gold)]
        found = exact or [value for value in property_type.values if _spelling(value) == spelled]
        if len(found) == 1 or not property_type.values:
            return found[0] if found else gold
        known = ", ".join(json.dumps(value, ensure_ascii=False) for value in property_type.values[:10])
        raise GoldMismatch(f"{_shown(gold)} is none of the values of {_name(property_type)} ({known})")
    if kind is Kind.NUMBER:
        try:
            number = float(gold) if isinstance(gold, str) else gold
        except ValueError:
            number = None
        if not _is_number(number):
            raise GoldMismatch(f"{_shown(gold)} is no number, which {_name(property_type)} is")
        return number
    if isinstance(gold, list | dict):
        raise GoldMismatch(f"{_shown(gold)} is no text, which {_name(property_type)} is")
    return gold if isinstance(gold, str) else json.dumps(gold)


def label_key(value: Any) -> str:
    """A label as a text that tells `1`, `true` and their spellings apart."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def same_json(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 and 1.0 are the same, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)


def _matches(kind: Kind, predicted: Any, gold: Any, tolerance: Tolerance) -> bool:
    if kind is Kind.TEXT and isinstance(predicted, str) and isinstance(gold, str):
        return exact_match(predicted, gold)
    if kind is Kind.NUMBER and _is_number(predicted) and gold is not None:
        return tolerance.admits(predicted, gold)
    return same_json(predicted, gold)


def _text_f1(predicted: Any, gold: Any) -> float:
    if predicted is None or gold is None:
        return float(predicted is gold)
    return token_f1(predicted if isinstance(predicted, str) else json.dumps(predicted), gold)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _inferred_kind(values: Sequence[Any]) -> tuple[Kind, tuple[Any, ...]]:
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, bool) for value in present):
        return Kind.LABEL, (True, False)
    if present and all(_is_number(value) for value in present):
        return Kind.NUMBER, ()
    return Kind.TEXT if all(isinstance(value, str) for value in present) else Kind.JSON, ()


def _spelling(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value)).strip().casefold()


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


def _name(property_type: PropertyType) -> str:
    return property_type.name if property_type.name is not None else "the answer"
