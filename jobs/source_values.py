"""Arrow values as Python values: texts that may hold bad UTF-8, ids as exact text, anything as JSON.

Text columns are decoded here, value by value, because one bad byte must cost one row and not the file.
"""

import math
import re
import uuid
from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute as pc

ID_TYPES = "text, whole numbers, decimals, booleans, dates, times, timestamps, binary or uuid"

# White space, and characters that take no space: zero-width space and joiners, direction marks, byte order mark.
_VISIBLE = re.compile("[^\\s\u180e\u200b-\u200f\u2060\ufeff]")


@dataclass(frozen=True, slots=True)
class Text:
    """A text value; None for null. `bad` says which byte is not UTF-8; `value` then holds it escaped."""

    value: str | None
    bad: str | None = None


NULL = Text(None)


def is_blank(text: str | None) -> bool:
    """Whether a text is null, empty, or holds nothing that can be seen."""
    return text is None or _VISIBLE.search(text) is None


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type of the values themselves: without dictionary coding and without extension, except for uuid."""
    while True:
        if pa.types.is_dictionary(data_type):
            data_type = data_type.value_type
        elif isinstance(data_type, pa.BaseExtensionType) and not _is_uuid(data_type):
            data_type = data_type.storage_type
        else:
            return data_type


def is_text_type(data_type: pa.DataType) -> bool:
    """Whether a column can hold documents or questions: text, binary with UTF-8 in it, or nothing but null."""
    data_type = plain_type(data_type)
    return pa.types.is_null(data_type) or _is_string(data_type) or _is_binary(data_type)


def is_id_type(data_type: pa.DataType) -> bool:
    """Whether values of a type have one exact text; floats don't, nor do nested values."""
    data_type = plain_type(data_type)
    is_ = pa.types
    return (
        is_text_type(data_type)
        or _is_uuid(data_type)
        or any(
            test(data_type)
            for test in (
                is_.is_integer, is_.is_boolean, is_.is_decimal, is_.is_timestamp,
                is_.is_date, is_.is_time, is_.is_fixed_size_binary,
            )
        )
    )  # fmt: skip


def is_list_type(data_type: pa.DataType) -> bool:
    """Whether a type is a list of any of Arrow's five kinds."""
    is_ = pa.types
    tests = (is_.is_list, is_.is_large_list, is_.is_list_view, is_.is_large_list_view, is_.is_fixed_size_list)
    return any(test(data_type) for test in tests)


def text_cells(array: pa.Array) -> list[Text]:
    """A text or binary column, decoded as UTF-8. Equal values of a dictionary share one `Text`."""
    array = _storage(array)
    if pa.types.is_null(array.type):
        return [NULL] * len(array)
    if not pa.types.is_dictionary(array.type):
        return [_decoded(value) for value in _as_binary(array).to_pylist()]
    dictionary = _as_binary(_storage(array.dictionary))
    known: dict[int | None, Text] = {None: NULL}
    cells = []
    for index in array.indices.to_pylist():
        cell = known.get(index)
        if cell is None:
            cell = known[index] = _decoded(dictionary[index].as_py())
        cells.append(cell)
    return cells


def id_cells(array: pa.Array) -> list[Text]:
    """An id column as text: the same id is the same text in every file, different ids are different texts."""
    data_type = plain_type(array.type)
    if pa.types.is_null(data_type) or _is_string(data_type):
        return text_cells(array)
    return [NULL if value is None else Text(str(value)) for value in _id_values(_without_dictionary(array))]


def _id_values(array: pa.Array) -> list[Any]:
    values, _ = json_cells(array)
    if pa.types.is_boolean(array.type):
        return [None if value is None else str(value).lower() for value in values]
    return values


def json_cells(array: pa.Array) -> tuple[list[Any], dict[int, str]]:
    """Any column as JSON-ready values, and which of them held text that is not UTF-8, with the reason.

    Exact where JSON has no such type: decimals, dates, times and timestamps become text, bytes hex digits; NaN and
    infinite become null.
    """
    bad: dict[int, str] = {}
    reader = _JsonReader()
    values = reader.read(array)
    if reader.found_bad:
        for row, value in enumerate(values):
            values[row], broken = _repaired(value)
            if broken:
                bad[row] = "it holds text that is not UTF-8"
    return values, bad


