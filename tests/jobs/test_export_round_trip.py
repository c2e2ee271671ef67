"""Every kind of property, out to each format and back: the values are the answer's."""

import csv
import json

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.export import export
from jobs.store import AnswerRecord, AnswerStore, RunRecord

text = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\",\n\r\\\t;'{}[]"), max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**63), 2**63 - 1)
LABELS = ["No", "No answer", "Not mentioned", 'a"b', "C:\\x", "Ä", ""]
MIXED = [*LABELS, 1, 1.5, None, True]  # case 50

KINDS = {
    "flag": ({"type": "boolean"}, st.booleans()),
    "count": ({"type": "integer"}, integers),
    "amount": ({"type": "number"}, finite),
    "text": ({"type": "string"}, text),
    "day": ({"type": "string", "format": "date"}, st.dates().map(str)),
    "label": ({"enum": LABELS}, st.sampled_from(LABELS)),
    "mixed": ({"enum": MIXED}, st.sampled_from(MIXED)),
    "maybe": ({"type": ["integer", "null"]}, st.none() | integers),
    "texts": ({"type": "array", "items": {"type": "string"}}, st.lists(text, max_size=3)),
    "flags": ({"type": "array", "items": {"type": "boolean"}}, st.lists(st.booleans(), max_size=3)),
    "part": (
        {"type": "object", "properties": {"page": {"type": "integer"}, "a b": {"type": "string"},
                                          "in": {"type": "object", "properties": {"x": {"type": "number"}}}}},
        st.fixed_dictionaries({"page": integers, "a b": text, "in": st.fixed_dictionaries({"x": finite})}),
    ),
    "rows": ({"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
             st.lists(st.fixed_dictionaries({"x": integers}), max_size=2)),
    "tables": ({"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
               st.lists(st.lists(finite, max_size=2), max_size=2)),
    "free": ({}, st.dictionaries(text, integers | text | st.lists(finite, max_size=2), max_size=2)),
}  # fmt: skip
IS_JSON = ("mixed", "free")
SCHEMA = {"type": "object", "properties": {name: schema for name, (schema, _) in KINDS.items()}}
answers = st.fixed_dictionaries({}, optional={name: values for name, (_, values) in KINDS.items()})


@pytest.fixture
def export_all(tmp_path):
    """export_all(answers) -> the files of a new database's answers: .parquet, .jsonl and .csv."""
    databases = iter(range(1000))

    def make(rows):
        store = AnswerStore(tmp_path / f"{next(databases)}.duckdb")
        store.begin_run(RunRecord(run_id="r1", rows_total=len(rows)))
        store.define_schema_views({"kinds": SCHEMA})
        values = {"run_id": "r1", "question_id": "q", "schema_name": "kinds", "status": "ok"}
        records = [
            AnswerRecord(doc_id=f"d{n:04}", answer=json.dumps(row), confidence=json.dumps({"flag": n / 7}), **values)
            for n, row in enumerate(rows)
        ]
        store.write_answers(records)
        files = [tmp_path / f"out{suffix}" for suffix in (".parquet", ".jsonl", ".csv")]
        for file in files:
            assert export(store, file, schema_name="kinds").rows == len(rows)
        return files

    return make


def same(found, value):
    return found == value and isinstance(found, bool) == isinstance(value, bool)


@given(st.lists(answers, min_size=1, max_size=8))
@example([{}, dict.fromkeys(KINDS)])
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_come_back(export_all, rows):
    parquet_file, lines_file, csv_file = export_all(rows)
    table = pq.read_table(parquet_file).to_pylist()
    lines = [json.loads(line) for line in lines_file.read_text(encoding="utf-8").split("\n")[:-1]]
    with csv_file.open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    assert len(table) == len(lines) == len(cells) == len(rows)
    for number, row in enumerate(rows):
        assert table[number]["flag_confidence"] == lines[number]["flag_confidence"] == number / 7
        assert float(cells[number]["flag_confidence"]) == number / 7
        for name in KINDS:
            value = row.get(name)
            in_table, cell = table[number][name], cells[number][name]
            if name in IS_JSON and in_table is not None:
                in_table = json.loads(in_table)
            assert same(in_table, value), name
            assert same(lines[number][name], value), name
            if value is None:
                assert cell == "", name
            elif isinstance(value, str) and name not in IS_JSON:
                assert cell == value, name
            else:
                assert same(json.loads(cell), value), name


def test_other_libraries_read_the_same(export_all):
    polars = pytest.importorskip("polars")
    rows = [{"count": 2**62 + 1, "texts": ["a", "b\n"], "part": {"page": 3, "a b": "x", "in": {"x": 0.1}}}, {}]
    parquet_file, lines_file, csv_file = export_all(rows)
    frame = polars.read_parquet(parquet_file)
    assert frame["count"].to_list() == [2**62 + 1, None]
    assert frame["texts"].to_list() == [["a", "b\n"], None]
    assert frame["part"].to_list()[0] == rows[0]["part"]
    assert polars.read_ndjson(lines_file)["count"].to_list() == [2**62 + 1, None]
    assert polars.read_csv(csv_file)["count"].to_list() == [2**62 + 1, None]
    pandas = pytest.importorskip("pandas")
    assert pandas.read_parquet(parquet_file)["texts"][0].tolist() == ["a", "b\n"]
    assert pandas.read_json(lines_file, lines=True)["count"][0] == 2**62 + 1
