"""The job file: TOML in, frozen settings out, every value resolved once.

`load_job` reads a file, `job_from_settings` takes the same settings as a dictionary; both return a `Job`.
A setting's rules stand once, in `job_values.SECTIONS`.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.errors import JobFileError
from jobs.job_settings import SECTION_CLASSES, Job
from jobs.job_values import SECTIONS, Setting


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
        if error.object[8:12] == b"DUCK":
            raise JobFileError(f"{path} is a DuckDB database; give the job file (TOML) whose answers it has") from None
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
    parts = {section: made(**resolved.get(section, {})) for section, made in SECTION_CLASSES.items()}
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


def _override_value(value: str, setting: Setting) -> Any:
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
