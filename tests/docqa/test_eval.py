import json

import pyarrow as pa
import pyarrow.parquet as pq

from tests.jobs.evaluation_helpers import VERDICT, write_run


def rows(labels):
    golds = ["true", "false", "not mentioned"]
    return [
        (f"d{index % 2}", f"q{index}", label and {"verdict": label, "quote": "[b]"}, golds[index % 3])
        for index, label in enumerate(labels)
    ]


def test_tables_and_json(docqa, tmp_path):
    path = tmp_path / "answers.duckdb"
    write_run(path, rows(["true", "false", "true", None]), VERDICT)
    status, out, err = docqa("eval", path)
    assert (status, err) == (0, "")
    assert "4 rows with gold, 3 of them with a valid answer" in out
    assert "all right: 2, 50.0%" in out
    for heading in ("Classes of verdict", "Worst by doc_id"):
        assert heading in out
    assert "Worst by question_id" not in out  # each is asked once
    status, out, _ = docqa("eval", path, "--json")
    found = json.loads(out)
    assert (found["accuracy"], found["properties"][0]["property"]) == (0.5, "verdict")


def test_calibration_is_a_table(docqa, tmp_path):
    path = tmp_path / "answers.duckdb"
    sure = [{"verdict": 0.95, "quote": 0.01}, {"verdict": 0.93}, {"verdict": 0.05}, None]
    write_run(path, rows(["true", "true", "true", None]), VERDICT, confidences=sure)
    _, out, _ = docqa("eval", path)
    part = out[out.index("Calibration of verdict") :].splitlines()
    assert (
        part[1] == "3 answers, mean confidence 64.3%, right 33.3%; expected calibration error 31.0%, Brier score 0.290"
    )
    assert [line.split() for line in part[3:5]] == [
        ["0%", "to", "10%", "1", "5.0%", "0.0%"],
        ["90%", "to", "100%", "2", "94.0%", "50.0%"],
    ]
    found = json.loads(docqa("eval", path, "--json")[1])["properties"][0]["calibration"]
    assert (found["rows"], len(found["bins"])) == (3, 10)
    write_run(tmp_path / "none.duckdb", rows(["true"]), VERDICT)
    assert "Calibration" not in docqa("eval", tmp_path / "none.duckdb")[1]


def test_properties_of_one_name_are_told_apart_by_their_schema(docqa, tmp_path):
    path = tmp_path / "answers.duckdb"
    write_run(path, rows(["true", "false"]), VERDICT)
    answer = {"verdict": "true"} | dict.fromkeys("abcde", 1)
    later = [("d9", f"q{number}", answer, answer | {"a": 2}) for number in range(2)]
    properties = VERDICT["properties"] | {name: {"type": "integer"} for name in "abcde"}
    write_run(path, later, {"type": "object", "properties": properties}, run_id="r2", schema_name="wide")
    out = docqa("eval", path)[1]
    for name in ("verdict of verdict", "verdict of wide"):
        assert any(line.startswith(f"{name} ") for line in out.splitlines())
        assert f"Classes of {name}\n" in out
    assert "rows that are right, by 5 of 6 properties; --json has all" in out
    assert "verdict of wide" in docqa("eval", path, "--against", path)[1].partition("Compared with")[2]


def test_gold_of_a_file_and_two_runs(docqa, tmp_path):
    path, gold = tmp_path / "answers.duckdb", tmp_path / "gold.parquet"
    write_run(path, rows(["true", None, "true"]), VERDICT)
    write_run(path, rows(["true", "false", "false"]), VERDICT, run_id="r2")
    pq.write_table(pa.table({"doc_id": ["d0", "d1"], "question_id": ["q0", "q1"], "right": ["true", "false"]}), gold)
    options = ("--run", "r2", "--against", "r1", "--gold", gold, "--column", "gold=right")
    status, out, err = docqa("eval", path, *options)
    assert (status, err) == (0, "")
    assert "1 rows have no gold and are left out" in out
    assert "d1 / q1 verdict: truncated -> false (right)" in out
    found = json.loads(docqa("eval", path, *options, "--json")[1])["comparison"]
    assert (found["rows"], found["rows_correct"]["better"], found["rows_correct"]["p_value"]) == (2, 1, 1.0)
    assert json.loads(docqa("eval", path, "--against", path, "--json")[1])["comparison"]["changed"] == []


def test_mistakes_are_one_sentence(docqa, tmp_path):
    path = tmp_path / "answers.duckdb"
    write_run(path, [("d", "q", {"verdict": "true", "quote": ""}, None)], VERDICT)
    for arguments, message in (
        ((path,), "no row has gold; name a Parquet file with --gold"),
        ((path, "--tolerance", "wide"), "neither a number"),
        ((path, "--column", "gold"), "write it as NAME=COLUMN"),
        ((path, "--gold", "nothing.parquet"), "there is no file or folder 'nothing.parquet'"),
        ((path, "--run", "r7"), "has no run r7; it has r1"),
        ((tmp_path / "none.duckdb",), "does not exist"),
    ):
        status, out, err = docqa("eval", *arguments)
        assert (status, out) == (2, "")
        assert message in err
    write_run(tmp_path / "b.duckdb", rows(["true"]), VERDICT)
    status, _, err = docqa("eval", tmp_path / "b.duckdb", "--against", "r7")
    assert (status, "has no such run (it has r1), and there is no such file" in err) == (2, True)
