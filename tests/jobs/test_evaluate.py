import json
import random
import re
import string
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    mean_absolute_error,
    precision_recall_fscore_support,
)

from jobs import evaluate_gold, source_files
from jobs.errors import InputError, OutputError
from jobs.evaluate import Answer, AnswerSet, evaluate, own_gold, read_answers
from jobs.evaluate_compare import comparison
from jobs.evaluate_gold import read_gold
from jobs.evaluate_paired import sign_test
from jobs.evaluate_scores import Kind, Tolerance, property_types
from jobs.evaluate_summary import NO_ANSWER, summary
from jobs.evaluate_text import answer_tokens, exact_match, token_f1
from jobs.source_files import TooLarge
from tests.jobs.evaluation_helpers import ANSWER, VERDICT, write_run

LABELS = ["true", "false", "not mentioned"]


def squad_words(text):
    """As the evaluation script of SQuAD writes it, independently of ours."""
    text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def squad_scores(prediction, golds):
    exact = max(float(squad_words(prediction) == squad_words(gold)) for gold in golds)
    scores = []
    for gold in golds:
        found, wanted = squad_words(prediction), squad_words(gold)
        same = sum((Counter(found) & Counter(wanted)).values())
        precision, recall = same / max(len(found), 1), same / max(len(wanted), 1)
        scores.append(2 * precision * recall / (precision + recall) if same else float(found == wanted))
    return exact, max(scores)


def check_against_sklearn(figures, gold, predicted):
    """`predicted` is NO_ANSWER for failed rows."""
    assert figures["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    classes = [one["class"] for one in figures["classes"]]
    precision, recall, f1, support = precision_recall_fscore_support(gold, predicted, labels=classes, zero_division=0)
    for index, one in enumerate(figures["classes"]):
        assert one["gold"] == support[index]
        assert (one["precision"] or 0) == pytest.approx(precision[index])
        assert (one["recall"] or 0) == pytest.approx(recall[index])
        assert (one["f1"] or 0) == pytest.approx(f1[index])
    used = [name for name in classes if name in gold or name in predicted]
    assert figures["macro_f1"] == pytest.approx(
        f1_score(gold, predicted, labels=used, average="macro", zero_division=0)
    )
    confusion = figures["confusion"]
    assert confusion["predicted"] == [*classes, NO_ANSWER]
    table = confusion_matrix(gold, predicted, labels=confusion["predicted"])
    assert confusion["counts"] == table[: len(classes)].tolist()


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from([*LABELS, None])), min_size=1, max_size=40))
def test_labels_as_sklearn_counts_them(rows):
    answers = [
        Answer(
            (f"d{index % 3}", f"q{index}"), "verdict", "ok" if label else "failed", label and {"verdict": label}, gold
        )
        for index, (gold, label) in enumerate(rows)
    ]
    found = AnswerSet("test", answers, {"verdict": property_types("verdict", VERDICT)})
    result = summary(evaluate(found, own_gold(found)))
    json.dumps(result, allow_nan=False)
    check_against_sklearn(result["properties"][0], [gold for gold, _ in rows], [one or NO_ANSWER for _, one in rows])
    assert result["rows"] == len(rows) == sum(one["rows"] for one in result["by_document"])
    assert result["rows_correct"] == sum(one["correct"] for one in result["by_question"])


