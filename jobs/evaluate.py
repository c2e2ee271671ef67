"""Answers against gold: which values are right, row by row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jobs.errors import InputError, OutputError
from jobs.evaluate_gold import Gold, GoldDefect, Key
from jobs.evaluate_scores import (
    GoldMismatch,
    Kind,
    PropertyType,
    Score,
    Tolerance,
    fitting,
    inferred_types,
    property_types,
    score,
)
from jobs.store import AnswerStore
from jobs.store_schema import CONFIDENCE_VERSION

_KNOWN_RUNS = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """A row of the answers as evaluation needs it: `value` is the parsed answer, `gold` what the input row had.

    `confidence` is the parsed column of the answers: by property, or of a whole answer one number.
    """

    key: Key
    schema_name: str | None
    status: str
    value: Any
    gold: Any
    confidence: Any = None

    @property
    def is_ok(self) -> bool:
        """Whether it is a valid answer."""
        return self.status == "ok"


@dataclass
class AnswerSet:
    """The answers of a run, or the latest of a database, and the schemas they were written by."""

    source: str
    answers: list[Answer]
    types: dict[str | None, list[PropertyType]]


@dataclass(frozen=True, slots=True)
class RowScore:
    """An answered or failed row with gold: a score for each property that gold has a value of."""

    key: Key
    status: str
    scores: tuple[Score, ...]

    @property
    def correct(self) -> bool:
        """Whether every value is right."""
        return self.status == "ok" and all(score.correct for score in self.scores)


@dataclass
class Evaluation:
    """Every row that was tried and has gold, and what could not be held against each other."""

    answers: AnswerSet
    gold: Gold
    rows: list[RowScore] = field(default_factory=list)
    defects: list[GoldDefect] = field(default_factory=list)
    rows_without_gold: int = 0
    gold_without_row: int = 0
    ignored_names: Counter[str] = field(default_factory=Counter)
    """Names that objects of gold have and the schema has not, with how often."""


def read_answers(store: AnswerStore, run_id: str | None = None) -> AnswerSet:
    """The latest answers, or those of one run. Raises OutputError if there is no such run."""
    if run_id is not None and store.run(run_id) is None:
        known = ", ".join(run.run_id for run in store.runs()[:_KNOWN_RUNS])
        raise OutputError(f"{store.path} has no run {run_id}; it has {known or 'none yet'}")
    table, values = ("latest_answers", []) if run_id is None else ("answers WHERE run_id = ?", [run_id])
    confidence = "confidence" if store.version >= CONFIDENCE_VERSION else "NULL"
    with store.reading() as connection:
        rows = connection.execute(
            f"SELECT doc_id, question_id, schema_name, status, answer, json_extract(extra, '/gold'), {confidence} "
            f"FROM {table}",
            values,
        ).fetchall()
        schemas = dict(connection.execute("SELECT schema_name, schema FROM docqa_schemas").fetchall())
    answers = [
        Answer((doc_id, question_id), schema_name, status, _parsed(answer), _parsed(gold), _parsed(confidence))
        for doc_id, question_id, schema_name, status, answer, gold, confidence in rows
    ]
    answers.sort(key=lambda answer: answer.key)
    types: dict[str | None, list[PropertyType]] = {}
    for name in dict.fromkeys(answer.schema_name for answer in answers):
        if name in schemas:
            types[name] = property_types(name, json.loads(schemas[name]))
        elif found := [answer.value for answer in answers if answer.schema_name == name and answer.is_ok]:
            types[name] = inferred_types(name, found)
    return AnswerSet(f"run {run_id} of {store.path}" if run_id else str(store.path), answers, types)


def own_gold(answers: AnswerSet) -> Gold:
    """The gold that the answers' input rows had. Raises InputError if none had any."""
    gold = Gold("the gold of the input")
    for answer in answers.answers:
        gold.add(answer.key, answer.gold)
    if not gold.values:
        raise InputError(f"{answers.source}: no row has gold; name a Parquet file with --gold")
    return gold


def evaluate(
    answers: AnswerSet, gold: Gold, *, property_name: str | None = None, tolerance: Tolerance | None = None
) -> Evaluation:
    """Hold answers against gold.

    `property_name`: what a gold that is no object is the value of; chosen by its values if not given. Raises InputError
    if there is nothing to hold it against.
    """
    evaluation = Evaluation(answers, gold, defects=list(gold.defects))
    judge = _Judge(evaluation, property_name, tolerance or Tolerance())
    for answer in answers.answers:
        if answer.key in gold.values:
            judge.add(answer, gold.values[answer.key])
        else:
            evaluation.rows_without_gold += 1
    evaluation.gold_without_row = len(gold.values.keys() - {answer.key for answer in answers.answers})
    if not evaluation.rows:
        example = " / ".join(next(iter(gold.values)))
        raise InputError(
            f"{gold.source} has gold for {len(gold.values):,} rows, and {answers.source} has none of them; are the ids "
            f"the same? Gold has {example}"
        )
    return evaluation


