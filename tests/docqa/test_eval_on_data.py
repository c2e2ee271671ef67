"""`docqa eval` on ContractNLI and XQuAD: two runs side by side, against an independent computation."""

import json
import random

import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, confusion_matrix

from tests.jobs.evaluation_helpers import ANSWER, write_run
from tests.jobs.test_evaluate import squad_scores

LABELS = ["true", "false", "not mentioned"]
FAILED = "(no answer)"


def evaluated(docqa, path, gold):
    """What the command says of the second run beside the first, as JSON and as text."""
    options = ("eval", path, "--run", "r2", "--against", "r1", "--gold", gold)
    status, out, err = docqa(*options, "--json")
    assert (status, err) == (0, "")
    return json.loads(out), docqa(*options)[1]


def check_pairs(figures, before, now):
    """Rows right before and now, in the same order, and McNemar's exact test as scipy has it."""
    better = sum(not old and new for old, new in zip(before, now, strict=True))
    worse = sum(old and not new for old, new in zip(before, now, strict=True))
    assert min(better, worse) > 10, "or the test shows nothing"
    assert (figures["rows"], figures["correct_before"], figures["correct_now"]) == (len(now), sum(before), sum(now))
    assert (figures["better"], figures["worse"]) == (better, worse)
    assert figures["p_value"] == pytest.approx(binomtest(better, better + worse).pvalue)


def test_contractnli(docqa, shared_data, tmp_path):
    folder = shared_data / "contractnli_dev"
    table = pq.read_table(folder / "gold.parquet").to_pylist()
    schema = json.loads((folder / "schema.json").read_text())
    chance = random.Random(7)
    gold = [row["gold"] for row in table]
    runs = [
        [chance.choices([right, chance.choice(LABELS), None], (share, 5, 1))[0] for right in gold] for share in (4, 5)
    ]
    for run_id, labels in zip(("r1", "r2"), runs, strict=True):
        rows = [
            (row["doc_id"], row["question_id"], label and {"verdict": label, "quote": ""}, None)
            for row, label in zip(table, labels, strict=True)
        ]
        write_run(tmp_path / "a.duckdb", rows, schema, run_id=run_id)
    found, text = evaluated(docqa, tmp_path / "a.duckdb", folder / "gold.parquet")

    before, now = ([label or FAILED for label in labels] for labels in runs)
    assert found["accuracy"] == pytest.approx(accuracy_score(gold, now))
    assert found["rows"] == 1037
    confusion = found["properties"][0]["confusion"]
    assert confusion["counts"] == confusion_matrix(gold, now, labels=confusion["predicted"])[:-1].tolist()
    compared = found["comparison"]
    right = [[one == wanted for one, wanted in zip(labels, gold, strict=True)] for labels in (before, now)]
    check_pairs(compared["rows_correct"], *right)
    check_pairs(compared["properties"][0], *right)
    expected = {
        (row["doc_id"], row["question_id"]): (old, new)
        for row, old, new in zip(table, *runs, strict=True)
        if old != new
    }
    assert {(one["doc_id"], one["question_id"]): (one["before"], one["now"]) for one in compared["changed"]} == expected
    assert f"{len(expected):,} values changed" in text
    assert f"{compared['rows_correct']['p_value']:.3g}" in text


def test_xquad(docqa, shared_data, tmp_path):
    file = shared_data / "xquad_en" / "nested.parquet"
    chance = random.Random(8)
    asked = [
        (document["doc_id"], question["question_id"], question["gold"])
        for document in pq.read_table(file).to_pylist()
        for question in document["questions"]
    ]
    runs = []
    for run_id in ("r1", "r2"):
        texts = []
        for _, _, golds in asked:
            gold = golds[0]
            texts.append(
                chance.choice([gold, gold[: len(gold) // 2], f"The {gold.upper()}!", f"near {gold}", "", None])
            )
        rows = [
            (doc_id, question_id, None if text is None else {"answer": text}, None)
            for (doc_id, question_id, _), text in zip(asked, texts, strict=True)
        ]
        write_run(tmp_path / "a.duckdb", rows, ANSWER, schema_name="answer", run_id=run_id)
        runs.append(texts)
    found, text = evaluated(docqa, tmp_path / "a.duckdb", file)

    scores = [
        [
            (0.0, 0.0) if one is None else squad_scores(one, golds)
            for one, (_, _, golds) in zip(texts, asked, strict=True)
        ]
        for texts in runs
    ]
    exact = [[bool(one) for one, _ in run] for run in scores]
    f1 = [[one for _, one in run] for run in scores]
    (figures,) = found["properties"]
    assert figures["rows"] == len(asked) == 1190
    assert figures["exact_match"] == pytest.approx(sum(exact[1]) / len(asked))
    assert figures["f1"] == pytest.approx(sum(f1[1]) / len(asked))
    (compared,) = found["comparison"]["properties"]
    check_pairs(compared, *exact)
    better, worse = (sum(sign * (new - old) > 0 for old, new in zip(*f1, strict=True)) for sign in (1, -1))
    assert (compared["f1"]["better"], compared["f1"]["worse"]) == (better, worse)
    assert compared["f1"]["p_value"] == pytest.approx(binomtest(better, better + worse).pvalue)
    assert (compared["f1"]["before"], compared["f1"]["now"]) == tuple(pytest.approx(sum(run) / len(run)) for run in f1)
    changed = sum(old != new for old, new in zip(*runs, strict=True))
    assert len(found["comparison"]["changed"]) == changed
    assert f"{changed:,} values changed" in text
