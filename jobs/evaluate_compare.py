"""Two evaluations side by side: what got better, what got worse, and whether it could be luck."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from jobs.evaluate import Evaluation
from jobs.evaluate_paired import sign_test
from jobs.evaluate_scores import Kind, Score, same_json


def comparison(this: Evaluation, against: Evaluation) -> dict[str, Any]:
    """The rows that both tried, ready for JSON; `better` and `worse` are of `this`, p-values two-sided."""
    others = {row.key: row for row in against.rows}
    pairs = [(row, others[row.key]) for row in this.rows if row.key in others]
    by_property: dict[tuple[str | None, str | None], list[tuple[Score, Score]]] = defaultdict(list)
    changed = []
    for row, other in pairs:
        theirs = {score.property.name: score for score in other.scores}
        for score in row.scores:
            before = theirs.get(score.property.name)
            if before is None:
                continue
            by_property[score.property.schema_name, score.property.name].append((score, before))
            if score.answered != before.answered or not same_json(score.predicted, before.predicted):
                changed.append(
                    {
                        "doc_id": row.key[0],
                        "question_id": row.key[1],
                        "property": score.property.name,
                        "gold": score.golds[0] if len(score.golds) == 1 else list(score.golds),
                        "before": before.predicted if before.answered else None,
                        "before_status": other.status,
                        "before_correct": before.correct,
                        "now": score.predicted if score.answered else None,
                        "now_status": row.status,
                        "now_correct": score.correct,
                    }
                )
    return {
        "against": against.answers.source,
        "rows": len(pairs),
        "rows_only_here": len(this.rows) - len(pairs),
        "rows_only_there": len(against.rows) - len(pairs),
        "rows_correct": _paired([(row.correct, other.correct) for row, other in pairs]),
        "properties": [
            {"schema": schema, "property": name, **_property(scores)} for (schema, name), scores in by_property.items()
        ],
        "changed": changed,
    }


def _property(scores: Sequence[tuple[Score, Score]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"kind": str(scores[0][0].property.kind)}
    figures |= _paired([(now.correct, before.correct) for now, before in scores])
    if scores[0][0].property.kind is Kind.TEXT:
        f1 = [(now.f1 or 0.0, before.f1 or 0.0) for now, before in scores]
        figures["f1"] = _paired_means(f1)
    return figures


def _paired(correct: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """Rows right now and before, with McNemar's exact test."""
    better = sum(now and not before for now, before in correct)
    worse = sum(before and not now for now, before in correct)
    return {
        "rows": len(correct),
        "correct_now": sum(now for now, _ in correct),
        "correct_before": sum(before for _, before in correct),
        "better": better,
        "worse": worse,
        "p_value": sign_test(better, worse),
    }


def _paired_means(values: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Means now and before, with the sign test."""
    better = sum(now > before for now, before in values)
    worse = sum(now < before for now, before in values)
    return {
        "now": sum(now for now, _ in values) / len(values),
        "before": sum(before for _, before in values) / len(values),
        "better": better,
        "worse": worse,
        "p_value": sign_test(better, worse),
    }
