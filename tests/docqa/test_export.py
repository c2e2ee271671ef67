import json

from tests.jobs.evaluation_helpers import VERDICT, write_run


def test_export(docqa, tmp_path):
    path = tmp_path / "answers.duckdb"
    write_run(path, [("d", "q", {"verdict": "true", "quote": "x"}, None), ("d", "r", None, None)], VERDICT)
    assert docqa("export", path, "--to", tmp_path / "all.csv", "--quiet") == (0, "", "")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 3
    status, out, err = docqa("export", path, "--to", tmp_path / "v.jsonl", "--schema", "verdict", "--json")
    assert status == 0
    assert json.loads(out) == {
        "path": str(tmp_path / "v.jsonl"), "rows": 1, "columns": ["doc_id", "question_id", "verdict", "quote"],
    }  # fmt: skip
    assert "1 rows were written" in err
    assert json.loads((tmp_path / "v.jsonl").read_text())["quote"] == "x"
    status, out, err = docqa("export", path, "--to", tmp_path / "x.txt")
    assert (status, out) == (2, "")
    assert "must end in .parquet, .jsonl, .csv" in err
    assert docqa("export", path)[0] == 2