def test_contractnli(shared_data, tmp_path):
    file = shared_data / "contractnli_dev" / "gold.parquet"
    table = pq.read_table(file).to_pylist()
    schema = json.loads((shared_data / "contractnli_dev" / "schema.json").read_text())
    chance = random.Random(1)
    predicted = [chance.choice([row["gold"], *LABELS, None]) for row in table]
    answers = [
        (row["doc_id"], row["question_id"], label and {"verdict": label, "quote": "true"}, None)
        for row, label in zip(table, predicted, strict=True)
    ]
    found = read_answers(write_run(tmp_path / "a.duckdb", answers, schema))
    result = summary(evaluate(found, read_gold(file)))
    (figures,) = result["properties"]
    assert (figures["property"], figures["kind"], figures["rows"]) == ("verdict", "label", 1037)
    check_against_sklearn(figures, [row["gold"] for row in table], [one or NO_ANSWER for one in predicted])
    for one in result["by_document"]:
        rows = [(row, label) for row, label in zip(table, predicted, strict=True) if row["doc_id"] == one["doc_id"]]
        gold, labels = [row["gold"] for row, _ in rows], [label or NO_ANSWER for _, label in rows]
        assert one["accuracy"] == pytest.approx(accuracy_score(gold, labels))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_xquad(shared_data, tmp_path, language):
    """Answers that are right, cut, longer, dressed up or absent; English as SQuAD's own script scores them."""
    file = shared_data / f"xquad_{language}" / "nested.parquet"
    chance = random.Random(2)
    answers, expected = [], {}
    for document in pq.read_table(file).to_pylist():
        for asked in document["questions"]:
            gold = asked["gold"][0]
            cut = gold[: len(gold) // 2]
            start = chance.randrange(len(document["document"]))
            near = document["document"][start : start + 40]
            value = chance.choice([gold, cut, f"The {gold.upper()}!", f"{near} {gold}", near, "", None])
            key = (document["doc_id"], asked["question_id"])
            expected[key] = squad_scores(value, asked["gold"]) if value is not None else (0.0, 0.0)
            answers.append((*key, None if value is None else {"answer": value}, None))
    found = read_answers(write_run(tmp_path / "a.duckdb", answers, ANSWER, schema_name="answer"))
    evaluation = evaluate(found, read_gold(file))
    (figures,) = summary(evaluation)["properties"]
    assert (figures["property"], figures["kind"], figures["rows"]) == ("answer", "text", len(answers))
    if language == "en":
        for row in evaluation.rows:
            exact, f1 = expected[row.key]
            assert row.scores[0].correct == bool(exact)
            assert row.scores[0].f1 == pytest.approx(f1)
        assert figures["exact_match"] == pytest.approx(sum(one for one, _ in expected.values()) / len(expected))
        assert figures["f1"] == pytest.approx(sum(one for _, one in expected.values()) / len(expected))
    else:  # words of the English script are whole sentences here: what is half right must count as half right
        assert figures["f1"] > sum(one for _, one in expected.values()) / len(expected) + 0.05


@settings(deadline=None)
@given(
    st.text(st.sampled_from("aAbthen .,-'\n$é—"), max_size=30), st.text(st.sampled_from("aAbthen .,-'\n"), max_size=30)
)
def test_texts_as_squad_scores_them(prediction, gold):
    exact, f1 = squad_scores(prediction, [gold])
    assert exact_match(prediction, gold) == bool(exact)
    assert token_f1(prediction, gold) == pytest.approx(f1)
    assert token_f1(prediction, gold) == token_f1(gold, prediction)


def test_scripts_without_spaces():
    assert answer_tokens("黑豹队的2015年NFL赛季。") == ["黑", "豹", "队", "的", "2015", "年", "nfl", "赛", "季"]
    assert exact_match("“卢克·坎克利”", "卢克坎克利")
    assert token_f1("卢克", "卢克坎克利") == pytest.approx(2 * 2 / 7)
    assert token_f1("308 分", "308") == pytest.approx(2 / 3)
    assert answer_tokens("카운 쇼트") == ["카운", "쇼트"]
    assert len(answer_tokens("กรุงเทพ")) == 7
    assert (token_f1("", ""), token_f1("a", ""), token_f1("word", "the")) == (1.0, 1.0, 0.0)


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(0, 300))
def test_sign_test_as_scipy_computes_it(better, worse):
    expected = binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert sign_test(better, worse) == pytest.approx(expected, rel=1e-8)
    assert sign_test(better, worse) == sign_test(worse, better)


def test_sign_test_of_a_large_run():
    assert sign_test(20_000, 20_600) == pytest.approx(binomtest(20_000, 40_600).pvalue, rel=1e-6)


NUMBERS = {
    "type": "object",
    "properties": {
        "amount": {"type": "number"},
        "pages": {"type": ["integer", "null"]},
        "signed": {"type": "boolean"},
        "level": {"enum": [1, 2, "1", None]},
        "parts": {"type": "array", "items": {"type": "string"}},
    },
}


def test_kinds_of_properties():
    assert [one.kind for one in property_types("s", NUMBERS)] == [
        Kind.NUMBER, Kind.NUMBER, Kind.LABEL, Kind.LABEL, Kind.JSON,
    ]  # fmt: skip
    assert property_types("s", {"enum": ["yes", "no"]})[0].values == ("yes", "no")
    assert property_types("s", {"anyOf": [{"const": "x"}, {"type": "null"}]})[0].values == ("x", None)
    assert property_types("s", {"anyOf": [{"const": "x"}, {"type": "string"}]})[0].kind is Kind.TEXT


