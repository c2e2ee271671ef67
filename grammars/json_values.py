"""Single values as literal JSON text, and values that may be anything."""

import json
from typing import Any

from .characters import EVERYTHING, CharacterSet
from .errors import UnsupportedSchema
from .fragment import Fragment, choice, json_character, literal, repeat, separated, sequence
from .number_ranges import any_number


def value_text(value: Any, alphabet: CharacterSet, path: str) -> str:
    """The compact JSON text of a value, with `\\u` escapes only if the vocabulary lacks its characters."""
    for ensure_ascii in (False, True):
        text = json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":"), allow_nan=False)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UnsupportedSchema(path, "", "it holds a lone surrogate, which no UTF-8 text can")
        if all(character in alphabet for character in set(text)):
            return text
    raise UnsupportedSchema(path, "", f"the model's vocabulary can't spell {text[:60]}")


def any_string(alphabet: CharacterSet) -> Fragment:
    """Any JSON string."""
    character = json_character(EVERYTHING, alphabet)
    assert character is not None
    return sequence([literal('"'), repeat(character, 0, None), literal('"')])


def any_value(depth: int, alphabet: CharacterSet) -> Fragment:
    """Any JSON value whose arrays and objects are nested at most `depth` deep."""
    text = any_string(alphabet)
    scalars = [text, any_number(), literal("true"), literal("false"), literal("null")]
    value = choice([*scalars, literal("[]"), literal("{}")])
    for _ in range(depth):
        value = choice([*scalars, any_array(value), any_object(value, alphabet)])
    return value


def any_array(value: Fragment) -> Fragment:
    """An array of any number of values."""
    return sequence([literal("["), separated(value, 0, None), literal("]")])


def any_object(value: Fragment, alphabet: CharacterSet) -> Fragment:
    """An object of any number of values under any keys."""
    entry = sequence([any_string(alphabet), literal(":"), value])
    return sequence([literal("{"), separated(entry, 0, None), literal("}")])
