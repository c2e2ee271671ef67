"""The figures of an evaluation, ready for JSON: by property, by document, by question. Never NaN: unknown is None."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobs.evaluate import Evaluation, RowScore
from jobs.evaluate_calibration import calibration
from jobs.evaluate_scores import Kind, PropertyType, Score, label_key

NO_ANSWER = "(no answer)"
"""The predicted class of rows without a valid answer."""

WHOLE_ANSWER = "(whole answer)"
"""What stands for a property's name where answers are no objects."""


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """All figures of one set of answers."""
    rows = evaluation.rows
    by_property: dict[PropertyType, list[Score]] = defaultdict(list)
    for row in rows:
        for score in row.scores:
            by_property[score.property].append(score)
    return {
        "answers": evaluation.answers.source,
        "gold": evaluation.gold.source,
        "rows": len(rows),
        "rows_answered": sum(row.status == "ok" for row in rows),
        "rows_correct": sum(row.correct for row in rows),
        "accuracy": _mean(row.correct for row in rows),
        "rows_without_gold": evaluation.rows_without_gold,
        "gold_without_row": evaluation.gold_without_row,
        "gold_defects": dict(Counter(defect.kind for defect in evaluation.defects)),
        "gold_defect_examples": [
            {"kind": one.kind, "doc_id": one.doc_id, "question_id": one.question_id, "text": one.text}
            for one in evaluation.defects[:20]
        ],
        "gold_names_ignored": dict(evaluation.ignored_names),
        "properties": [property_summary(kind, scores) for kind, scores in by_property.items()],
        "by_document": _groups(rows, "doc_id", lambda row: row.key[0]),
        "by_question": _groups(rows, "question_id", lambda row: row.key[1]),
    }


def property_summary(property_type: PropertyType, scores: Sequence[Score]) -> dict[str, Any]:
    """The figures of one property. A row without a valid answer counts as wrong, but not in `accuracy_of_answered`."""
    answered = [score for score in scores if score.answered]
    figures: dict[str, Any] = {
        "schema": property_type.schema_name,
        "property": property_type.name,
        "kind": str(property_type.kind),
        "rows": len(scores),
        "answered": len(answered),
        "correct": sum(score.correct for score in scores),
        "accuracy": _mean(score.correct for score in scores),
        "accuracy_of_answered": _mean(score.correct for score in answered),
        "calibration": _calibration(answered),
    }
    if property_type.kind is Kind.TEXT:
        figures["exact_match"] = figures["accuracy"]
        figures["f1"] = _mean(score.f1 or 0.0 for score in scores)
    elif property_type.kind is Kind.NUMBER:
        errors = [score.error for score in scores if score.error is not None]
        figures["mean_absolute_error"] = _mean(errors)
        figures["median_absolute_error"] = statistics.median(errors) if errors else None
    elif property_type.kind is Kind.LABEL:
        figures |= _classes(property_type, scores)
    return figures


def _calibration(scores: Sequence[Score]) -> dict[str, Any] | None:
    known = [(score.confidence, score.correct) for score in scores if score.confidence is not None]
    return calibration([confidence for confidence, _ in known], [correct for _, correct in known])


def _classes(property_type: PropertyType, scores: Sequence[Score]) -> dict[str, Any]:
    """Precision, recall and F1 of each class, and the confusion table: a row a class of gold, a column a prediction."""
    pairs = [(label_key(score.golds[0]), label_key(score.predicted) if score.answered else None) for score in scores]
    present = [key for pair in pairs for key in pair if key is not None]
    keys = list(dict.fromkeys([*map(label_key, property_type.values), *sorted(set(present))]))
    counts = Counter(pairs)
    gold, predicted = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    classes = []
    for key in keys:
        right = counts[key, key]
        classes.append(
            {
                "class": json.loads(key),
                "gold": gold[key],
                "predicted": predicted[key],
                "correct": right,
                "precision": right / predicted[key] if predicted[key] else None,
                "recall": right / gold[key] if gold[key] else None,
                "f1": 2 * right / (gold[key] + predicted[key]) if gold[key] + predicted[key] else None,
            }
        )
    return {
        "classes": classes,
        "macro_f1": _mean(one["f1"] for one in classes if one["f1"] is not None),
        "confusion": {
            "gold": [json.loads(key) for key in keys],
            "predicted": [*(json.loads(key) for key in keys), NO_ANSWER],
            "counts": [[counts[key, other] for other in (*keys, None)] for key in keys],
        },
    }


def _groups(rows: Sequence[RowScore], name: str, group: Callable[[RowScore], str]) -> list[dict[str, Any]]:
    grouped: dict[str, list[RowScore]] = defaultdict(list)
    for row in rows:
        grouped[group(row)].append(row)
    found = [
        {
            name: key,
            "rows": len(members),
            "answered": sum(row.status == "ok" for row in members),
            "correct": sum(row.correct for row in members),
            "accuracy": _mean(row.correct for row in members),
            "f1": _mean(score.f1 for row in members for score in row.scores if score.f1 is not None),
            "accuracy_by_property": _accuracy_by_property(members),
        }
        for key, members in grouped.items()
    ]
    return sorted(found, key=lambda one: (one["accuracy"], sum(one["accuracy_by_property"].values()), one[name]))


def _accuracy_by_property(rows: Sequence[RowScore]) -> dict[str, float]:
    scores: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        for score in row.scores:
            scores[score.property.name or WHOLE_ANSWER].append(score.correct)
    return {name: statistics.fmean(correct) for name, correct in scores.items()}


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else None