class _Judge:
    def __init__(self, evaluation: Evaluation, property_name: str | None, tolerance: Tolerance) -> None:
        self.evaluation = evaluation
        self.tolerance = tolerance
        self.types = evaluation.answers.types
        self.property_name = property_name
        known = [one.name for types in self.types.values() for one in types]
        if property_name is not None and property_name not in known:
            names = ", ".join(name for name in dict.fromkeys(known) if name is not None)
            raise InputError(f"--property {property_name}: the answers have no such property; they have {names}")
        self._targets: dict[str | None, PropertyType] = {}

    def add(self, answer: Answer, gold: Any) -> None:
        """Score a row. What is wrong with its gold is a defect, and that value is not scored."""
        scores = []
        wanted = self._wanted(answer, gold)
        for property_type, value in wanted:
            predicted = _member(answer.value, property_type.name)
            confidence = _member(answer.confidence, property_type.name) if answer.is_ok else None
            try:
                scored = score(property_type, value, predicted, answer.is_ok, self.tolerance)
                scores.append(replace(scored, confidence=confidence))
            except GoldMismatch as mismatch:
                self.evaluation.defects.append(GoldDefect("value", *answer.key, str(mismatch)))
        if scores or not wanted:
            self.evaluation.rows.append(RowScore(answer.key, answer.status, tuple(scores)))

    def _wanted(self, answer: Answer, gold: Any) -> list[tuple[PropertyType, Any]]:
        """What of a row is scored, each with its gold."""
        name = answer.schema_name
        if name not in self.types and not answer.is_ok and len(self.types) == 1:
            name = next(iter(self.types))  # it failed before its schema was known
        types = self.types.get(name, [])
        by_name = {one.name: one for one in types}
        if isinstance(gold, dict) and None not in by_name and self.property_name is None:
            self.evaluation.ignored_names.update(key for key in gold if types and key not in by_name)
            found = [(by_name[key], value) for key, value in gold.items() if key in by_name]
            if types and not found:
                known = ", ".join(str(one.name) for one in types)
                raise InputError(
                    f"{self.evaluation.gold.source}: the gold of {answer.key[0]!r}, {answer.key[1]!r} has "
                    f"{', '.join(gold) or 'no name'}, and answers have {known}; use their names"
                )
            return found
        return [(self._target(name, types), gold)] if types else []

    def _target(self, schema_name: str | None, types: Sequence[PropertyType]) -> PropertyType:
        """The property that a gold which is no object is a value of."""
        if schema_name not in self._targets:
            self._targets[schema_name] = self._choose(schema_name, types)
        return self._targets[schema_name]

    def _choose(self, schema_name: str | None, types: Sequence[PropertyType]) -> PropertyType:
        named = [one for one in types if one.name == self.property_name]
        if len(types) == 1 or (named and self.property_name is not None):
            return named[0] if named else types[0]
        gold = self.evaluation.gold.values
        values = [
            gold[a.key] for a in self.evaluation.answers.answers if a.schema_name == schema_name and a.key in gold
        ]
        flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
        texts = all(isinstance(value, str) for value in flat)
        order = (Kind.LABEL, Kind.TEXT, Kind.NUMBER) if texts else (Kind.LABEL, Kind.NUMBER, Kind.TEXT)
        for kind in (*order, Kind.JSON):
            able = [one for one in types if one.kind is kind and _fits_most(one, flat)]
            if len(able) == 1:
                return able[0]
            if able:
                break
        names = ", ".join(str(one.name) for one in types)
        raise InputError(
            f"{self.evaluation.gold.source}: gold is one value, and the answers of {schema_name} have several "
            f"({names}); say with --property which it is"
        )


def _fits_most(property_type: PropertyType, values: Sequence[Any]) -> bool:
    """Whether more than half of the values can be the property's; the others are then taken for slips."""
    fit = 0
    for value in values:
        try:
            fitting(property_type, value)
        except GoldMismatch:
            continue
        fit += 1
    return 2 * fit > len(values)


def _member(value: Any, name: str | None) -> Any:
    """A top-level property's part; of None the whole."""
    if name is None:
        return value
    return value.get(name) if isinstance(value, dict) else None


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)
