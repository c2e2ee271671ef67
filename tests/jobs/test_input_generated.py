"""Generated tables through real Parquet files, against a model of the contract in plain Python.

What is generated: types, nulls, nestings, which columns a file has, how many files, chunks, row groups and encodings.
"""

import datetime
import decimal
import hashlib
import itertools
import math
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from jobs.errors import InputError
from jobs.job_settings import InputSettings
from jobs.source import read_input
from tests.thorough import examples

SETTINGS = examples(30, suppress_health_check=list(HealthCheck))
ZERO_WIDTH = "\u180e\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"

texts = st.one_of(
    st.none(),
    st.sampled_from(["", " ", "\n\t", "\u200b", "\ufeff ", "same", "same", "äöü", "e\u0301", "a\r\nb", "\x00", "😊"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
short_texts = st.one_of(st.none(), st.sampled_from(["1", "01", "x", "X", ""]))
TEXT_TYPES = [
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()),
]  # fmt: skip


def whole(bits, signed):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.none(), st.integers(low, high), st.sampled_from([low, high, 0]))


def stamp_text(nanoseconds):
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{rest:09}"


# Arrow type, its Python values, and the text of each as the contract has it.
ID_KINDS = [
    *((data_type, short_texts, str) for data_type in (pa.string(), pa.large_string(), pa.string_view())),
    (pa.dictionary(pa.int16(), pa.string()), short_texts, str),
    (pa.int8(), whole(8, True), str),
    (pa.int64(), whole(64, True), str),
    (pa.uint64(), whole(64, False), str),
    (pa.bool_(), st.sampled_from([None, True, False]), lambda value: "true" if value else "false"),
    (
        pa.decimal128(5, 2),
        st.integers(-99999, 99999).map(lambda n: decimal.Decimal(n).scaleb(-2)),
        lambda value: f"{value:.2f}",
    ),
    (pa.date32(), st.dates(datetime.date(1, 1, 1)), lambda value: value.isoformat()),
    (pa.timestamp("ns"), st.integers(0, 2**62), stamp_text),
    (pa.timestamp("ns", "Europe/Berlin"), st.integers(0, 2**62), lambda value: stamp_text(value) + "Z"),
    (pa.binary(), st.binary(max_size=4), lambda value: value.hex()),
    (pa.binary(3), st.binary(min_size=3, max_size=3), lambda value: value.hex()),
    (pa.null(), st.none(), str),
]  # fmt: skip

floats = st.floats(width=64)
# Arrow type and values, which are JSON-ready except for NaN and the infinities.
CARRIED = [
    (pa.string(), texts),
    (pa.null(), st.none()),
    (pa.int32(), whole(32, True)),
    (pa.float64(), st.one_of(st.none(), floats)),
    (pa.bool_(), st.sampled_from([None, True, False])),
    (pa.list_(pa.int8()), st.one_of(st.none(), st.lists(whole(8, True), max_size=3))),
    (pa.large_list(pa.string()), st.one_of(st.none(), st.lists(texts, max_size=3))),
    (
        pa.struct([("a", pa.float64()), ("b", pa.list_(pa.string()))]),
        st.one_of(st.none(), st.fixed_dictionaries({"a": floats, "b": st.none() | st.lists(texts, max_size=2)})),
    ),
    (
        pa.map_(pa.string(), pa.int8()),
        st.one_of(st.none(), st.dictionaries(st.text("abc", max_size=2), whole(8, True), max_size=3)),
    ),
]  # fmt: skip


def json_value(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [json_value(item) for item in value]
    return {key: json_value(item) for key, item in value.items()} if isinstance(value, dict) else value


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def blank(text):
    return text is None or all(character.isspace() or character in ZERO_WIDTH for character in text)


def arrow(values, data_type, chunks):
    """A chunked array of these values, cut at `chunks`."""
    if pa.types.is_dictionary(data_type):
        whole_array = pa.array(values, data_type.value_type).dictionary_encode().cast(data_type)
    elif "binary" in str(data_type) and any(isinstance(value, str) for value in values):
        whole_array = pa.array([None if value is None else value.encode() for value in values], data_type)
    else:
        whole_array = pa.array(values, data_type)
    cuts = [0, *sorted({cut % (len(values) + 1) for cut in chunks}), len(values)]
    parts = [whole_array.slice(start, end - start) for start, end in itertools.pairwise(cuts)]
    return pa.chunked_array(parts, whole_array.type)


@st.composite
def columns(draw, rows, wanted):
    """Values, Arrow types and expected values of a file's columns; `wanted` must be there, others may be."""
    made = {}
    for name in ("document", "question"):
        if name in wanted:
            data_type = draw(st.sampled_from(TEXT_TYPES))
            values = draw(st.lists(texts, min_size=rows, max_size=rows))
            made[name] = (values, data_type, values)
    for name in ("doc_id", "question_id"):
        if name in wanted and draw(st.booleans()):
            data_type, strategy, as_text = draw(st.sampled_from(ID_KINDS))
            values = draw(st.lists(strategy, min_size=rows, max_size=rows))
            made[name] = (values, data_type, [None if value is None else as_text(value) for value in values])
    if draw(st.booleans()):
        values = draw(st.lists(st.sampled_from([None, "", " ", "verdict"]), min_size=rows, max_size=rows))
        made["schema"] = (values, draw(st.sampled_from(TEXT_TYPES)), values)
    for name in draw(st.lists(st.sampled_from(["gold", "note", "größe", "a b"]), unique=True, max_size=3)):
        data_type, strategy = draw(st.sampled_from(CARRIED))
        values = draw(st.lists(strategy, min_size=rows, max_size=rows))
        arrow_values = [list(value.items()) if isinstance(value, dict) and pa.types.is_map(data_type) else value
                        for value in values]  # fmt: skip
        made[name] = (arrow_values, data_type, [json_value(value) for value in values])
    return made


@st.composite
def written(draw, folder_columns, rows):
    """How a file of these columns is written: chunks, row groups, encodings, order of the columns."""
    order = draw(st.permutations(list(folder_columns)))
    chunks = draw(st.lists(st.integers(0, 20), max_size=3))
    table = pa.table({name: arrow(*folder_columns[name][:2], chunks) for name in order})
    options = {
        "row_group_size": draw(st.integers(1, max(rows, 1) + 1)),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "write_page_checksum": draw(st.booleans()),
    }
    return table, options


@st.composite
def files(draw, wanted):
    made = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(0, 6))
        file_columns = draw(columns(rows, wanted))
        made.append((rows, file_columns, *draw(written(file_columns, rows))))
    return made


def expected_row(values, extra_names):
    """What the contract says about one row of named values."""
    document, question = values.get("document"), values.get("question")
    status = "empty_document" if blank(document) else "empty_question" if blank(question) else None
    doc_id, question_id, schema = values.get("doc_id"), values.get("question_id"), values.get("schema")
    return {
        "doc_id": sha(document or "")[:16] if doc_id is None else doc_id,
        "question_id": sha(question or "")[:16] if question_id is None else question_id,
        "document": None if blank(document) else document,
        "question": question,
        "schema": None if blank(schema) else schema,
        "gold": values.get("gold"),
        "extra": {name: values.get(name) for name in extra_names},
        "status": status,
    }


def merged(rows):
    """One row a key; None if two of them ask different things or have different golds."""
    kept = {}
    for row in rows:
        first = kept.setdefault((row["doc_id"], row["question_id"]), row)
        if any(first[name] != row[name] for name in ("document", "question", "schema", "status")):
            return None
        if first["gold"] is None:
            first["gold"] = row["gold"]
        elif row["gold"] is not None and row["gold"] != first["gold"]:
            return None
    return list(kept.values())


def check(folder, documents, questions, rows):
    """Read the folder and compare with the rows that the model expects."""
    expected = merged(rows)
    read_settings = InputSettings((documents,), (questions,) if questions else ())
    if expected is None:
        with pytest.raises(InputError, match=r"different|differ"):
            read_input(read_settings, folder)
        return
    data = read_input(read_settings, folder)
    found = [
        {
            "doc_id": row.doc_id,
            "question_id": row.question_id,
            "document": data.documents[row.document_hash].text if row.document_hash else None,
            "question": row.question,
            "schema": row.schema,
            "gold": row.gold,
            "extra": row.extra,
            "status": row.problem.status if row.problem else None,
        }
        for row in data.rows
    ]
    assert found == expected
    assert data.merged_rows == len(rows) - len(expected)
    assert all(sha(document.text) == key for key, document in data.documents.items())


def extra_names_of(made):
    known = ("doc_id", "document", "question_id", "question", "questions", "schema", "gold")
    return {name for _, file_columns, *_ in made for name in file_columns if name not in known}


@SETTINGS
@given(files(("document", "question", "doc_id", "question_id")))
def test_long_tables(made):
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), []
        for number, (count, file_columns, table, options) in enumerate(made):
            pq.write_table(table, folder / f"{number}.parquet", **options)
            for row in range(count):
                values = {column: expected[row] for column, (_, _, expected) in file_columns.items()}
                rows.append(expected_row(values, extra_names_of(made)))
        check(folder, ".", None, rows)


