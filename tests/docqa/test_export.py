import json

from jobs.store import AnswerRecord, RunRecord
from tests.jobs.evaluation_helpers import VERDICT, write_run


def test_export(docqa, tmp_path):
    path = tmp_path / "answers.duckdb"
    write_run(path, [("d", "q", {"verdict": "true", "quote": "x"}, None), ("d", "r", None, None)], VERDICT)
    assert docqa("export", path, "--to", tmp_path / "all.csv", "--quiet") == (0, "", "")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 3
    status, out, err = docqa("export", path, "--to", tmp_path / "v.jsonl", "--schema", "verdict", "--json")
    assert status == 0
    assert json.loads(out) == {
        "path": str(tmp_path / "v.jsonl"), "rows": 1,
        "columns": ["doc_id", "question_id", "verdict", "quote", "verdict_confidence", "quote_confidence"],
    }  # fmt: skip
    assert "1 rows were written" in err
    assert json.loads((tmp_path / "v.jsonl").read_text())["quote"] == "x"
    status, out, err = docqa("export", path, "--to", tmp_path / "x.txt")
    assert (status, out) == (2, "")
    assert "must end in .parquet, .jsonl, .csv" in err
    assert docqa("export", path)[0] == 2


def test_the_places_of_quotes_are_columns(docqa, tmp_path):
    path = tmp_path / "answers.duckdb"
    schema = {"properties": {"quote": {"type": "string", "x-docqa": "quote"}}}
    store = write_run(path, [("d", "q", {"quote": "x"}, None)], schema)
    places = '{"/quote":{"start":3,"end":4,"found":true,"exact":true}}'
    store.begin_run(RunRecord(run_id="r2"))
    store.write_answers([AnswerRecord(run_id="r2", doc_id="d", question_id="q", schema_name="verdict", status="ok",
                                      answer='{"quote":"x"}', quotes=places, confidence='{"quote":0.5}')])  # fmt: skip
    columns = {"quote": "x", "quote_start": 3, "quote_end": 4, "quote_found": True, "quote_confidence": 0.5}
    docqa("export", path, "--to", tmp_path / "v.jsonl", "--schema", "verdict")
    latest = json.loads((tmp_path / "v.jsonl").read_text())
    assert latest == {"doc_id": "d", "question_id": "q"} | columns
    docqa("export", path, "--to", tmp_path / "h.jsonl", "--schema", "verdict", "--all-attempts")
    history = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()]
    assert [row["quote_found"] for row in history] == [None, True]
    docqa("export", path, "--to", tmp_path / "a.jsonl")
    assert json.loads((tmp_path / "a.jsonl").read_text())["quotes"] == json.loads(places)
