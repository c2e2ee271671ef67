"""The job file: TOML in, frozen settings out, every value resolved once.

`load_job` reads a file, `job_from_settings` takes the same settings as a dictionary; both return a `Job`.
A setting's rules stand once, in the `SECTIONS` table; the dataclasses hold what came out of it.
"""

import dataclasses
import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from jobs.errors import JobFileError

DEFAULT_SYSTEM = "You answer questions about one document. Reply with one JSON object."
DEFAULT_DOCUMENT = "Document:\n{{ document }}"
DEFAULT_QUESTION = "Question: {{ question }}"
DEFAULT_MODEL = "smollm2-135m-instruct"

# What [input.columns] may map: the names the input layouts know.
COLUMN_NAMES = ("doc_id", "document", "question_id", "question", "questions", "schema", "gold")


@dataclass(frozen=True)
class FailureLimit:
    """How many rows may fail: a share of all rows, or a count. Exactly one of the two is set."""

    share: Fraction | None = None
    count: int | None = None

    @classmethod
    def from_text(cls, text: str) -> "FailureLimit":
        """Read `5%`, `2.5%` or `10`. Raises ValueError for anything else, and above 100%."""
        found = re.fullmatch(r"\s*(?:(\d+(?:\.\d+)?)\s*%|(\d+))\s*", text, re.ASCII)
        if not found or (found[1] and Decimal(found[1]) > 100):
            raise ValueError(text)
        return cls(count=int(found[2])) if found[2] else cls(share=Fraction(found[1]) / 100)

    def exceeded(self, failed: int, total: int) -> bool:
        """Whether `failed` of `total` rows are more than allowed; exactly the limit is still allowed."""
        return failed > (self.count if self.share is None else self.share * total)  # type: ignore[operator]

    def __str__(self) -> str:
        # A share came from a decimal text, so as a percentage it is a finite decimal again.
        return str(self.count) if self.share is None else f"{float(self.share * 100):.15g}%"


@dataclass(frozen=True)
class InputSettings:
    """`[input]`: where documents and questions are; `columns` maps a wanted name to a file's own column name."""

    documents: tuple[str, ...]
    questions: tuple[str, ...] = ()
    on_bad_file: str = "fail"
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptSettings:
    """`[prompt]`: the text parts of a prompt, as templates; shared text first, the question last."""

    system: str = DEFAULT_SYSTEM
    document: str = DEFAULT_DOCUMENT
    question: str = DEFAULT_QUESTION


@dataclass(frozen=True)
class AnswerSettings:
    """`[answer]`: the schema of answers (a file or a stock name), and the names a row's `schema` may use."""

    schema: str | None = None
    schemas: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSettings:
    """`[model]`: which weights, in which number format, on which device."""

    path: str = DEFAULT_MODEL
    dtype: str = "auto"
    device: str = "auto"


@dataclass(frozen=True)
class EngineSettings:
    """`[engine]`: `kv_memory` in bytes and `step_tokens` in tokens; None means that the engine decides."""

    kv_memory: int | None = None
    page_size: int = 16
    step_tokens: int | None = None
    deterministic: bool = False


@dataclass(frozen=True)
class SamplingSettings:
    """`[sampling]`: `top_k` 0 and `top_p` 1.0 mean off."""

    temperature: float = 0.0
    max_tokens: int = 256
    seed: int = 0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class RunSettings:
    """`[run]`: `time_budget` in seconds, None for no limit."""

    time_budget: float | None = None
    max_failures: FailureLimit = field(default_factory=lambda: FailureLimit.from_text("5%"))
    on_too_long: str = "error"


@dataclass(frozen=True)
class OutputSettings:
    """`[output]`: the DuckDB file."""

    database: str = "answers.duckdb"