class _JsonReader:
    def __init__(self) -> None:
        self.found_bad = False

    def read(self, array: pa.Array) -> list[Any]:
        array = _storage(array)
        data_type, is_ = array.type, pa.types
        if is_.is_dictionary(data_type):
            values = self.read(array.dictionary)
            return [None if index is None else values[index] for index in array.indices.to_pylist()]
        if _is_uuid(data_type):
            return [None if value is None else str(uuid.UUID(bytes=value)) for value in array.storage.to_pylist()]
        if _is_string(data_type):
            return [None if value is None else self._text(value) for value in _as_binary(array).to_pylist()]
        if _is_binary(data_type) or is_.is_fixed_size_binary(data_type):
            return [None if value is None else value.hex() for value in array.to_pylist()]
        if is_.is_floating(data_type):
            return [value if value is not None and math.isfinite(value) else None for value in array.to_pylist()]
        if is_.is_decimal(data_type):
            return [None if value is None else format(value, "f") for value in array.to_pylist()]
        if is_.is_timestamp(data_type) or is_.is_date(data_type):
            return _iso_dates(array)
        if is_.is_time(data_type) or is_.is_duration(data_type):
            return _iso_times(array)
        if is_.is_map(data_type):
            pairs = pa.list_(pa.struct([("key", data_type.key_type), ("value", data_type.item_type)]))
            return [_object(items) for items in self.read(array.cast(pairs))]
        if is_list_type(data_type):
            values, start, lists = self.read(array.flatten()), 0, []
            for length in pc.list_value_length(array).to_pylist():
                lists.append(None if length is None else values[start : start + length])
                start += length or 0
            return lists
        if is_.is_struct(data_type):
            names = [field.name for field in data_type]
            columns = [self.read(child) for child in array.flatten()]
            rows = zip(*columns, strict=True) if columns else [()] * len(array)
            valid = array.is_valid().to_pylist()
            return [dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, valid, strict=True)]
        if is_.is_null(data_type) or is_.is_boolean(data_type) or is_.is_integer(data_type):
            return array.to_pylist()
        return [None if value is None else str(value) for value in array.to_pylist()]

    def _text(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError:
            self.found_bad = True
            return value.decode("utf-8", "surrogateescape")


def _repaired(value: Any) -> tuple[Any, bool]:
    """A value with escaped bytes in place of the lone surrogates that stand for bad ones, and whether it had any."""
    if isinstance(value, str):
        fixed = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return fixed, fixed != value
    if isinstance(value, list):
        items = [_repaired(item) for item in value]
        return [item for item, _ in items], any(bad for _, bad in items)
    if isinstance(value, dict):
        pairs = [(_repaired(key), _repaired(item)) for key, item in value.items()]
        return {key: item for (key, _), (item, _) in pairs}, any(bad or worse for (_, bad), (_, worse) in pairs)
    return value, False


def _decoded(value: bytes | None) -> Text:
    if value is None:
        return NULL
    try:
        return Text(value.decode())
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1} (0x{value[error.start]:02x}) is not UTF-8"
        return Text(value.decode("utf-8", "backslashreplace"), reason)


def _iso_dates(array: pa.Array) -> list[str | None]:
    """Dates and timestamps with every digit they have; with a time zone they are given in UTC, marked Z.

    Through numpy, because Python's datetime ends at microseconds and at the year 9999.
    """
    data_type = array.type
    unit = "D" if pa.types.is_date32(data_type) else "ms" if pa.types.is_date64(data_type) else data_type.unit
    numbers = array.cast(pa.int32() if pa.types.is_date32(data_type) else pa.int64())
    stamps = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype("int64").astype(f"datetime64[{unit}]")
    if pa.types.is_date64(data_type):
        stamps = stamps.astype("datetime64[D]")
    zone = "Z" if pa.types.is_timestamp(data_type) and data_type.tz else ""
    texts = numpy.datetime_as_string(stamps).tolist()
    return [f"{text}{zone}" if valid else None for text, valid in zip(texts, array.is_valid().to_pylist(), strict=True)]


def _iso_times(array: pa.Array) -> list[str | None]:
    """Times of day as 12:34:56.789, durations as a number with its unit, both with every digit."""
    unit = array.type.unit
    numbers = array.cast(pa.int32() if pa.types.is_time32(array.type) else pa.int64()).to_pylist()
    if pa.types.is_duration(array.type):
        return [None if number is None else f"{number} {unit}" for number in numbers]
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    texts: list[str | None] = []
    for number in numbers:
        if number is None:
            texts.append(None)
            continue
        seconds, rest = divmod(number, 10**digits)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        texts.append(f"{clock}.{rest:0{digits}}" if digits else clock)
    return texts


def _object(items: list[dict[str, Any]] | None) -> Any:
    """A map: an object if its keys are texts, else the list of its pairs."""
    if items is None:
        return None
    keys = [item["key"] for item in items]
    if all(isinstance(key, str) for key in keys) and len(set(keys)) == len(keys):
        return {item["key"]: item["value"] for item in items}
    return items


def _storage(array: pa.Array) -> pa.Array:
    while isinstance(array.type, pa.BaseExtensionType) and not _is_uuid(array.type):
        array = array.storage
    return array


def _without_dictionary(array: pa.Array) -> pa.Array:
    array = _storage(array)
    return _storage(array.dictionary_decode()) if pa.types.is_dictionary(array.type) else array


def _as_binary(array: pa.Array) -> pa.Array:
    """The same bytes without the promise that they are UTF-8, which Arrow would otherwise fail on."""
    is_ = pa.types
    if is_.is_string(array.type):
        return array.view(pa.binary())
    if is_.is_large_string(array.type):
        return array.view(pa.large_binary())
    return array.view(pa.binary_view()) if is_.is_string_view(array.type) else array


def _is_string(data_type: pa.DataType) -> bool:
    is_ = pa.types
    return is_.is_string(data_type) or is_.is_large_string(data_type) or is_.is_string_view(data_type)


def _is_binary(data_type: pa.DataType) -> bool:
    is_ = pa.types
    return is_.is_binary(data_type) or is_.is_large_binary(data_type) or is_.is_binary_view(data_type)


def _is_uuid(data_type: pa.DataType) -> bool:
    return isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name == "arrow.uuid"
