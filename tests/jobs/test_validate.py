import json
import socket
import threading

import pytest

from jobs.validate import (
    MAXIMUM_ERROR_CHARACTERS,
    PATTERN_TIMEOUT_SECONDS,
    AnswerValidator,
    BadSchemaError,
    Validated,
    canonical_schema,
    parse_strict,
)

VERDICT = {
    "type": "object",
    "properties": {"label": {"enum": ["Yes", "No"]}, "quotes": {"type": "array", "items": {"type": "string"}}},
    "required": ["label"],
    "additionalProperties": False,
}


def error_of(schema, value):
    return AnswerValidator(schema).check(json.dumps(value)).error


def test_valid_answer():
    assert AnswerValidator(VERDICT).check('{"label": "Yes"}') == Validated({"label": "Yes"}, None)


def test_error_names_the_place():
    assert error_of(VERDICT, {"label": "Yes", "quotes": ["a", 1]}) == "at $.quotes[1]: 1 is not of type 'string'"
    assert error_of(VERDICT, {}) == "at $: 'label' is a required property"
    assert error_of(VERDICT, {"label": "No", "x": 1}) == 'at $: the key "x" is not allowed'
    assert "is not one of" in error_of(VERDICT, {"label": "Maybe"})


def test_value_is_given_beside_a_schema_error():
    checked = AnswerValidator(VERDICT).check('{"label":"Maybe"}')
    assert checked.value == {"label": "Maybe"}
    assert checked.error


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"a":1} x', "Extra data"),
        ("\ufeff{}", "BOM"),
        ("NaN", "NaN"),
        ('{"a":[-Infinity]}', "-Infinity"),
        ("1e999", "out of range"),
        ("1" * 5000, "not valid JSON"),
        ('{"a":1,"a":2}', '"a" stands twice'),
        ('{"a":1,"\\u0061":2}', '"a" stands twice'),
        ('{"x":{"b":1,"c":2,"b":3}}', '"b" stands twice'),
        ('"\\ud800"', "surrogate"),
        ('{"\\udc00":1}', "surrogate"),
        ('"\ud800"', "surrogate"),
        ('"\t"', "control character"),
        ('"\\q"', "escape"),
        ("'a'", "not valid JSON"),
        ("[" * 100_000, "too deeply"),
        ("[" * 100_000 + "]" * 100_000, "too deeply"),
        ("[1,]", "not valid JSON"),
    ],
)
def test_what_is_not_strict_json(text, part):
    checked = AnswerValidator(True).check(text)
    assert checked.value is None
    assert part in checked.error
    assert "\n" not in checked.error
    checked.error.encode()


def test_what_is_strict_json():
    assert parse_strict('"\\ud83d\\ude0a \\\\ud800"') == "😊 \\ud800"
    assert parse_strict(' {"a": [1, 1.0, 1e2, null, true]}\n') == {"a": [1, 1.0, 100.0, None, True]}


def test_values_of_enums_keep_their_types():
    schema = {"enum": ["No", 'a"b', "C:\\x", "Ä", 1, None, True]}
    for value in schema["enum"]:
        assert AnswerValidator(schema).check(json.dumps(value)) == Validated(value, None)
    assert error_of({"enum": [1]}, True)
    assert error_of({"enum": [True]}, 1)
    assert error_of({"const": False}, 0)
    assert AnswerValidator({"type": "integer"}).check("1.0").error is None