@SETTINGS
@given(files(("document", "doc_id")), st.data())
def test_nested_tables(made, data):
    list_kinds = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view, lambda item: pa.list_(item, 2)]
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), []
        parts = []
        for count, file_columns, table, options in made:
            structs, kind = data.draw(st.booleans()), data.draw(st.integers(0, 4))
            items = st.fixed_dictionaries(
                {"question_id": whole(8, True), "question": texts, "page": whole(8, True)}
            )  # fmt: skip
            item = st.none() | items if structs else texts
            lengths = {"min_size": 2, "max_size": 2} if kind == 4 else {"max_size": 3}
            lists = data.draw(st.lists(st.none() | st.lists(item, **lengths), min_size=count, max_size=count))
            fields = [("question_id", pa.int8()), ("question", pa.string()), ("page", pa.int8())]
            questions = pa.array(lists, list_kinds[kind](pa.struct(fields) if structs else pa.string()))
            parts.append((file_columns, lists, structs, table.append_column("questions", questions), options))
        names = extra_names_of(made) | ({"page"} if any(structs for _, _, structs, _, _ in parts) else set())
        for number, (file_columns, lists, structs, table, options) in enumerate(parts):
            pq.write_table(table, folder / f"{number}.parquet", **options)
            for row, asked in enumerate(lists):
                outer = {column: expected[row] for column, (_, _, expected) in file_columns.items()}
                for question in asked or []:
                    inner = (question or {}) if structs else {"question": question}
                    number_text = inner.get("question_id")
                    inner = inner | {"question_id": None if number_text is None else str(number_text)}
                    rows.append(expected_row(outer | inner, names))
        check(folder, ".", None, rows)


