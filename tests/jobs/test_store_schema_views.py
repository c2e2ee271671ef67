"""The views answers_<schema>: names, types and values."""

import json
from unittest.mock import ANY

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.schema_types import answer_columns, quote_identifier
from jobs.store import AnswerRecord, AnswerStore, RunRecord

VERDICT = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "label": {"enum": ["Yes", "No", None]},
        "sure": {"type": "boolean"},
        "count": {"type": ["integer", "null"]},
        "share": {"type": "number"},
        "quotes": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"page": {"type": "integer"}, "a.b": {"type": "string"}}},
        "mixed": {"enum": ["No", 1, 1.5, None, True]},
    },
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.duckdb"


@pytest.fixture
def store(path):
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id="r1"))
    return store


VALUES = "SELECT * NOT LIKE '%\\_confidence' ESCAPE '\\' FROM "


def query(path, text):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(text).fetchall()


def write(store, answer, schema_name="verdict", run_id="r1", doc_id="d1", question_id="q1", status="ok"):
    text = json.dumps(answer, ensure_ascii=False)
    store.write_answers(
        [
            AnswerRecord(
                run_id=run_id,
                doc_id=doc_id,
                question_id=question_id,
                schema_name=schema_name,
                status=status,
                answer=text,
            )
        ]
    )


def test_typed_columns(store, path):
    assert store.define_schema_views({"verdict": VERDICT}) == {"verdict": "answers_verdict"}
    assert query(path, "SELECT * FROM answers_verdict") == []
    assert [row[:2] for row in query(path, "DESCRIBE answers_verdict")] == [
        ("doc_id", "VARCHAR"),
        ("question_id", "VARCHAR"),
        ("reasoning", "VARCHAR"),
        ("label", "VARCHAR"),
        ("sure", "BOOLEAN"),
        ("count", "BIGINT"),
        ("share", "DOUBLE"),
        ("quotes", "VARCHAR[]"),
        ("place", ANY),
        ("mixed", "JSON"),
        *((f"{name}_confidence", "DOUBLE") for name in VERDICT["properties"]),
    ]
    write(
        store,
        {
            "reasoning": 'says "so"\n\0',
            "label": "Yes",
            "sure": True,
            "count": 3,
            "share": 0.25,
            "quotes": ["a", 'b"', "Ä"],
            "place": {"page": 7, "a.b": "x"},
            "mixed": "No",
        },
    )
    empty = dict.fromkeys(VERDICT["properties"])
    write(store, empty, doc_id="d2")
    write(store, {"count": 10**30, "share": 1, "quotes": "no list", "mixed": 1}, doc_id="d3")
    assert query(path, VALUES + "answers_verdict ORDER BY doc_id") == [
        ("d1", "q1", 'says "so"\n\0', "Yes", True, 3, 0.25, ["a", 'b"', "Ä"], {"page": 7, "a.b": "x"}, '"No"'),
        ("d2", "q1", *[None] * 8),
        ("d3", "q1", None, None, None, 10**30, 1.0, None, None, "1"),
    ]
    assert query(path, "SELECT place.page, place['a.b'] FROM answers_verdict WHERE doc_id = 'd1'") == [(7, "x")]


def test_columns_of_quotes_keep_off_the_names_of_properties(store, path):
    quote = {"type": "string", "x-docqa": "quote"}
    schema = {"properties": {"a/b": quote, "a/b_START": {"type": "integer"}, "quotes": quote, "~": {"type": "null"}}}
    store.define_schema_views({"places": schema})
    places = {"/a~1b": {"start": 3, "end": 5, "found": True, "exact": False},
              "/quotes": {"start": None, "end": None, "found": False, "exact": False}}  # fmt: skip
    answer = {"doc_id": "d", "question_id": "q", "schema_name": "places", "status": "ok"}
    text = json.dumps({"a/b": "xy", "a/b_START": 7, "quotes": "none"})
    store.write_answers([AnswerRecord(run_id="r1", answer=text, quotes=json.dumps(places), **answer)])
    assert [(name, kind) for name, kind, *_ in query(path, "DESCRIBE answers_places")][2:] == [
        ("a/b", "VARCHAR"), ("a/b_START", "BIGINT"), ("quotes", "VARCHAR"), ("~", "JSON"),
        ("a/b_start_2", "BIGINT"), ("a/b_end", "BIGINT"), ("a/b_found", "BOOLEAN"),
        ("quotes_start", "BIGINT"), ("quotes_end", "BIGINT"), ("quotes_found", "BOOLEAN"),
        *((f"{name}_confidence", "DOUBLE") for name in schema["properties"]),
    ]  # fmt: skip
    assert query(path, VALUES + "answers_places") == [("d", "q", "xy", 7, "none", None, 3, 5, True, None, None, False)]


