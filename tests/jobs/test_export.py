import csv
import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.errors import OutputError
from jobs.export import export
from jobs.store import AnswerRecord, AnswerStore, RunRecord
from tests.jobs.store_version_2 import make_store_of_version_2

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["yes", "no"]},
        "amount": {"type": "number"},
        "count": {"type": "integer"},
        "huge": {"type": "integer", "maximum": 10**30},
        "signed": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"page": {"type": "integer"}}},
        "free": {},
        "attempt": {"type": "string"},
    },
}
ANSWER = {
    "label": "yes", "amount": 1.5, "count": 3, "huge": 10**29, "signed": True, "names": ["a, b", 'say "c"'],
    "place": {"page": 2}, "free": {"x": [1]}, "attempt": "first",
}  # fmt: skip
MOMENT = datetime(2025, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Exports only read it."""
    store = AnswerStore(tmp_path_factory.mktemp("store") / "answers.duckdb")
    for run_id in ("r1", "r2"):
        store.begin_run(RunRecord(run_id=run_id, rows_total=2))
        values = {"run_id": run_id, "schema_name": "facts", "answered_at": MOMENT, "question": ""}
        answer = json.dumps(ANSWER | {"label": "no"} if run_id == "r2" else ANSWER)
        store.write_answers(
            [
                AnswerRecord(doc_id="d2", question_id="q", status="ok", answer=answer, extra='{"n": 1}', **values),
                AnswerRecord(
                    doc_id="d10", question_id="q", status="truncated", raw_text='{"a', error="cut\n", **values
                ),
            ]
        )
    store.define_schema_views({"facts": SCHEMA})
    return store


def test_parquet_has_typed_columns(store, tmp_path):
    report = export(store, tmp_path / "out.parquet", schema_name="facts")
    table = pq.read_table(report.path)
    confidences = [f"{name}_confidence" for name in SCHEMA["properties"]]
    assert table.schema.names == report.columns == ["doc_id", "question_id", *SCHEMA["properties"], *confidences]
    kinds = {field.name: field.type for field in table.schema}
    assert (kinds["amount"], kinds["count"], kinds["signed"]) == (pa.float64(), pa.int64(), pa.bool_())
    assert pa.types.is_list(kinds["names"])
    assert pa.types.is_struct(kinds["place"])
    (row,) = table.to_pylist()
    values = {"doc_id": "d2", "question_id": "q", "label": "no", "huge": Decimal(10**29), "free": '{"x":[1]}'}
    assert row == ANSWER | values | dict.fromkeys(confidences)


def test_json_lines_hold_json(store, tmp_path):
    export(store, tmp_path / "out.jsonl", schema_name="facts", all_attempts=True)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["run_id"], row["docqa_attempt"], row["label"]) for row in rows] == [("r1", 1, "yes"), ("r2", 2, "no")]
    assert {name: rows[0][name] for name in ANSWER} == ANSWER
    export(store, tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["doc_id"], row["status"], row["attempt"]) for row in rows] == [
        ("d10", "truncated", 2),
        ("d2", "ok", 2),
    ]
    assert rows[1]["answer"] == ANSWER | {"label": "no"}
    assert (rows[1]["extra"], rows[1]["answered_at"]) == ({"n": 1}, "2025-03-04T05:06:07.000000Z")
    assert "request_digest" not in rows[1]


def test_csv_reads_back(store, tmp_path):
    report = export(store, tmp_path / "out.CSV", schema_name="facts")
    (row,) = csv.DictReader(report.path.open(newline=""))
    assert (row["amount"], row["signed"], row["huge"]) == ("1.5", "true", str(10**29))
    assert json.loads(row["names"]) == ANSWER["names"]
    assert json.loads(row["place"]) == ANSWER["place"]
    report = export(store, tmp_path / "all.csv", all_attempts=True)
    assert report.rows == 4
    rows = list(csv.DictReader(report.path.open(newline="")))
    assert [row["error"] for row in rows] == ["cut\n", "cut\n", "", ""]
    assert '""' in report.path.read_text()  # the empty question, which is not NULL


def test_whole_or_not_at_all(store, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("of last night")
    with pytest.raises(OutputError, match="no answers of a schema named 'other'; its schemas: facts"):
        export(store, path, schema_name="other")
    assert path.read_text() == "of last night"
    export(store, path)
    assert path.read_text().startswith("run_id,")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.csv"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.xlsx", r"must end in \.parquet, \.jsonl, \.csv"),
        ("none/out.csv", "can't be written .No such file"),
        ("folder.csv", "is a folder"),
        ("link.csv", "is the database itself"),
    ],
)
def test_names_that_cannot_be(store, tmp_path, name, message):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(store.path)
    with pytest.raises(OutputError, match=message):
        export(store, tmp_path / name)
    assert store.check() == []


def test_what_an_older_store_lacks_is_null(tmp_path):
    make_store_of_version_2(tmp_path / "old.duckdb")
    before = (tmp_path / "old.duckdb").read_bytes()
    store = AnswerStore(tmp_path / "old.duckdb", read_only=True)
    export(store, tmp_path / "out.jsonl", schema_name="verdict", all_attempts=True)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["a"], row["a_found"], row["a_confidence"]) for row in rows] == [("x", None, None)] * 2
    assert (tmp_path / "old.duckdb").read_bytes() == before
