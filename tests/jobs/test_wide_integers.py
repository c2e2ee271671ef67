"""Whole numbers of any size come out of the typed views and exports as they went in."""

import csv
import json
from decimal import Decimal

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.export import export
from jobs.journal_records import SchemaViews
from jobs.schema_types import answer_columns
from jobs.store import AnswerRecord, AnswerStore, RunRecord
from jobs.wide_integers import is_narrower, widened

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "bound": {"type": "integer", "maximum": 10**25},
        "list": {"type": "array", "items": {"type": "integer"}},
        "part": {"type": "object", "properties": {"n": {"type": "integer"}, "t": {"type": "string"}}},
        "text": {"type": "string"},
    },
}
SMALL = {"n": 2**63 - 1, "bound": 5, "list": [1, -(2**63)], "part": {"n": 1, "t": "9" * 30}, "text": "1" * 25}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.duckdb"


@pytest.fixture
def store(path):
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id="r1", rows_total=9))
    store.define_schema_views({"s": SCHEMA})
    return store


def record(answer, doc_id, **values):
    values = {"run_id": "r1", "question_id": "q", "schema_name": "s", "status": "ok", **values}
    return AnswerRecord(doc_id=doc_id, answer=json.dumps(answer), **values)


def query(path, text):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(text).fetchall()


def types(path):
    return {name: kind for name, kind, *_ in query(path, "DESCRIBE answers_s") if name in SCHEMA["properties"]}


NARROW = {
    "n": "BIGINT",
    "bound": "HUGEINT",
    "list": "BIGINT[]",
    "part": "STRUCT(n BIGINT, t VARCHAR)",
    "text": "VARCHAR",
}


def test_columns_are_as_wide_as_their_answers(store, path):
    store.write_answers([record(SMALL, "d1")])
    assert types(path) == NARROW, "texts of digits are no numbers"
    store.write_answers([record({"n": 2**63, "bound": -(2**127)}, "d2")])
    assert types(path) == NARROW | {"n": "HUGEINT"}
    assert query(path, "SELECT n, bound FROM answers_s ORDER BY doc_id") == [(2**63 - 1, 5), (2**63, -(2**127))]
    store.write_answers([record({"n": 1, "bound": 2**127, "list": [2**63], "part": {"n": -(2**63) - 1}}, "d3")])
    assert types(path) == NARROW | {"n": "HUGEINT", "bound": "VARCHAR", "list": "JSON", "part": "JSON"}
    assert query(path, "SELECT n, bound, list, part FROM answers_s WHERE doc_id = 'd3'") == [
        (1, str(2**127), f"[{2**63}]", f'{{"n":{-(2**63) - 1}}}')
    ]
    assert json.loads(query(path, "SELECT list FROM answers_s WHERE doc_id = 'd1'")[0][0]) == SMALL["list"]
    before = path.read_bytes()
    store.define_schema_views({"s": SCHEMA})
    assert path.read_bytes() == before, "the schema is the same, and so is its view"
    changed = {"properties": {"n": {"type": "integer"}, "new": {"type": "boolean"}}}
    store.define_schema_views({"s": changed})
    assert query(path, "SELECT n, new FROM answers_s ORDER BY doc_id") == [(2**63 - 1, None), (2**63, None), (1, None)]


def test_answers_that_do_not_count_change_nothing(store, path):
    huge = {"n": 10**50}
    store.write_answers([record(huge, "d1", status="schema_violation"), record(huge, "d2", schema_name="other")])
    store.write_answers([record({"n": "9" * 40, "list": ["9" * 40]}, "d3")])  # as an older schema had it
    assert types(path) == NARROW


def test_a_journal_that_is_published_widens(store, path):
    records = [SchemaViews({"s": SCHEMA}), record({"n": 10**50}, "d1"), record({"n": 3}, "d2")]
    assert store.publish(records) == 2
    assert query(path, "SELECT n FROM answers_s ORDER BY doc_id") == [(str(10**50),), ("3",)]
    assert store.publish(records) == 0
    assert types(path)["n"] == "VARCHAR"
    assert store.check() == []


integers = st.integers(0, 140).flatmap(lambda bits: st.integers(-(2**bits), 2**bits))


@given(st.lists(st.tuples(integers, st.lists(integers, max_size=3)), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_no_whole_number_is_lost(rows):
    properties = {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}}
    texts = [json.dumps({"a": number, "b": numbers}) for number, numbers in rows]
    columns = answer_columns({"properties": properties})
    wide = widened(columns, texts)
    assert not any(is_narrower(new.duckdb_type, old) for new, old in zip(wide, columns, strict=True))
    chosen = ", ".join(column.expression("j") for column in wide)
    with duckdb.connect() as connection:
        for (number, numbers), text in zip(rows, texts, strict=True):
            found = connection.execute(f"SELECT {chosen} FROM (SELECT CAST(? AS JSON) AS j)", [text]).fetchone()
            assert int(found[0]) == number
            assert (json.loads(found[1]) if isinstance(found[1], str) else found[1]) == numbers
    largest = max(abs(number) for number, _ in rows)
    if largest < 2**63:
        assert wide[0].duckdb_type == "BIGINT"


@pytest.mark.parametrize(
    ("number", "in_parquet"),
    [(7, 7), (2**63, Decimal(2**63)), (10**38 - 1, Decimal(10**38 - 1)), (10**38, str(10**38)), (2**130, str(2**130))],
)
def test_exports_hold_every_digit(store, tmp_path, number, in_parquet):
    answer = SMALL | {"n": number, "list": [number, 1]}
    store.write_answers([record(answer, "d1")])
    for all_attempts in (False, True):
        check_exports(store, tmp_path, number, in_parquet, all_attempts)


def check_exports(store, tmp_path, number, in_parquet, all_attempts):
    files = [tmp_path / f"{all_attempts}{suffix}" for suffix in (".parquet", ".jsonl", ".csv")]
    for file in files:
        export(store, file, schema_name="s", all_attempts=all_attempts)
    (parquet,) = pq.read_table(files[0]).to_pylist()
    assert parquet["n"] == in_parquet
    assert (json.loads(parquet["list"]) if isinstance(parquet["list"], str) else parquet["list"]) == [number, 1]
    (line,) = (json.loads(text) for text in files[1].read_text().splitlines())
    assert (int(line["n"]), line["list"], line["text"]) == (number, [number, 1], "1" * 25)
    (row,) = csv.DictReader(files[2].open(newline=""))
    assert (row["n"], json.loads(row["list"])) == (str(number), [number, 1])


def test_parquet_keeps_the_digits_within_structs_and_lists(tmp_path):
    number = {"type": "integer", "maximum": 10**30}
    part = {"type": "object", "properties": {"n": number}}
    store = AnswerStore(tmp_path / "answers.duckdb")
    store.begin_run(RunRecord(run_id="r1", rows_total=1))
    schema = {"type": "object", "properties": {"part": part, "list": {"type": "array", "items": number}}}
    store.define_schema_views({"s": schema})
    answer = {"part": {"n": 10**29 + 1}, "list": [10**29 + 1]}
    store.write_answers([record(answer, "d1")])
    export(store, tmp_path / "out.parquet", schema_name="s")
    [row] = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert {name: json.loads(row[name]) for name in answer} == answer
