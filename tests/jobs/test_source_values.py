import datetime
import decimal
import json
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.job_settings import InputSettings
from jobs.source import read_input
from jobs.source_values import id_cells, is_blank, json_cells, text_cells

SECOND = 1_700_000_000
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
CASES = [
    (pa.array(["1", "01"]), ["1", "01"]),
    (pa.array([1, -5], pa.int8()), ["1", "-5"]),
    (pa.array([2**64 - 1, 0], pa.uint64()), ["18446744073709551615", "0"]),
    (pa.array([True, False]), ["true", "false"]),
    (pa.array([decimal.Decimal("1.00"), decimal.Decimal("1.01")], pa.decimal128(20, 2)), ["1.00", "1.01"]),
    (pa.array([decimal.Decimal("0E-10"), decimal.Decimal(1)], pa.decimal128(20, 10)), ["0.0000000000", "1.0000000000"]),
    (
        pa.array([SECOND * 10**9 + 1, SECOND * 10**9 + 2], pa.timestamp("ns")),
        ["2023-11-14T22:13:20.000000001", "2023-11-14T22:13:20.000000002"],
    ),
    (
        pa.array([SECOND * 10**6, 1], pa.timestamp("us", "Europe/Berlin")),
        ["2023-11-14T22:13:20.000000Z", "1970-01-01T00:00:00.000001Z"],
    ),
    (pa.array([datetime.date(2024, 2, 29), datetime.date(1, 1, 1)]), ["2024-02-29", "0001-01-01"]),
    (pa.array([86_399_999_999_999, 1], pa.time64("ns")), ["23:59:59.999999999", "00:00:00.000000001"]),
    (pa.array([61_001, 0], pa.time32("ms")), ["00:01:01.001", "00:00:00.000"]),
    (pa.array([b"\x00\xff", b""]), ["00ff", ""]),
    (pa.array([ID.bytes, bytes(16)], pa.binary(16)), [ID.hex, "0" * 32]),
    (pa.array([ID.bytes, bytes(16)], pa.uuid()), [str(ID), str(uuid.UUID(int=0))]),
    (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
    (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
    (pa.array([7, 8]).dictionary_encode(), ["7", "8"]),
    (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    (pa.nulls(2), [None, None]),
]


@pytest.mark.parametrize(("array", "texts"), CASES, ids=[str(array.type) for array, _ in CASES])
def test_ids_have_one_exact_text(tmp_path, array, texts):
    """Case 10: also through a file, where types change, and after a slice, as offsets are easily forgotten."""
    with_null = pa.concat_arrays([array, pa.nulls(1, array.type)]) if array.type != pa.nulls(1).type else array
    assert [cell.value for cell in id_cells(with_null)[:2]] == texts
    assert [cell.value for cell in id_cells(with_null)[2:]] == [None] * (len(with_null) - 2)
    assert [cell.value for cell in id_cells(array.slice(1))] == texts[1:]
    columns = {"doc_id": array, "question_id": array, "document": ["x", "y"], "question": ["a", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = read_input(InputSettings(("a.parquet",)), tmp_path).rows
    if texts[0] is not None:
        assert [row.doc_id for row in rows] == [row.question_id for row in rows] == texts


@pytest.mark.parametrize(
    "text_type",
    [
        pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()), pa.json_(),
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_text_column_is_read(tmp_path, text_type):
    plain = pa.array(["ä", None, "b", "ä"])
    if pa.types.is_dictionary(text_type):
        array = plain.dictionary_encode().cast(text_type)
    elif isinstance(text_type, pa.BaseExtensionType):
        array = pa.ExtensionArray.from_storage(text_type, plain)
    else:
        values = plain.to_pylist()
        binary = "binary" in str(text_type)
        array = pa.array([v.encode() if v and binary else v for v in values], text_type)
    assert [cell.value for cell in text_cells(array)] == ["ä", None, "b", "ä"]
    assert [cell.value for cell in text_cells(array.slice(2))] == ["b", "ä"]
    columns = {"doc_id": [1, 2, 3, 4], "document": array, "question": array}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    data = read_input(InputSettings(("a.parquet",)), tmp_path)
    assert [row.question for row in data.rows] == ["ä", None, "b", "ä"]
    assert sorted(document.text for document in data.documents.values()) == ["b", "ä"]


def test_carried_values_are_json():
    struct = {"day": datetime.date(2024, 1, 2), "raw": b"\x01", "list": [1.5, float("nan"), None], "none": None}
    plain = {"day": "2024-01-02", "raw": "01", "list": [1.5, None, None]}
    arrays = {
        "struct": (pa.array([struct, None]), [struct | plain, None]),
        "infinite": (pa.array([float("inf"), 0.1]), [None, 0.1]),
        "half": (pa.array([1.5, None], pa.float16()), [1.5, None]),
        "lists": (pa.array([[["a"], None, []], None]), [[["a"], None, []], None]),
        "fixed": (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), [[1, 2], None, [3, 4]]),
        "view": (pa.array([[1, 2], None, [3]], pa.list_view(pa.int8())), [[1, 2], None, [3]]),
        "map": (pa.array([[("a", 1), ("b", None)], None], pa.map_("string", "int8")), [{"a": 1, "b": None}, None]),
        "number map": (pa.array([[(1, "x")]], pa.map_(pa.int8(), pa.string())), [[{"key": 1, "value": "x"}]]),
        "decimal": (pa.array([decimal.Decimal("1.10")]), ["1.10"]),
        "duration": (pa.array([1500], pa.duration("ms")), ["1500 ms"]),
        "stamp": (pa.array([1, None], pa.timestamp("s")), ["1970-01-01T00:00:01", None]),
        "far": (pa.array([2**40], pa.timestamp("s")), ["36812-02-20T00:36:16"]),
        "dictionary": (pa.array(["x", None]).dictionary_encode(), ["x", None]),
    }  # fmt: skip
    for name, (array, expected) in arrays.items():
        values, bad = json_cells(array)
        assert values == expected, name
        assert bad == {}
        assert json_cells(array.slice(1))[0] == expected[1:], name
        json.dumps(values, allow_nan=False)


def test_blank_means_that_nothing_can_be_seen():
    for text in (None, "", " \t\r\n", "\u00a0\u3000", "\u200b\u200d", "\ufeff"):
        assert is_blank(text)
    for text in ("x", " \u200b.", "\u200b中"):
        assert not is_blank(text)