@dataclass(frozen=True)
class Job:
    """A whole job. Paths are kept as written; relative ones are relative to `folder` (see `resolve_path`)."""

    name: str
    input: InputSettings
    prompt: PromptSettings
    answer: AnswerSettings
    model: ModelSettings
    engine: EngineSettings
    sampling: SamplingSettings
    run: RunSettings
    output: OutputSettings
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready settings to store with a run; `job_from_settings` makes the same job of them."""
        settings: dict[str, Any] = {"job": {"name": self.name}}
        for section in _SECTION_CLASSES:
            values = {
                f.name: getattr(getattr(self, section), f.name) for f in dataclasses.fields(_SECTION_CLASSES[section])
            }
            settings[section] = {key: _plain(value) for key, value in values.items()}
        for key in ("kv_memory", "step_tokens"):
            if settings["engine"][key] is None:
                settings["engine"][key] = "auto"
        return settings


_SECTION_CLASSES: dict[str, type] = {
    "input": InputSettings,
    "prompt": PromptSettings,
    "answer": AnswerSettings,
    "model": ModelSettings,
    "engine": EngineSettings,
    "sampling": SamplingSettings,
    "run": RunSettings,
    "output": OutputSettings,
}


@dataclass(frozen=True)
class _Setting:
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


def _choice(*words: str) -> _Setting:
    return _pattern("|".join(map(re.escape, words)), " or ".join((", ".join(words[:-1]), words[-1])))


def _pattern(pattern: str, allowed: str) -> _Setting:
    def read(value: Any) -> str:
        if not re.fullmatch(pattern, _text(value), re.ASCII):
            raise ValueError
        return value

    return _Setting(allowed, read, is_text=True)


def _whole(least: int, most: int = 2**63 - 1) -> _Setting:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError
        return value

    return _Setting(f"a whole number of at least {least}", read)


_positive = _whole(1).read


def _real(allowed: str, fits: Callable[[float], bool]) -> _Setting:
    def read(value: Any) -> float:
        if not fits(_number(value)):
            raise ValueError
        return float(value)

    return _Setting(allowed, read)


def _table(allowed: str, names: Sequence[str] | None = None) -> _Setting:
    def read(value: Any) -> dict[str, str]:
        if not isinstance(value, Mapping) or not all(names is None or key in names for key in value):
            raise ValueError
        return {key: _text(item) for key, item in value.items()}

    return _Setting(allowed, read, is_text=True, is_table=True)


_ANY_TEXT = _Setting("text in quotes, not empty", _text, is_text=True)
_PATHS = _Setting("a path or a list of paths in quotes", _paths, is_text=True)

SECTIONS: dict[str, dict[str, _Setting]] = {
    "job": {"name": _ANY_TEXT},
    "input": {
        "documents": _PATHS,
        "questions": _PATHS,
        "on_bad_file": _choice("fail", "skip"),
        "columns": _table(f"a table from {', '.join(COLUMN_NAMES)} to a column's name in quotes", COLUMN_NAMES),
    },
    "prompt": {
        "system": _Setting("text in quotes", _system_text, is_text=True),
        "document": _ANY_TEXT,
        "question": _ANY_TEXT,
    },
    "answer": {"schema": _ANY_TEXT, "schemas": _table("a table from names to schema files in quotes")},
    "model": {
        "path": _ANY_TEXT,
        "dtype": _choice("auto", "bfloat16", "float16", "float32"),
        "device": _pattern(r"auto|cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N"),
    },
    "engine": {
        "kv_memory": _Setting(
            '"auto", a size such as "4GiB" or "512MiB", or a whole number of bytes', _auto_or(_bytes)
        ),
        "page_size": _whole(1),
        "step_tokens": _Setting('"auto" or a whole number of at least 1', _auto_or(_positive)),
        "deterministic": _Setting("true or false", _flag),
    },
    "sampling": {
        "temperature": _real("a number of at least 0", lambda value: value >= 0),
        "max_tokens": _whole(1),
        "seed": _whole(0),
        "top_p": _real("a number above 0 and up to 1", lambda value: 0 < value <= 1),
        "top_k": _whole(0),
    },
    "run": {
        "time_budget": _Setting('a duration such as "6h", "90m" or "1h30m", or a number of seconds, above 0', _seconds),
        "max_failures": _Setting('a share up to 100% such as "5%", or a whole number of rows', _failures),
        "on_too_long": _pattern("error", '"error" (truncate and split are not built yet, use "error")'),
    },
    "output": {"database": _ANY_TEXT},
}


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file; `overrides` are `section.key=value` strings that win over it.

    Raises JobFileError for a file that can't be read or parsed, an unknown key, or a value that isn't allowed.
    """
    path = Path(path)
    try:
        content = path.read_bytes().decode("utf-8-sig")  # editors on Windows write a byte order mark
    except OSError as error:
        raise JobFileError(
            f"{path}: the job file can't be read ({error.strerror}); give the path of a TOML file"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise JobFileError(f"{path}, line {line}: the job file is not UTF-8 text; save it as UTF-8") from None
    try:
        settings = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise JobFileError(_syntax_message(path, content, error)) from None
    return job_from_settings(settings, path.parent, overrides, source=str(path), name=path.stem)


def job_from_settings(
    settings: Mapping[str, Any],
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    source: str = "the settings",
    name: str = "docqa",
) -> Job:
    """Make a job of settings shaped like the job file.

    A value of None counts as not given. `source` is how messages call the settings, `name` the job's default name.
    """
    sections: dict[str, dict[str, Any]] = {}
    for section, values in settings.items():
        if section not in SECTIONS:
            raise JobFileError(f"{source}: {_unknown_section(section)}")
        if not isinstance(values, Mapping):
            raise JobFileError(f"{source}: [{section}] must be a table of settings, not {values!r}")
        sections[section] = dict(values)
    places: dict[tuple[str, str], str] = {}
    for override in overrides:
        _apply_override(sections, places, override)

    resolved: dict[str, dict[str, Any]] = {}
    for section, values in sections.items():
        resolved[section] = {}
        for key, value in values.items():
            place = places.get((section, key), source)
            if key not in SECTIONS[section]:
                raise JobFileError(f"{place}: {_unknown_key(section, key)}")
            if value is None:
                continue
            try:
                resolved[section][key] = SECTIONS[section][key].read(value)
            except (ValueError, TypeError):
                allowed = SECTIONS[section][key].allowed
                raise JobFileError(f"{place}: {section}.{key} is {_shown(value)}; allowed is {allowed}") from None
    if not resolved.get("input", {}).get("documents"):
        raise JobFileError(
            f'{source}: input.documents is missing; set it to the Parquet files, as in documents = "in/*.parquet"'
        )
    parts = {section: made(**resolved.get(section, {})) for section, made in _SECTION_CLASSES.items()}
    return Job(name=resolved.get("job", {}).get("name", name), folder=Path(folder), **parts)


def resolve_path(job: Job, path: str) -> Path:
    """The file that a setting names: relative to the job's folder, `~/` being the user's home."""
    return job.folder / (Path(path).expanduser() if path.startswith("~/") else Path(path))


def _apply_override(sections: dict[str, dict[str, Any]], places: dict[tuple[str, str], str], override: str) -> None:
    path, equals, value = override.partition("=")
    section, *keys = [part.strip() for part in path.split(".")]
    place = f"--set {override}"
    if not equals or not keys or not all(keys):
        raise JobFileError(f"{place}: write it as section.key=value, as in engine.kv_memory=4GiB")
    if section not in SECTIONS:
        raise JobFileError(f"{place}: {_unknown_section(section)}")
    key, *inner = keys
    if key not in SECTIONS[section]:
        raise JobFileError(f"{place}: {_unknown_key(section, key)}")
    setting = SECTIONS[section][key]
    if bool(inner) != setting.is_table or len(inner) > 1:
        wanted = f"{section}.{key}.NAME=value" if setting.is_table else f"{section}.{key}=value"
        raise JobFileError(f"{place}: write it as {wanted}")
    places[(section, key)] = place
    parsed = _override_value(value.strip(), setting)
    values = sections.setdefault(section, {})
    if inner:
        table = values.get(key) or {}
        if not isinstance(table, Mapping):
            raise JobFileError(f"{place}: {section}.{key} is {_shown(table)} in the job file, and a table is allowed")
        values[key] = {**table, inner[0]: parsed}
    else:
        values[key] = parsed


def _override_value(value: str, setting: _Setting) -> Any:
    try:
        table = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return value
    parsed = table["value"]
    # A newline in the text could smuggle in more keys; and a name such as 2024 is text where text is wanted.
    if len(table) > 1 or (setting.is_text and not isinstance(parsed, str | list)):
        return value
    return parsed


def _unknown_section(name: str) -> str:
    for section, keys in SECTIONS.items():
        if name in keys:
            return f"{name!r} stands outside its section; it belongs in [{section}], as {section}.{name}"
    return f"unknown section [{name}]; the nearest known one is [{_nearest(name, SECTIONS)}]"


def _unknown_key(section: str, key: str) -> str:
    for other, keys in SECTIONS.items():
        if key in keys:
            return f"{section}.{key} is not known, but {other}.{key} is; move it to [{other}]"
    return f"unknown key {section}.{key}; the nearest known one is {section}.{_nearest(key, SECTIONS[section])}"


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    return difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.0)[0]


def _syntax_message(path: Path, content: str, error: tomllib.TOMLDecodeError) -> str:
    reason, line, column = str(error), content.count("\n") + 1, len(content.rsplit("\n", 1)[-1]) + 1
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", reason)
    if found:
        reason = reason[: found.start()]
        if found[1]:
            line, column = int(found[1]), int(found[2])
    return f"{path}, line {line}, column {column}: not valid TOML: {reason}"


def _shown(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, FailureLimit):
        return str(value) if value.count is None else value.count
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
