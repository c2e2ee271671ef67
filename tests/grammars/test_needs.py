"""Cases of NEEDS.md about grammars that no other test here answers: 41, 43, 44, 46, 49."""

import json
from typing import Any

import pytest

from grammars import AnswerGrammar, TokenVocabulary, UnsupportedSchema, compile_schema
from tests.grammars.helpers import accepts, accepts_value, is_valid, preferring, random_writer, write_answer

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
