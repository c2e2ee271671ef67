"""Calibration of confidence, against scikit-learn and a count by hand."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from jobs.evaluate import evaluate, own_gold, read_answers
from jobs.evaluate_calibration import calibration
from jobs.evaluate_summary import summary
from jobs.store import AnswerStore
from tests.jobs.evaluation_helpers import VERDICT, write_run
from tests.jobs.store_version_2 import make_store_of_version_2


def check_against_sklearn(figures, confidences, correct):
    """scikit-learn's bins are closed above, ours below: not for confidences that are a whole tenth."""
    confidences, correct = np.array(confidences), np.array(correct, dtype=int)
    accuracy, mean = calibration_curve(correct, confidences, n_bins=10)
    filled = [one for one in figures["bins"] if one["rows"]]
    assert [one["accuracy"] for one in filled] == pytest.approx(accuracy.tolist())
    assert [one["mean_confidence"] for one in filled] == pytest.approx(mean.tolist())
    assert figures["brier_score"] == pytest.approx(
        brier_score_loss(correct, confidences)
        if len(set(correct)) > 1
        else float(np.mean((confidences - correct) ** 2))
    )
    counts, _ = np.histogram(confidences, np.linspace(0, 1, 11))
    assert [one["rows"] for one in figures["bins"]] == counts.tolist()
    weights = counts[counts > 0] / len(confidences)
    assert figures["expected_calibration_error"] == pytest.approx(float(np.abs(accuracy - mean) @ weights))
    assert figures["rows"] == len(confidences)
    assert figures["accuracy"] == pytest.approx(float(correct.mean()))
    assert figures["mean_confidence"] == pytest.approx(float(confidences.mean()))


inside_a_bin = st.floats(0, 1).filter(lambda value: 1e-6 < value * 10 % 1 < 1 - 1e-6)


@given(st.lists(st.tuples(inside_a_bin, st.booleans()), min_size=1, max_size=60))
@settings(deadline=None)
def test_it_is_sklearns(rows):
    confidences, correct = zip(*rows, strict=True)
    check_against_sklearn(calibration(confidences, correct), confidences, correct)


def test_bins_begin_at_their_lower_edge():
    figures = calibration([0.0, 0.1, 0.3, 0.6, 0.7, 0.9, 1.0], [True] * 7)
    assert [one["rows"] for one in figures["bins"]] == [1, 1, 0, 1, 0, 0, 1, 1, 0, 2]
    assert calibration([1.0, 0.0], [True, False])["expected_calibration_error"] == 0
    assert calibration([1.0, 0.0], [False, True])["brier_score"] == 1
    assert calibration([], []) is None


def rows_of(count, seed):
    """Answers that are right as often as the square of their confidence; some failed, some of unknown confidence."""
    chance = random.Random(seed)
    rows, confidences, expected = [], [], []
    for number in range(count):
        sure = round(chance.uniform(0.001, 0.999), 6)
        right = chance.random() < sure**2
        failed = chance.random() < 0.1
        confidence = chance.choice([{"verdict": sure, "quote": 0.5}, {"verdict": sure, "quote": None}, None, {}])
        value = None if failed else {"verdict": "true" if right else "false", "quote": ""}
        rows.append((f"d{number % 7}", f"q{number}", value, {"verdict": "true"}))
        confidences.append(None if failed else confidence)
        if confidence and not failed:
            expected.append((sure, right))
    return rows, confidences, expected


def test_answers_of_a_database(tmp_path):
    rows, confidences, expected = rows_of(600, seed=1)
    store = write_run(tmp_path / "a.duckdb", rows, VERDICT, confidences=confidences)
    found = read_answers(store)
    result = summary(evaluate(found, own_gold(found)))
    json.dumps(result, allow_nan=False)
    (figures,) = result["properties"]
    assert figures["rows"] == 600
    check_against_sklearn(figures["calibration"], *zip(*expected, strict=True))
    assert figures["calibration"]["mean_confidence"] > figures["calibration"]["accuracy"] + 0.1


def test_without_confidence_there_is_no_calibration(tmp_path):
    rows, _, _ = rows_of(20, seed=2)
    found = read_answers(write_run(tmp_path / "a.duckdb", rows, VERDICT))
    assert summary(evaluate(found, own_gold(found)))["properties"][0]["calibration"] is None
    make_store_of_version_2(tmp_path / "old.duckdb")
    old = read_answers(AnswerStore(tmp_path / "old.duckdb", read_only=True))
    assert [answer.confidence for answer in old.answers] == [None, None]


def test_a_whole_answer_has_one(tmp_path):
    rows = [("d", f"q{number}", number % 2, 1) for number in range(4)]
    store = write_run(tmp_path / "a.duckdb", rows, {"enum": [0, 1]}, confidences=[0.9, 0.8, None, 0.6])
    found = read_answers(store)
    (figures,) = summary(evaluate(found, own_gold(found)))["properties"]
    assert figures["calibration"]["rows"] == 3
    assert figures["calibration"]["brier_score"] == pytest.approx((0.81 + 0.04 + 0.16) / 3)