def test_errors_are_short_and_of_one_line():
    error = error_of({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": "long\n" * 10_000})
    assert len(error) <= MAXIMUM_ERROR_CHARACTERS
    assert error.startswith("at $.a: ")
    assert error.endswith("is not of type 'integer'")
    assert "\n" not in error


def test_format_is_not_asserted():
    assert error_of({"type": "string", "format": "date"}, "no date") is None


def test_remote_references_are_not_fetched(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    error = error_of({"$ref": "http://example.com/schema.json"}, 1)
    assert "could not be checked" in error
    assert "example.com" in error


def test_local_references_and_unknown_ones():
    assert error_of({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}, 1) == "at $: 1 is not of type 'string'"
    assert "could not be checked" in error_of({"$ref": "#/$defs/none"}, 1)


@pytest.mark.parametrize("schema", [{"type": "text"}, {"properties": []}, {"required": "a"}, [], {"minLength": "x"}])
def test_what_is_no_schema(schema):
    with pytest.raises(BadSchemaError, match="not a JSON Schema: at"):
        AnswerValidator(schema)


def test_boolean_schemas():
    assert error_of(True, {"a": 1}) is None
    assert error_of(False, 1)


def test_recursion_is_an_error_text():
    assert "recurses too deeply" in error_of({"$ref": "#"}, 1)
    tree = {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False}
    assert AnswerValidator(tree).check('{"a":' * 6 + "{}" + "}" * 6).error is None
    assert "recurses too deeply" in AnswerValidator(tree).check('{"a":' * 400 + "{}" + "}" * 400).error


def test_catastrophic_pattern_is_stopped():
    evil = r"^(a|aa)+$"
    assert PATTERN_TIMEOUT_SECONDS <= 1  # of the processor; without a limit these two take years
    assert "took longer than" in error_of({"type": "string", "pattern": evil}, "a" * 50 + "!")
    assert "took longer than" in error_of({"patternProperties": {evil: {}}}, {"a" * 50 + "!": 1})
    assert error_of({"type": "string", "pattern": evil}, "aaa") is None


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("abc", "xabcx", True),
        ("^abc$", "abc\n", False),
        (r"^\d+$", "٣", False),
        (r"^[\d.]+$", "1.2", True),
        (r"^\w+$", "ä", False),
        (r"^[^\w]$", "ä", True),
        (r"^\D$", "٣", True),
        (r"^\p{L}+$", "äЖ", True),
        (r"^(a)\1$", "aa", True),
        (r"^(?!N/A$).+$", "N/A", False),
        (r"^(?!N/A$).+$", "N/As", True),
        (r"^\$[0-9]+\/$", "$5/", True),
        (r"^[$]$", "$", True),
        (r"^[[a]$", "[", True),
        (r"^\u00e4$", "ä", True),
        (r"^[\]\\]+$", "]\\", True),
    ],
)
def test_patterns_are_read_as_json_schema_does(pattern, text, matches):
    assert (error_of({"pattern": pattern}, text) is None) is matches


def test_pattern_that_is_none():
    for schema in ({"pattern": "("}, {"patternProperties": {"(": {}}}, {"properties": {"a": {"pattern": "[z-a]"}}}):
        with pytest.raises(BadSchemaError, match="is not a 'regex'"):
            AnswerValidator(schema)
    assert error_of({"properties": {"pattern": {"enum": ["("]}}, "const": {"pattern": "("}}, {"pattern": "("}) is None


def test_additional_and_pattern_properties():
    schema = {"patternProperties": {"^x_": {"type": "integer"}}, "properties": {"a": {}}, "additionalProperties": False}
    assert error_of(schema, {"x_1": 1, "a": 2}) is None
    assert error_of(schema, {"x_1": "s"}) == "at $.x_1: 's' is not of type 'integer'"
    assert "not allowed" in error_of(schema, {"b": 1})
    assert error_of({"additionalProperties": {"type": "string"}}, {"b": 1}) == "at $.b: 1 is not of type 'string'"


def test_threads_share_a_validator():
    validator = AnswerValidator({"$defs": {"l": {"enum": ["Yes"]}}, "properties": {"label": {"$ref": "#/$defs/l"}}})
    failures = []

    def work():
        for _ in range(100):
            if validator.check('{"label":"Yes"}').error or not validator.check('{"label":"No"}').error:
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_canonical_schema():
    assert canonical_schema({"b": 1, "a": {"ü": [True, None]}}) == '{"b":1,"a":{"ü":[true,null]}}'
    assert canonical_schema(True) == "true"
    assert canonical_schema({"a": 1, "b": 2}) != canonical_schema({"b": 2, "a": 1})
    canonical_schema({"a": "\ud800"}).encode()
