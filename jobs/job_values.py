"""What each setting of the job file may be, and how its value is read: the table `SECTIONS`."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from jobs.job_settings import COLUMN_NAMES, FailureLimit


@dataclass(frozen=True)
class Setting:
    """One setting: `read` returns the resolved value or raises; `allowed` says in words what it takes."""

    allowed: str
    read: Callable[[Any], Any]
    is_text: bool = False
    is_table: bool = False


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _system_text(value: Any) -> str:
    return value if value == "" else _text(value)


def _paths(value: Any) -> tuple[str, ...]:
    return tuple(_text(item) for item in ([value] if isinstance(value, str) else value))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return value


_UNITS = {"": 1, "b": 1} | {
    letter + unit: base**power
    for unit, base in (("b", 1000), ("ib", 1024))
    for power, letter in enumerate("kmgt", start=1)
}


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", value.lower(), re.ASCII)
        if not found or found[2] not in _UNITS:
            raise ValueError
        value = int(Decimal(found[1]) * _UNITS[found[2]])
    return _positive(value)


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        parts = r"\s*".join(rf"(?:(\d+(?:\.\d+)?)\s*{unit})?" for unit in "dhms")
        found = re.fullmatch(rf"\s*{parts}\s*", value.lower(), re.ASCII)
        if not found:
            raise ValueError
        value = sum(float(part or 0) * unit for part, unit in zip(found.groups(), (86400, 3600, 60, 1), strict=True))
    if _number(value) <= 0:
        raise ValueError
    return float(value)


def _failures(value: Any) -> FailureLimit:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return FailureLimit.from_text(str(value))


def _auto_or(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value == "auto" else read(value)


def _choice(*words: str) -> Setting:
    return _pattern("|".join(map(re.escape, words)), " or ".join((", ".join(words[:-1]), words[-1])))


def _pattern(pattern: str, allowed: str) -> Setting:
    def read(value: Any) -> str:
        if not re.fullmatch(pattern, _text(value), re.ASCII):
            raise ValueError
        return value

    return Setting(allowed, read, is_text=True)


def _whole(least: int, most: int = 2**63 - 1) -> Setting:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError
        return value

    return Setting(f"a whole number of at least {least}", read)


_positive = _whole(1).read


def _real(allowed: str, fits: Callable[[float], bool]) -> Setting:
    def read(value: Any) -> float:
        if not fits(_number(value)):
            raise ValueError
        return float(value)

    return Setting(allowed, read)


def _table(allowed: str, names: Sequence[str] | None = None) -> Setting:
    def read(value: Any) -> dict[str, str]:
        if not isinstance(value, Mapping) or not all(names is None or key in names for key in value):
            raise ValueError
        return {key: _text(item) for key, item in value.items()}

    return Setting(allowed, read, is_text=True, is_table=True)


DURATION = Setting('a duration such as "6h", "90m" or "1h30m", or a number of seconds, above 0', _seconds)

_ANY_TEXT = Setting("text in quotes, not empty", _text, is_text=True)
_PATHS = Setting("a path or a list of paths in quotes", _paths, is_text=True)

SECTIONS: dict[str, dict[str, Setting]] = {
    "job": {"name": _ANY_TEXT},
    "input": {
        "documents": _PATHS,
        "questions": _PATHS,
        "on_bad_file": _choice("fail", "skip"),
        "columns": _table(f"a table from {', '.join(COLUMN_NAMES)} to a column's name in quotes", COLUMN_NAMES),
    },
    "prompt": {
        "system": Setting("text in quotes", _system_text, is_text=True),
        "document": _ANY_TEXT,
        "question": _ANY_TEXT,
    },
    "answer": {
        "schema": _ANY_TEXT,
        "schemas": _table("a table from names to schema files in quotes"),
        "lenient": Setting("true or false", _flag),
        "backend": _choice("auto", "index", "llguidance"),
        "confidence": Setting("true or false", _flag),
    },
    "model": {
        "path": _ANY_TEXT,
        "dtype": _choice("auto", "bfloat16", "float16", "float32"),
        "device": _pattern(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N"),
    },
    "engine": {
        "kv_memory": Setting('"auto", a size such as "4GiB" or "512MiB", or a whole number of bytes', _auto_or(_bytes)),
        "page_size": _whole(1),
        "kv_dtype": _choice("auto", "int8", "fp8"),
        "step_tokens": Setting('"auto" or a whole number of at least 1', _auto_or(_positive)),
        "deterministic": Setting("true or false", _flag),
    },
    "sampling": {
        "temperature": _real("a number of at least 0", lambda value: value >= 0),
        "max_tokens": _whole(1),
        "seed": _whole(0),
        "top_p": _real("a number above 0 and up to 1", lambda value: 0 < value <= 1),
        "top_k": _whole(0),
        "samples": _whole(1),
        "choose": _choice("majority", "first"),
    },
    "run": {
        "time_budget": DURATION,
        "max_failures": Setting('a share up to 100% such as "5%", or a whole number of rows', _failures),
        "on_too_long": _choice("error", "truncate", "split"),
    },
    "split": {
        "piece_tokens": Setting('"auto" or a whole number of at least 1', _auto_or(_positive)),
        "overlap_tokens": _whole(0),
        "combine": _ANY_TEXT,
    },
    "output": {"database": _ANY_TEXT},
}