def test_numbers_booleans_and_lists(tmp_path):
    rows = [
        ("d", "q1", {"amount": 10.0, "pages": 3, "signed": True, "level": 1, "parts": ["a"]},
         {"amount": "10.4", "pages": 3.0, "signed": "True", "level": 1.0, "parts": ["a"]}),
        ("d", "q2", {"amount": 9, "pages": None, "signed": False, "level": "1", "parts": ["b", "a"]},
         {"amount": 10, "pages": None, "signed": True, "level": 2, "parts": ["a", "b"]}),
        ("d", "q3", None, {"amount": 1}),
        ("d", "q4", {"amount": 1, "pages": 5}, {"amount": "many", "pages": 4, "comment": "unsure"}),
    ]  # fmt: skip
    found = read_answers(write_run(tmp_path / "a.duckdb", rows, NUMBERS, schema_name="numbers"))
    evaluation = evaluate(found, own_gold(found), tolerance=Tolerance.from_text("0.5"))
    result = summary(evaluation)
    figures = {one["property"]: one for one in result["properties"]}
    assert {name: (one["rows"], one["correct"]) for name, one in figures.items()} == {
        "amount": (3, 1), "pages": (3, 2), "signed": (2, 1), "level": (2, 1), "parts": (2, 1),
    }  # fmt: skip
    assert figures["amount"]["mean_absolute_error"] == pytest.approx(mean_absolute_error([10.4, 10], [10, 9]))
    assert figures["amount"]["accuracy_of_answered"] == 0.5
    assert figures["signed"]["confusion"]["counts"] == [[1, 1, 0], [0, 0, 0]]
    assert result["gold_defects"] == {"value": 1}
    assert result["gold_names_ignored"] == {"comment": 1}
    assert (result["rows"], result["rows_answered"], result["rows_correct"]) == (4, 3, 1)
    relative = summary(evaluate(found, own_gold(found), tolerance=Tolerance.from_text("10%")))
    assert relative["properties"][0]["correct"] == 2


def test_offsets_that_disagree_are_defects_of_the_data(tmp_path):
    """COVID-QA's kind of fault: one offset right, one off by two, one far off; texts decide about answers."""
    document = "The virus was found in Wuhan in 2019."
    golds = [
        {"text": ["Wuhan"], "answer_start": [23]},
        {"text": "2019", "answer_start": 30},
        [{"text": "virus", "answer_start": 900}],
    ]
    file = tmp_path / "gold.parquet"
    pq.write_table(
        pa.table({"doc_id": ["d"] * 3, "document": [document] * 3, "question_id": ["0", "1", "2"],
                  "question": ["?a", "?b", "?c"], "gold": [json.dumps(gold) for gold in golds]}), file
    )  # fmt: skip
    answers = [("d", str(index), {"answer": text}, None) for index, text in enumerate(["Wuhan", "2019", "the virus"])]
    found = read_answers(write_run(tmp_path / "a.duckdb", answers, ANSWER))
    result = summary(evaluate(found, read_gold(file)))
    assert (result["rows"], result["rows_correct"]) == (3, 3)
    assert result["gold_defects"] == {"offset": 2}
    assert "'in 2'" not in result["gold_defect_examples"][0]["text"]
    assert result["gold_defect_examples"][1]["question_id"] == "2"


def test_runs_and_databases_side_by_side(tmp_path):
    def rows(labels):
        return [
            ("d", f"q{index}", label and {"verdict": label, "quote": "x"}, "true") for index, label in enumerate(labels)
        ]

    path = tmp_path / "a.duckdb"
    store = write_run(path, rows(["false", "false", "true", None, "false"]), VERDICT)
    write_run(path, rows(["true", "true", "false", "true", "not mentioned"]), VERDICT, run_id="r2")
    other = write_run(tmp_path / "b.duckdb", rows(["true", "false"]), VERDICT)
    before, now = read_answers(store, "r1"), read_answers(store, "r2")
    gold = own_gold(now)
    compared = comparison(evaluate(now, gold), evaluate(before, gold))
    assert compared["rows_correct"] == {
        "rows": 5, "correct_now": 3, "correct_before": 1, "better": 3, "worse": 1, "p_value": pytest.approx(0.625),
    }  # fmt: skip
    assert [one["question_id"] for one in compared["changed"]] == ["q0", "q1", "q2", "q3", "q4"]
    failed = compared["changed"][3]
    assert (failed["before"], failed["before_status"], failed["now"]) == (None, "truncated", "true")
    compared = comparison(evaluate(now, gold), evaluate(read_answers(other), gold))
    assert (compared["rows"], compared["rows_only_here"]) == (2, 3)
    assert compared["properties"][0]["better"] == 1
    # The latest answers, `ok` before others, are those of the second run here.
    assert summary(evaluate(read_answers(store), gold))["rows_correct"] == 3
    with pytest.raises(OutputError, match="has no run r9; it has r2, r1"):
        read_answers(store, "r9")