def test_columns_of_confidence_keep_off_the_names_of_properties(store, path):
    names = ["a/b", "A/B_confidence", "~", '"', "doc_id", "\n", ""]
    store.define_schema_views({"sure": {"properties": {name: {"type": "integer"} for name in names}}})
    values = dict(zip(names, (0.5, None, 1e-40, 1, 0.25, 0.125, 0), strict=True))
    answer = {"doc_id": "d", "question_id": "q", "schema_name": "sure", "status": "ok", "answer": "{}"}
    store.write_answers([AnswerRecord(run_id="r1", confidence=json.dumps(values), **answer)])
    found = query(path, "SELECT COLUMNS('_confidence') "
                        "FROM answers_sure")  # fmt: skip
    assert found == [(None, 0.5, None, 1e-40, 1.0, 0.25, 0.125, 0.0)]
    assert query(path, 'SELECT doc_id_answer_confidence, "a/b_confidence_2" FROM answers_sure') == [(0.25, 0.5)]


def test_the_confidence_of_a_whole_answer_is_a_number(store, path):
    store.define_schema_views({"s": {"type": "integer"}})
    answer = {"question_id": "q", "schema_name": "s", "status": "ok", "answer": "7"}
    rows = [
        AnswerRecord(run_id="r1", doc_id=f"d{n}", confidence=c, **answer) for n, c in enumerate(("0.5", None, "null"))
    ]
    store.write_answers(rows)
    assert query(path, "SELECT answer, answer_confidence FROM answers_s ORDER BY doc_id") == [
        (7, 0.5),
        (7, None),
        (7, None),
    ]


def test_view_shows_the_newest_valid_answer_in_its_schema(store, path):
    schema = {"properties": {"a": {"type": "integer"}}}
    store.define_schema_views({"one": schema, "two": schema})
    write(store, {"a": 1}, "one")
    write(store, {"a": 9}, "one", doc_id="d2", status="schema_violation")
    assert query(path, VALUES + "answers_one") == [("d1", "q1", 1)]
    store.begin_run(RunRecord(run_id="r2"))
    write(store, {"a": 2}, "one", "r2", status="truncated")
    assert query(path, VALUES + "answers_one") == [("d1", "q1", 1)]
    store.begin_run(RunRecord(run_id="r3"))
    write(store, {"a": 3}, "two", "r3")
    assert query(path, VALUES + "answers_one") == []
    assert query(path, VALUES + "answers_two") == [("d1", "q1", 3)]


def test_names_of_views(store, path):
    schema = {"properties": {"a": {"type": "integer"}}}
    names = store.define_schema_views(dict.fromkeys(["a b", "a-b", "A.B", "Ünï", "", "'; DROP TABLE runs; --"], schema))
    assert list(names.values()) == [
        "answers_a_b",
        "answers_a_b_2",
        "answers_A_B_3",
        "answers_Ünï",
        "answers_schema",
        "answers__DROP_TABLE_runs_",
    ]
    for number, (schema_name, view) in enumerate(names.items()):
        write(store, {"a": number}, schema_name, question_id=str(number))
        assert query(path, f"SELECT a FROM {quote_identifier(view)}") == [(number,)]
    # A later job that knows only one of two names must not take the other's view.
    assert store.define_schema_views({"a-b": schema}) == {"a-b": "answers_a_b_2"}
    assert store.define_schema_views({"a/b": schema}) == {"a/b": "answers_a_b_4"}