@SETTINGS
@given(st.data(), st.booleans())
def test_two_tables(data, joined):
    ids = st.sampled_from([1, 2, 3, 4])
    document_ids = data.draw(st.lists(ids, min_size=1, max_size=5))
    documents = [(key, data.draw(st.sampled_from([f"text {key}", f"text {key}", "other", ""]))) for key in document_ids]
    questions = [
        (data.draw(st.none() | ids), f"q{number}", data.draw(st.sampled_from(["a?", "b?", None])), number)
        for number in range(data.draw(st.integers(0, 4)))
    ]
    by_id = {}
    clash = any(by_id.setdefault(key, text) != text for key, text in documents)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = {"doc_id": [key for key, _ in documents], "document": [text for _, text in documents]}
        pq.write_table(pa.table(table), folder / "d.parquet", row_group_size=data.draw(st.integers(1, 3)))
        asked = {
            "question_id": [key for _, key, _, _ in questions],
            "question": pa.array([text for _, _, text, _ in questions], pa.string()),
            "page": pa.array([page for _, _, _, page in questions], pa.int8()),
        }
        if joined:  # as text in one file, as numbers in the other
            asked["doc_id"] = pa.array([None if key is None else str(key) for key, *_ in questions], pa.string())
        pq.write_table(pa.table(asked), folder / "q.parquet")
        never = joined and questions and not any(key in by_id for key, *_ in questions)
        if clash or never:
            with pytest.raises(InputError, match=r"two different documents|no doc_id of the questions"):
                read_input(InputSettings(("d.parquet",), ("q.parquet",)), folder)
            return
        pairs = [(key, *question[1:]) for key in by_id for question in questions] if not joined else questions
        rows = [
            expected_row(
                {"doc_id": str(key) if key is not None else "", "document": by_id.get(key),
                 "question_id": question_id, "question": text, "page": page},
                {"page"},
            )
            for key, question_id, text, page in pairs
        ]  # fmt: skip
        read = read_input(InputSettings(("d.parquet",), ("q.parquet",)), folder)
        assert read.merged_rows == len(documents) - len(by_id)
        found = [
            (row.doc_id, row.question_id, row.question, row.extra, row.problem and row.problem.status)
            for row in read.rows
        ]
        wanted = ("doc_id", "question_id", "question", "extra", "status")
        assert found == [tuple(row[name] for name in wanted) for row in rows]