def test_what_cannot_be_held_against_each_other(tmp_path):
    two = {"properties": {"one": {"type": "string"}, "other": {"type": "string"}}, "type": "object"}
    found = read_answers(write_run(tmp_path / "a.duckdb", [("d", "q", {"one": "x", "other": "y"}, "y")], two))
    with pytest.raises(InputError, match=r"\(one, other\); say with --property"):
        evaluate(found, own_gold(found))
    assert summary(evaluate(found, own_gold(found), property_name="other"))["rows_correct"] == 1
    with pytest.raises(InputError, match="no such property; they have one, other"):
        evaluate(found, own_gold(found), property_name="third")
    file = tmp_path / "gold.parquet"
    pq.write_table(pa.table({"doc_id": ["e"], "question_id": ["q"], "label": ["y"]}), file)
    with pytest.raises(InputError, match=r"has no column 'gold' \(it has doc_id, question_id, label\).*--column"):
        read_gold(file)
    with pytest.raises(InputError, match=r"none of them; are the ids the same\? Gold has e / q"):
        evaluate(found, read_gold(file, {"gold": "label"}))
    pq.write_table(pa.table({"doc_id": ["d", "d"], "question_id": ["q", "q"], "gold": ["y", "z"]}), file)
    with pytest.raises(InputError, match="row 2: 'd', 'q' has two different golds"):
        read_gold(file)
    pq.write_table(pa.table({"doc_id": ["d"], "question_id": ["q"], "gold": [{"three": "y"}]}), file)
    with pytest.raises(InputError, match="has three, and answers have one, other; use their names"):
        evaluate(found, read_gold(file))
    file.write_bytes(b"no parquet")
    with pytest.raises(InputError, match="can't be read as Parquet"):
        read_gold(file)
    empty = read_answers(write_run(tmp_path / "b.duckdb", [("d", "q", {"one": "x"}, None)], two))
    with pytest.raises(InputError, match="no row has gold; name a Parquet file with --gold"):
        own_gold(empty)


def test_gold_too_large_for_one_batch_is_read_in_smaller_ones(tmp_path, monkeypatch):
    file = tmp_path / "gold.parquet"
    ids = [f"d{number}" for number in range(40)]
    pq.write_table(pa.table({"doc_id": ids, "question_id": ["q"] * 40, "gold": ["y"] * 40}), file)
    real, shrinks = evaluate_gold.read_batches, []

    def fails_midway(opened, shrink):
        shrinks.append(shrink)
        yield from real(opened, 65_536 // 10)  # 10 rows at a time
        if shrink < 256:
            raise TooLarge

    monkeypatch.setattr(evaluate_gold, "read_batches", fails_midway)
    assert read_gold(file).values == {(doc_id, "q"): "y" for doc_id in ids}
    assert shrinks == [1, 16, 256]


def test_gold_beside_documents_need_not_have_their_questions(tmp_path):
    file = tmp_path / "gold.parquet"
    pq.write_table(pa.table({"doc_id": ["d"], "document": ["Text."], "question_id": ["q"], "gold": ["y"]}), file)
    assert read_gold(file).values == {("d", "q"): "y"}


def test_one_gold_that_is_too_large_is_one_sentence(tmp_path, monkeypatch):
    """Arrow says so for what no batch of one row can hold."""
    file = tmp_path / "gold.parquet"
    pq.write_table(pa.table({"doc_id": ["d"], "question_id": ["q"], "gold": ["y"]}), file)

    class Fails:
        def __enter__(self):
            return self

        def __exit__(self, *arguments):
            return None

        def iter_batches(self, batch_size):
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
            yield

    opened = source_files.open_file(source_files.find_files([str(file)], tmp_path, "--gold")[0][0])
    monkeypatch.setattr(evaluate_gold, "open_file", lambda file: opened)
    monkeypatch.setattr(source_files, "_parquet", lambda path, **options: Fails())
    with pytest.raises(InputError, match=r"gold.parquet.*row 1 is too large to read.*rewrite it as smaller rows"):
        read_gold(file)


def test_answers_of_a_schema_that_is_not_stored(tmp_path):
    rows = [("d", "q1", {"n": 1, "t": "x"}, {"n": 1, "t": "X"}), ("d", "q2", {"n": 2.5, "t": None}, {"n": 2, "t": "y"})]
    found = read_answers(write_run(tmp_path / "a.duckdb", rows, None, schema_name="inline"))
    result = summary(evaluate(found, own_gold(found)))
    assert [(one["property"], one["kind"], one["correct"]) for one in result["properties"]] == [
        ("n", "number", 1), ("t", "text", 1),
    ]  # fmt: skip