def test_view_name_that_a_user_has_taken(store, path):
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE Answers_Verdict AS SELECT 1 AS mine")
    assert store.define_schema_views({"verdict": VERDICT}) == {"verdict": "answers_verdict_2"}
    assert query(path, "SELECT * FROM Answers_Verdict") == [(1,)]


def test_defining_again_changes_nothing_and_a_new_schema_renews_the_view(store, path):
    store.define_schema_views({"verdict": VERDICT})
    write(store, {"label": "Yes"})
    before = path.read_bytes()
    assert store.define_schema_views({"verdict": VERDICT}) == {"verdict": "answers_verdict"}
    assert path.read_bytes() == before
    store.define_schema_views({"verdict": {"properties": {"label": {"type": "integer"}, "new": {"type": "string"}}}})
    assert query(path, VALUES + "answers_verdict") == [("d1", "q1", None, None)]
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP VIEW answers_verdict")
    store.define_schema_views({"verdict": VERDICT})
    assert query(path, "SELECT label FROM answers_verdict") == [("Yes",)]


@pytest.mark.parametrize(
    ("schema", "answer", "value"),
    [
        ({"type": "string"}, "text", "text"),
        ({"enum": ["a", "b"]}, "b", "b"),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], [1, 2]),
        (True, {"a": 1}, '{"a":1}'),
        ({"type": "object"}, {"a": 1}, '{"a":1}'),
        ({"type": "integer"}, 7, 7),
        ({"type": ["object", "string"], "properties": {"a": {}}}, {"a": None}, None),
        (True, None, None),
    ],
)
def test_schemas_without_properties(store, path, schema, answer, value):
    store.define_schema_views({"s": schema})
    write(store, answer, "s")
    assert query(path, VALUES + "answers_s") == [("d1", "q1", value)]


ODD_NAMES = [
    "a.b", "a/b", "a~b", "~1", "$", "$.a", '"', 'a"b', "a'b", "a[0]", "[0]", "*", "a*", "#", "-", "0", " ", "", "Ä",
    "ä", "日本", "😊", "a\\b", "\n", "\0", "a\0b", "select", "doc_id", "DOC_ID", "question_id", "doc_id_answer",
    "label", "Label", "LABEL", "Label_2", "rowid",
]  # fmt: skip


def test_odd_property_names(store, path):
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in ODD_NAMES}}
    store.define_schema_views({"odd": schema})
    write(store, {name: f"<{name}>" for name in ODD_NAMES}, "odd")
    assert query(path, VALUES + "answers_odd") == [("d1", "q1", *(f"<{name}>" for name in ODD_NAMES))]
    names = [column.name for column in answer_columns(schema)]
    assert names[ODD_NAMES.index("doc_id") :] == [
        "doc_id_answer_2", "DOC_ID_answer_3", "question_id_answer", "doc_id_answer", "label", "Label_3", "LABEL_4",
        "Label_2", "rowid",
    ]  # fmt: skip


MEMORY = duckdb.connect()


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=4), st.text(max_size=4), min_size=1, max_size=5))
def test_any_property_name_finds_its_value(answer):
    columns = answer_columns({"properties": {name: {"type": "string"} for name in answer}})
    chosen = ", ".join(f"{column.expression('j')} AS {quote_identifier(column.name)}" for column in columns)
    text = json.dumps(answer, ensure_ascii=False)
    with MEMORY.cursor() as connection:
        row = connection.execute(f"SELECT {chosen} FROM (SELECT CAST(? AS JSON) AS j)", [text]).fetchone()
    assert row == tuple(answer.values())


def test_hostile_schemas_still_have_views(store, path):
    recursive = {
        "$defs": {"n": {"properties": {"l": {"$ref": "#/$defs/n"}, "v": {"type": "integer"}}}},
        "$ref": "#/$defs/n",
    }
    endless = {"anyOf": [{"$ref": "#"}] * 10}
    store.define_schema_views({"recursive": recursive, "endless": endless})
    write(store, {"l": {"v": 2}, "v": 1}, "recursive")
    assert query(path, "SELECT v, l FROM answers_recursive") == [(1, '{"v":2}')]
