"""Checks a finished answer: strict JSON first, then the whole JSON Schema, whatever the grammar could enforce."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import regex
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from jsonschema_specifications import REGISTRY

MAXIMUM_ERROR_CHARACTERS = 300
"""Longest error text; a message of jsonschema quotes the instance, which can be a whole document."""

PATTERN_TIMEOUT_SECONDS = 1.0
"""Longest search of one `pattern` in one string; a catastrophic pattern would otherwise hold the run for ever."""

_SURROGATE = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")
_ECMA_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_"}


@dataclass(frozen=True, slots=True)
class Validated:
    """What became of a text: `value` is the parsed JSON (None if it is not JSON), `error` one sentence or None."""

    value: Any
    error: str | None


class BadSchemaError(ValueError):
    """The text of a schema is no JSON Schema (draft 2020-12); the message says where and why."""


class AnswerValidator:
    """One compiled schema; may be shared by threads.

    `format` is an annotation in draft 2020-12 and not asserted. A `$ref` to another document is never fetched.
    Raises BadSchemaError for what is no schema.
    """

    def __init__(self, schema: dict[str, Any] | bool):
        try:
            Draft202012Validator.check_schema(schema, format_checker=_SCHEMA_FORMATS)
        except SchemaError as error:
            raise BadSchemaError(_one_sentence(f"not a JSON Schema: {_located(error)}")) from None
        except RecursionError:
            raise BadSchemaError("not a JSON Schema: nested too deeply") from None
        self.schema = schema
        # The registry is given, because without one jsonschema fetches remote references over the network.
        self._validator: Validator = _Draft202012(schema, registry=REGISTRY)

    def check(self, text: str) -> Validated:
        """Parse `text` strictly and hold it against the schema. Never raises: what goes wrong is the error text."""
        try:
            value = parse_strict(text)
        except ValueError as error:
            return Validated(None, _one_sentence(f"not valid JSON: {error}"))
        try:
            found = best_match(self._validator.iter_errors(value))
        except TimeoutError as timeout:
            return Validated(value, _one_sentence(str(timeout)))
        except RecursionError:
            return Validated(value, "the answer or its schema recurses too deeply to be checked")
        except Exception as failure:  # an unresolvable $ref, a multipleOf that overflows: a row's error, not the run's
            return Validated(value, _one_sentence(f"the schema could not be checked: {failure}"))
        return Validated(value, None if found is None else _one_sentence(_located(found)))


def parse_strict(text: str) -> Any:
    """The value of a JSON text by RFC 8259, read more strictly than `json.loads` does.

    Raises ValueError (its message names the fault) for NaN and Infinity, for numbers beyond a double, for an object
    that has a key twice (also when one of them is written with escapes), and for surrogates that form no character.
    """
    try:
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite_float, object_pairs_hook=_unique_keys
        )
        if _SURROGATE.search(text):  # escapes may form pairs, so only the parsed strings tell
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate is no character") from None
    return value


def canonical_schema(schema: dict[str, Any] | bool) -> str:
    """Compact JSON with the keys in their order, which decides the order of keys in answers; used in digests."""
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if _SURROGATE.search(text):
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is out of range")
    return number


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {json.dumps(repeated)} stands twice in one object")
    return mapping


def _located(error: ValidationError | SchemaError) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return f"at ${path}: {error.message}"


def _one_sentence(text: str) -> str:
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    if len(line) > MAXIMUM_ERROR_CHARACTERS:
        # The end of a message says what was wrong, its beginning where; the middle is the quoted instance.
        half = MAXIMUM_ERROR_CHARACTERS // 2 - 2
        line = f"{line[:half]} … {line[-half:]}"
    return line


def _python_pattern(pattern: str) -> str:
    """A pattern of ECMA-262 as the `regex` module reads it.

    ECMA's `\\d` and `\\w` are ASCII (Python's are not) and its `$` is the very end (Python's also matches before a
    last line break). The ASCII flag is no way out, because it takes `\\p{L}` down to ASCII as well.
    """
    pieces: list[str] = []
    in_class = False
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\" and position + 1 < len(pattern):
            escaped = pattern[position + 1]
            members = _ECMA_CLASSES.get(escaped.lower())
            if members is None or (in_class and escaped.isupper()):
                pieces.append(character + escaped)
            elif in_class:
                pieces.append(members)
            else:
                pieces.append(f"[^{members}]" if escaped.isupper() else f"[{members}]")
            position += 2
            continue
        if character == "[":
            # `[` inside a class is a plain character in ECMA; regex's newer syntax would warn about set operations.
            pieces.append(r"\[" if in_class else "[")
            in_class = True
        elif character == "]":
            in_class = False
            pieces.append("]")
        elif character == "$" and not in_class:
            pieces.append(r"\Z")
        else:
            pieces.append(character)
        position += 1
    return "".join(pieces)


def _matches(pattern: str, text: str) -> bool:
    try:
        return (
            regex.search(_python_pattern(pattern), text, timeout=PATTERN_TIMEOUT_SECONDS, concurrent=True) is not None
        )
    except TimeoutError:
        raise TimeoutError(
            f"the pattern {pattern[:80]!r} took longer than {PATTERN_TIMEOUT_SECONDS:g} s on one string"
        ) from None


_SCHEMA_FORMATS = FormatChecker(formats=())
"""Formats asserted of schemas: only that a pattern is one, and by the engine that will search it."""


@_SCHEMA_FORMATS.checks("regex", raises=regex.error)
def _is_pattern(pattern: object) -> bool:
    if isinstance(pattern, str):
        regex.compile(_python_pattern(pattern))
    return True


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Validator, patterns: dict[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Validator, additional: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    declared = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in declared or any(_matches(pattern, name) for pattern in patterns):
            continue
        if additional is False:
            yield ValidationError(f"the key {json.dumps(name, ensure_ascii=False)} is not allowed")
        elif additional is not True:
            yield from validator.descend(value, additional, path=name)


# jsonschema searches patterns with `re`, which can't be stopped; these three keywords do it with a time limit.
# NOTE: unevaluatedProperties beside patternProperties still searches property names with `re`.
_Draft202012 = extend(
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)
