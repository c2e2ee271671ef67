"""One small schema a feature: sound, and accepting what it should; or refused with the place and the keyword."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from grammars import InvalidSchema, TokenVocabulary, UnsupportedSchema, compile_schema
from tests.grammars.helpers import accepts, accepts_value, assert_sound


def obj(properties: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **keywords}


A = obj({"a": {"type": "integer"}})
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v"],
    "additionalProperties": False,
}


def nested_tree(depth: int) -> dict[str, Any]:
    return {"v": depth, "c": [nested_tree(depth - 1)]} if depth else {"v": 0}


# (name, schema, values that must be accepted); values that jsonschema rejects must not be.
ACCEPTED: list[tuple[str, Any, list[Any]]] = [
    ("closed object", obj({"a": {"type": "integer"}}, additionalProperties=False), [{"a": 1}, {}, {"a": 1, "b": 2}]),
    ("open object", A, [{"a": 1}, {}, {"a": "x"}]),
    ("map", {"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1, "yé": -2}, {"x": "1"}]),
    ("no properties at all", {"type": "object", "additionalProperties": False}, [{}, {"a": 1}]),
    (
        "patternProperties",
        {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"x_a": 1}, {"y": 1}],
    ),
    (
        "properties and patternProperties",
        obj({"x_a": {}}, patternProperties={"^x_": {"type": "null"}}),
        [{"x_a": None}],
    ),
    ("required but not declared", obj({"a": {"type": "integer"}}, required=["a", "b"]), [{"a": 1, "b": 2}, {"a": 1}]),
    ("required without properties", {"type": "object", "required": ["k"]}, [{"k": 1}, {"k": [True]}, {}]),
    (
        "optional before and after required",
        obj({c: {"type": "integer"} for c in "abcde"}, required=["c"]),
        [{"c": 1}, {"a": 1, "c": 2}, {"b": 1, "c": 1, "e": 2}, {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, {"a": 1}],
    ),
    (
        "all optional",
        obj({c: {"type": "boolean"} for c in "abcd"}),
        [{}, {"a": True}, {"d": True}, {"b": True, "d": True}, {"a": True, "b": True, "c": True, "d": False}],
    ),
    ("property that may be anything", obj({"a": {}, "b": True}), [{"a": [1, {"x": None}], "b": "y"}]),
    ("property that can't be", obj({"a": False, "b": {"type": "null"}}), [{"b": None}, {"a": 1}]),
    (
        "minProperties",
        obj({c: {"type": "null"} for c in "abc"}, minProperties=2),
        [{"a": None, "c": None}, {"a": None}],
    ),
    ("minProperties of a map", {"type": "object", "minProperties": 1}, [{"k": 1}, {}]),
    ("maxProperties", obj({c: {"type": "null"} for c in "abc"}, maxProperties=1), [{}, {"c": None}, {"a": 0, "b": 0}]),
    ("maxProperties of a map", {"type": "object", "maxProperties": 1}, [{}, {"a": 1}, {"a": 1, "b": 2}]),
    (
        "propertyNames of a map",
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "null"}},
        [{"ab": None}, {}, {"A": None}],
    ),
    (
        "propertyNames of properties",
        obj({"a": {}, "B": {}}, propertyNames={"maxLength": 1, "pattern": "[a-z]"}),
        [{"a": 1}],
    ),
    (
        "dependentRequired",
        obj({"a": {"type": "null"}, "b": {"type": "null"}}, dependentRequired={"a": ["b"]}),
        [{}, {"b": None}, {"a": None, "b": None}, {"a": None}],
    ),
    (
        "dependentSchemas",
        obj({"a": {}, "b": {"type": "integer"}}, dependentSchemas={"a": {"required": ["b"]}}),
        [{"b": 1}, {"a": 1, "b": 1}, {"a": 1}],
    ),
    ("minimum and maximum", {"type": "integer", "minimum": -17, "maximum": 205}, [-17, 205, 0, 99, -18, 206]),
    ("minimum", {"type": "integer", "minimum": 5}, [5, 123456789, 4, -5]),
    ("maximum", {"type": "integer", "maximum": 5}, [5, -17, 0, 6]),
    ("number between", {"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5, 0.25, 1.5, -0.5]),
    ("number from", {"type": "number", "minimum": 0.5}, [0.5, 0.75, 1, 1234.5, 0.25, 0]),
    ("exclusive bounds", {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.1, 0.999, 0, 1]),
    ("integer with exclusive bounds", {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, [1, 2, 0, 3]),
    ("multipleOf 5", {"type": "integer", "multipleOf": 5}, [0, 5, -10, 12345, 7]),
    ("multipleOf 7 in a range", {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100}, [0, 7, 98, 8]),
    ("multipleOf of a number", {"type": "number", "multipleOf": 10, "minimum": 15}, [20, 1000, 10, 25]),
    ("any number", {"type": "number"}, [0, -17, 0.5, 1e5, 12, 3.14159]),
    (
        "minLength and maxLength",
        {"type": "string", "minLength": 2, "maxLength": 3},
        ["ab", 'é\n"', "日本語", "a", "abcd"],
    ),
    ("pattern, anchored", {"pattern": "^ET-[0-9]{2}$", "type": "string"}, ["ET-42", "ET-٤٢", "xET-42"]),
    ("pattern, unanchored", {"type": "string", "pattern": "foo"}, ["foo", "xfooy", "ffoo", "bar"]),
    ("pattern, left", {"type": "string", "pattern": "^pkg:"}, ["pkg:x", "xpkg:"]),
    ("pattern, right", {"type": "string", "pattern": "\\.json$"}, ["a.json", "a.jsonx"]),
    ("pattern, anchored on one side of |", {"type": "string", "pattern": "^a|b$"}, ["ax", "xb", "xax"]),
    ("pattern with dot", {"type": "string", "pattern": "^.{3}$"}, ["abc", 'a"\\', "ab"]),
    ("pattern with negated class", {"type": "string", "pattern": "^[^x]+$"}, ["abc", 'é"\n', "axb"]),
    ("pattern with categories", {"type": "string", "pattern": "^\\w+\\s\\d\\S\\D$"}, ["ab 1éé", "ab 111"]),
    ("pattern that needs escapes", {"type": "string", "pattern": '^a\\/?["\\\\]b$'}, ['a"b', "a\\b", "a/\\b", "ab"]),
    (
        "pattern and length",
        {"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 4},
        ["ab", "abcd", "a"],
    ),
    ("two patterns", {"type": "string", "allOf": [{"pattern": "^[a-c]+$"}, {"pattern": "^[a-z]+$"}]}, ["abc", "abz"]),
    ("date", {"type": "string", "format": "date"}, ["2026-02-03", "2024-02-29"]),
    ("date-time", {"type": "string", "format": "date-time"}, ["2026-02-03T04:05:06+01:00", "2026-02-03T04:05:06.123Z"]),
    ("email", {"type": "string", "format": "email"}, ["jane.doe@example.com"]),
    ("uri", {"type": "string", "format": "uri"}, ["https://example.com/a?b=c#d", "urn:isbn:1", "iglu:com.x/y"]),
    ("uuid", {"type": "string", "format": "uuid"}, ["2EB8AA08-AA98-11EA-B4AA-73B441D16380"]),
    ("ipv4 and hostname", {"prefixItems": [{"format": "ipv4"}, {"format": "hostname"}]}, []),
    ("format and length", {"type": "string", "format": "email", "maxLength": 20}, ["a@b.de"]),
    ("unknown format", {"type": "string", "format": "colour", "x-order": 3}, ["red"]),
    (
        "enum of anything",
        {"enum": ["a", 1, 1.5, None, True, [1, "x"], {"k": {}}]},
        ["a", 1, 1.5, None, True, [1, "x"], "b"],
    ),
    ("enum beside type", {"type": ["string", "null"], "enum": ["a", None, 5]}, ["a", None, 5]),
    ("enum beside pattern", {"enum": ["ab", "cd", 3], "pattern": "^a"}, ["ab", 3, "cd"]),
    ("enum beside not", {"enum": ["ab", "cd"], "not": {"const": "ab"}}, ["cd", "ab"]),
    ("const object", {"const": {"a.b": [1, {"x": "("}]}}, [{"a.b": [1, {"x": "("}]}, {"aXb": [1, {"x": "("}]}]),
    (
        "odd property names",
        obj({'a"b': {"type": "null"}, "a\\": {"type": "null"}, "<é>\n(.*)": {"type": "null"}}),
        [{'a"b': None}, {"a\\": None}, {"<é>\n(.*)": None}],
    ),
    ("any array", {"type": "array"}, [[], [1, "a", None], [[[1]]]]),
    ("items", {"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3], ["a"]]),
    (
        "minItems and maxItems",
        {"items": {"type": "null"}, "minItems": 1, "maxItems": 2, "type": "array"},
        [[None], [None, None], [], [None] * 3],
    ),
    ("maxItems 0", {"type": "array", "maxItems": 0}, [[], [1]]),
    (
        "prefixItems, closed",
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        [[], [1], [1, "a"], [1, "a", 2], ["a"]],
    ),
    (
        "prefixItems and items",
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}, "minItems": 2},
        [[None, 1], [None, 1, 2], [None]],
    ),
    (
        "uniqueItems of an enum",
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
        [["a"], ["a", "c"], ["a", "b", "c"], [], ["a", "a"]],
    ),
    (
        "type list with its own keywords",
        {"type": ["string", "integer", "null"], "maxLength": 2, "minimum": 5},
        ["ab", 5, None, "abc", 4],
    ),
    ("nullable is an annotation", {"type": "string", "nullable": True}, ["x", None]),
    ("anyOf", {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]}, [1, "abc", "abcd"]),
    (
        "anyOf with sibling properties",
        obj({"a": {}}, required=["a"], anyOf=[{"required": ["b"]}, {"required": ["c"]}]),
        [{"a": 1, "b": 2}, {"a": 1, "c": 2}, {"a": 1}],
    ),
    ("oneOf of types", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "x", None]),
    (
        "oneOf that overlaps on null",
        {"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]},
        [1, "x", None],
    ),
    ("oneOf of values", {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, [1, 3, 2]),
    ("oneOf of ranges", {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 10}]}, [3, 10, 5]),
    ("oneOf of patterns", {"type": "string", "oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, ["ax", "bx", "c"]),
    (
        "oneOf by tag",
        {"oneOf": [obj({"t": {"const": t}, t: {}}, required=["t"]) for t in "xy"]},
        [{"t": "x", "x": 1}, {"t": "y"}, {"t": "z"}],
    ),
    (
        "oneOf by required keys",
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {}],
    ),
    (
        "allOf of objects",
        {"allOf": [obj({"a": {"type": "integer"}}, required=["a"]), obj({"b": {}}, required=["b"])]},
        [{"a": 1, "b": "x"}, {"a": 1}],
    ),
    (
        "allOf, closed",
        {"allOf": [obj({"a": {}}, additionalProperties=False), obj({"b": {}})]},
        [{"a": 1}, {"a": 1, "b": 2}],
    ),
    ("allOf of numbers", {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]}, [3, 5, 2, 6]),
    ("not", {"not": {"type": ["string", "object", "array", "number"]}}, [True, None, "x", 1]),
    ("not a small integer", {"not": {"type": "integer", "maximum": 9}}, [10, None, [], {"a": 1}, 9]),
    ("not true", {"not": {"const": True}, "type": ["boolean", "integer"]}, [False, 1, True]),
    ("not only punctuation", {"type": "string", "minLength": 1, "not": {"pattern": "^[.,\\s]+$"}}, ["a", ".a ", " ."]),
    (
        "if a flag",
        obj(
            {"f": {"type": "boolean"}, "v": {}},
            **{"if": {"properties": {"f": {"const": True}}}, "then": {"required": ["v"]}},
        ),
        [{"f": False}, {"f": True, "v": 1}, {"f": True}],
    ),
    (
        "one of several required",
        obj({"a": {}, "b": {}, "c": {}}, oneOf=[{"required": ["a"]}, {"required": ["b", "c"]}]),
        [{"a": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}, {"b": 1}, {}],
    ),
    (
        "one of it and a list of it",
        {"oneOf": [{"required": ["a"], "properties": {"a": {}}}, {"type": "array"}]},
        [{"a": 1}, [1]],
    ),
    (
        "one of a format and a pattern",
        {"oneOf": [{"format": "uuid"}, {"pattern": "^\\$[A-Z]+$"}]},
        ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "$AB"],
    ),
    (
        "not required",
        obj({"a": {}, "b": {}}, required=["a"], **{"not": {"required": ["b"]}}),
        [{"a": 1}, {"a": 1, "b": 1}],
    ),
    (
        "if then else",
        obj(
            {"k": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
            required=["k"],
            **{"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}, "else": {"maxProperties": 1}},
        ),
        [{"k": "a", "x": 1}, {"k": "b"}, {"k": "a"}, {"k": "b", "x": 1}],
    ),
    ("$ref", {"$defs": {"n": {"type": "integer"}}, **obj({"a": {"$ref": "#/$defs/n"}})}, [{"a": 1}, {"a": "1"}]),
    ("$ref with siblings", {"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": {"type": "integer"}}}, [3, 2]),
    ("$ref with escapes", {"$ref": "#/$defs/a~1b~0c%25", "$defs": {"a/b~c%": {"type": "null"}}}, [None, 1]),
    (
        "$ref into an array",
        {"prefixItems": [{"type": "integer"}, {"$ref": "#/prefixItems/0"}], "type": "array"},
        [[1, 2]],
    ),
    (
        "$ref by the root's $id",
        {"$id": "http://x.org/s", "$ref": "http://x.org/s#/$defs/n", "$defs": {"n": {"type": "null"}}},
        [None],
    ),
    ("tree", TREE, [nested_tree(1), nested_tree(3), nested_tree(6), {"v": "x"}]),
    (
        "linked list",
        obj({"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, required=["next"]),
        [{"next": None}, {"next": {"next": {"next": None}}}],
    ),
    (
        "long $ref chain",
        {
            "$ref": "#/$defs/n0",
            "$defs": {
                f"n{i}": obj({"n": {"$ref": f"#/$defs/n{i + 1}"} if i < 11 else {"type": "null"}}, required=["n"])
                for i in range(12)
            },
        },
        [],
    ),
    ("true", True, [1, "x", {"a": [None]}]),
    ("empty schema", {"title": "anything"}, [1, [1, {"a": []}]]),
    ("only properties", {"properties": {"a": {"type": "integer"}}}, [{"a": 1}, {"a": "x"}]),
    ("only minimum", {"minimum": 3}, [3, 3.5, 2]),
    (
        "annotations",
        {"type": "null", "description": "x", "default": 3, "examples": [1], "$comment": "y", "deprecated": True},
        [None, 3],
    ),
    ("unevaluatedProperties", obj({"a": {}}, allOf=[obj({"b": {}})], unevaluatedProperties=False), [{"a": 1, "b": 1}]),
    ("DEL and C1", {"type": "string"}, ["\x7f\x85"]),
]

REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "array", "uniqueItems": True}, "", "uniqueItems"),
    ({"type": "array", "contains": {"type": "integer"}}, "", "contains"),
    ({"type": "object", "minProperties": 2}, "", "minProperties"),
    (obj({"a": {"type": "integer", "multipleOf": 7}}), "/properties/a", "multipleOf"),
    ({"type": "number", "multipleOf": 0.01}, "", "multipleOf"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]}, "", "oneOf"),
    ({"oneOf": [A, obj({"b": {}})]}, "", "oneOf"),
    ({"type": "string", "not": {"const": "x"}}, "", "not"),
    ({"type": "string", "pattern": "^(?!N/A$).+$"}, "", "pattern"),
    ({"type": "string", "pattern": "(a)\\1"}, "", "pattern"),
    ({"type": "string", "pattern": "\\p{L}+"}, "", "pattern"),
    ({"type": "string", "pattern": "(?i)abc"}, "", "pattern"),
    ({"type": "string", "pattern": "\\bword\\b"}, "", "pattern"),
    ({"items": {"$ref": "https://example.com/other.json"}, "type": "array"}, "/items", "$ref"),
    ({"$ref": "#/$defs/missing"}, "", "$ref"),
    (obj({"a": {"$id": "http://x.org/a", "items": {"$ref": "#/$defs/n"}}}), "/properties/a/items", "$ref"),
    ({"$ref": "#"}, "", "$ref"),
    ({"$dynamicRef": "#x"}, "", "$dynamicRef"),
    (False, "", ""),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "", ""),
    ({"enum": ["\ud800"]}, "", ""),
    ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "", "patternProperties"),
]

INVALID: list[tuple[Any, str]] = [
    ({"type": "strin"}, "/type"),
    ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength"),
    ({"items": [{"type": "integer"}]}, "/items"),
    ({"required": True}, "/required"),
    ([], ""),
    ({"const": float("nan")}, ""),
]


@pytest.mark.parametrize(("name", "schema", "values"), ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_accepted(name: str, schema: Any, values: list[Any], vocabulary: TokenVocabulary) -> None:
    grammar = compile_schema(schema, vocabulary)
    validator = Draft202012Validator(schema)
    for value in values:
        assert accepts_value(grammar, value) == validator.is_valid(value), (value, grammar.regex)
    assert_sound(grammar, samples=12)
    assert not accepts(grammar, " " + grammar.shortest_text)
    assert not accepts(grammar, grammar.shortest_text + "\n")


@pytest.mark.parametrize(("schema", "path", "keyword"), REFUSED)
def test_refused(schema: Any, path: str, keyword: str, vocabulary: TokenVocabulary) -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        compile_schema(schema, vocabulary, backend="index")
    assert (caught.value.path, caught.value.keyword) == (path, keyword)
    assert str(caught.value).count(".\n") == 0
    assert str(caught.value).endswith(".")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("schema", "path"), INVALID)
def test_invalid(schema: Any, path: str, vocabulary: TokenVocabulary) -> None:
    with pytest.raises(InvalidSchema) as caught:
        compile_schema(schema, vocabulary)
    assert caught.value.path == path


def test_a_key_has_one_spelling(vocabulary: TokenVocabulary) -> None:
    grammar = compile_schema(obj({"answer": {"type": "string"}}), vocabulary)
    assert accepts(grammar, '{"answer":"x"}')
    assert not accepts(grammar, '{"\\u0061nswer":"x"}')
    assert not accepts(grammar, '{"answer":"x","answer":"y"}')


def test_notes_say_where_the_grammar_is_narrower(vocabulary: TokenVocabulary) -> None:
    grammar = compile_schema({"type": "string", "maxLength": 300_000}, vocabulary, backend="index")
    assert len(grammar.notes) == 1
    assert "300000" in grammar.notes[0]
    assert accepts_value(grammar, "a" * 100)
    exact = compile_schema({"type": "string", "maxLength": 300}, vocabulary)
    assert exact.notes == ()
    assert accepts_value(exact, "é" * 300)
    assert not accepts_value(exact, "é" * 301)


def test_property_order_is_the_schemas(vocabulary: TokenVocabulary) -> None:
    schema = obj({name: {"type": "string"} for name in ("reasoning", "answer", "quote")})
    for required in ([], ["reasoning", "answer", "quote"]):
        grammar = compile_schema(schema | {"required": required}, vocabulary)
        assert accepts(grammar, '{"reasoning":"r","answer":"a","quote":"q"}')
        assert not accepts(grammar, '{"answer":"a","reasoning":"r","quote":"q"}')
    assert json.loads(grammar.shortest_text) == {"reasoning": "", "answer": "", "quote": ""}
