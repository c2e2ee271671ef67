"""Cases of NEEDS.md about grammars and JSON: 43, 44, 46 to 49 and 51.

Elsewhere: 38 in tests/engine/test_grammar_batches.py; 39 and 48 (compiled once) in test_grammar_cache.py; 40, 41, 47,
48 and 50 in test_adversarial.py; 41 (the row's status) in tests/jobs/test_run.py and test_resume.py.
"""

import json
from typing import Any

import duckdb
import pytest

from grammars import AnswerGrammar, TokenVocabulary, UnsupportedSchema, compile_schema
from jobs.validate import AnswerValidator
from tests.grammars.helpers import (
    accepts,
    accepts_value,
    byte_vocabulary,
    is_valid,
    preferring,
    random_writer,
    write_answer,
)

KEYWORDS: list[tuple[str, Any, list[bytes]]] = [
    ("multipleOf", {"type": "integer", "multipleOf": 7}, [b"1", b"3"]),
    ("minimum and maximum", {"type": "integer", "minimum": 3, "maximum": 25}, [b"9", b"2", b"-"]),
    ("minimum for numbers", {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2}, [b"0", b".", b"5"]),
    ("uniqueItems", {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}, [b'"', b"a", b","]),
    ("dependentRequired", {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
                           "dependentRequired": {"a": ["b"]}}, [b"{", b'"', b"a", b"}"]),
    ("minProperties", {"type": "object", "properties": {n: {"const": 0} for n in "abc"}, "minProperties": 2}, [b"}"]),
    ("maxProperties", {"type": "object", "properties": {n: {"const": 0} for n in "abc"}, "maxProperties": 1}, [b","]),
    ("pattern with minLength", {"type": "string", "pattern": "^a+$", "minLength": 4, "maxLength": 6}, [b'"', b"a"]),
    ("pattern with maxLength", {"type": "string", "pattern": "^(ab)+$", "maxLength": 5}, [b"ab", b"a", b"b"]),
    ("minItems", {"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 4}, [b"]", b","]),
    ("prefixItems", {"type": "array", "prefixItems": [{"const": 1}, {"const": "x"}], "items": False}, [b",", b"1"]),
    ("oneOf", {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [b'"', b"1"]),
    ("if and then", {"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "v": {"type": "integer"}},
                     "required": ["k"], "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["v"]}},
     [b"}", b"a"]),
    ("not a value", {"enum": [1, 2, 3], "not": {"const": 2}}, [b"2"]),
    ("allOf", {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [b"9", b"1"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "schema", "wanted"), KEYWORDS, ids=[case[0] for case in KEYWORDS])
def test_no_keyword_is_dropped(name: str, schema: Any, wanted: list[bytes], vocabulary: TokenVocabulary) -> None:
    """Case 43."""
    grammar = compile_schema(schema, vocabulary)
    for number in range(6):
        for stub in (preferring(vocabulary, wanted, number), random_writer(grammar, number)):
            answer = write_answer(grammar, stub, 60, in_time=True)
            assert answer is not None
            assert is_valid(schema, answer.decode()), answer


@pytest.mark.parametrize("pattern", ["^(?!N/A$).+$", "(a)\\1"])
def test_patterns_that_are_no_grammar_are_refused(pattern: str, vocabulary: TokenVocabulary) -> None:
    """Case 44."""
    with pytest.raises(UnsupportedSchema) as caught:
        compile_schema({"properties": {"a": {"type": "string", "pattern": pattern}}}, vocabulary)
    assert (caught.value.path, caught.value.keyword) == ("/properties/a", "pattern")


def test_an_unanchored_pattern_means_contains(vocabulary: TokenVocabulary) -> None:
    """Case 44."""
    grammar = compile_schema({"type": "string", "pattern": "abc"}, vocabulary)
    for text, good in (("abc", True), ("xxabcxx", True), ("ab", False), ("", False)):
        assert accepts_value(grammar, text) == good


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_a_tree_of_depth_six(backend: str, vocabulary: TokenVocabulary) -> None:
    """Case 46."""
    schema = {
        "$ref": "#/$defs/t",
        "$defs": {"t": {"type": "object", "properties": {"v": {"type": "integer"},
                  "c": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "required": ["v"]}},
    }  # fmt: skip
    grammar = compile_schema(schema, vocabulary, backend=backend)
    value: dict[str, Any] = {"v": 0}
    for depth in range(6):
        value = {"v": depth, "c": [value]}
    assert accepts_value(grammar, value)


def test_a_cut_schema_is_not_preferred(vocabulary: TokenVocabulary) -> None:
    """Case 46: what an index would have to cut, llguidance holds whole."""
    tree = {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}}}
    grammar: AnswerGrammar = compile_schema(tree, vocabulary)
    assert (grammar.backend, grammar.notes) == ("llguidance", ())
    value: dict[str, Any] = {}
    for _ in range(30):
        value = {"c": [value]}
    assert accepts_value(grammar, value)


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_keys_come_in_schema_order(backend: str, vocabulary: TokenVocabulary) -> None:
    """Case 49."""
    names = ["reasoning", "answer", "quote"]
    schema = {"type": "object", "properties": {name: {"type": "string", "maxLength": 3} for name in names},
              "required": names, "additionalProperties": False}  # fmt: skip
    grammar = compile_schema(schema, vocabulary, backend=backend)
    for number in range(5):
        answer = write_answer(grammar, random_writer(grammar, number), 120, in_time=True)
        assert answer is not None
        assert list(json.loads(answer)) == names
    assert not accepts(grammar, '{"answer":"","reasoning":"","quote":""}')


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_control_characters_are_escaped(backend: str, vocabulary: TokenVocabulary) -> None:
    """Case 47: whatever a stub wants, DuckDB reads it; and what a document holds can be quoted, NUL included."""
    schema = {"type": "object", "properties": {"quote": {"type": "string", "maxLength": 12}}, "required": ["quote"]}
    grammar = compile_schema(schema, vocabulary, backend=backend)
    for character in map(chr, range(0x20)):
        assert accepts_value(grammar, {"quote": f"a{character}"})
    for text in ('{"quote":"\\u0041"}', '{"quote":"\\ud800"}', '{"quote":"\\u00"}', '{"quote":"\\u0020"}'):
        assert not accepts(grammar, text)
    wishes = [[b"\\u", b"0", b"1"], [b"\\", b"u", b"0", b"f"], [b"\\u", b"ud800"], [b"\t", b"\x00"]]
    for number, wanted in enumerate(wishes):
        answer = write_answer(grammar, preferring(vocabulary, wanted, number), 90, in_time=True)
        assert answer is not None
        row = duckdb.execute("SELECT json_valid(?), json_extract_string(?, '$.quote')", [answer.decode()] * 2)
        assert row.fetchone() == (True, json.loads(answer)["quote"])


def test_many_optional_properties(vocabulary: TokenVocabulary) -> None:
    """Case 48: the size adds up, it does not double with each property."""
    text_or_null = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema = {"type": "object", "properties": {f"p{number}": text_or_null for number in range(120)}}
    grammar = compile_schema(schema, vocabulary, backend="index")
    assert accepts_value(grammar, {"p3": None, "p77": "x", "p119": None})
    assert not accepts_value(grammar, {"p77": "x", "p3": None})


MAPS: list[Any] = [
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "additionalProperties": True},
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
]


@pytest.mark.parametrize("schema", MAPS)
@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_a_key_that_repeats_in_a_map_is_found(schema: Any, backend: str, vocabulary: TokenVocabulary) -> None:
    """Case 51: a grammar can't count the keys of a map, so the check of the finished answer must."""
    repeated = '{"answer":1,"answer":2}'
    assert accepts(compile_schema(schema, vocabulary, backend=backend), repeated)
    for text in (repeated, '{"answer":1,"\\u0061nswer":2}'):
        error = AnswerValidator(schema).check(text).error
        assert error is not None
        assert "twice" in error
    assert AnswerValidator(schema).check('{"answer":1,"a":2}').error is None


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_no_key_of_a_map_is_written_by_escape(backend: str, vocabulary: TokenVocabulary) -> None:
    """Case 51."""
    assert not accepts(compile_schema(MAPS[0], vocabulary, backend=backend), '{"\\u0061nswer":1}')


def test_a_large_vocabulary_needs_no_loop_over_it() -> None:
    """Masks near the end of an answer look at all tokens at once: the same result from many tokens as from few."""
    small = byte_vocabulary(spare=0)
    made_up = {small.size + number: f" w{number}".encode() for number in range(20_000)}
    large = TokenVocabulary(small.tokens | made_up, small.size + len(made_up))
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 30}}, "required": ["a"]}
    for backend in ("index", "llguidance"):
        grammar = compile_schema(schema, large, backend=backend)
        for number in range(3):
            answer = write_answer(grammar, random_writer(grammar, number), 12, in_time=True)
            assert answer is not None
            assert is_valid(schema, answer.decode())
