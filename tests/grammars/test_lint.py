"""What a report says of each keyword; leaving out what can't be enforced."""

from typing import Any

import pytest

from grammars import GrammarCache, TokenVocabulary, UnsupportedSchema, compile_schema
from grammars.lint import ANNOTATION, CHECKED_AFTER, ENFORCED, REFUSED, SchemaReport, lint_schema
from tests.grammars.helpers import accepts_value, byte_vocabulary

TAGS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "kind": {"type": "string", "nullable": True, "minLenght": 2, "format": "colour"},
        "when": {"type": "string", "format": "date", "description": "a day"},
        "more": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["tags"],
}


@pytest.fixture(scope="module")
def grammars():
    cache = GrammarCache(byte_vocabulary())
    yield cache
    cache.close()


def statuses(report: SchemaReport) -> dict[str, str]:
    return {f"{keyword.path}/{keyword.keyword}": keyword.status for keyword in report.keywords}


def notes(report: SchemaReport) -> dict[str, str]:
    return {f"{keyword.path}/{keyword.keyword}": keyword.note for keyword in report.keywords}


def test_a_refused_keyword_is_named(grammars: GrammarCache) -> None:
    report = lint_schema(TAGS, grammars)
    assert report.grammar is None
    assert report.lenient_helps
    assert report.reason is not None
    assert "uniqueItems" in report.reason
    found = statuses(report)
    assert found["/properties/tags/uniqueItems"] == REFUSED
    assert found["/properties/when/format"] == ENFORCED
    assert found["/required"] == ENFORCED
    assert {keyword for keyword, status in found.items() if status == ANNOTATION} == {
        "/properties/kind/nullable",
        "/properties/kind/minLenght",
        "/properties/kind/format",
    }
    said = notes(report)
    assert "minLength" in said["/properties/kind/minLenght"]
    assert "null" in said["/properties/kind/nullable"]
    assert "only these keys" in said["/properties"]
    assert "repeats" in said["/properties/more/additionalProperties"]
    assert "/properties/when/description" not in said


def test_lenient_checks_it_after(grammars: GrammarCache) -> None:
    report = lint_schema(TAGS, grammars, lenient=True)
    assert report.grammar is not None
    assert report.reason is None
    assert statuses(report)["/properties/tags/uniqueItems"] == CHECKED_AFTER
    assert accepts_value(report.grammar, {"tags": ["a", "a"]})
    assert report.grammar.schema == TAGS


@pytest.mark.parametrize(
    ("schema", "pointers"),
    [
        ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}, "minContains": 2}, ["/contains"]),
        ({"type": "string", "not": {"pattern": "a"}}, ["/not"]),
        ({"type": "string", "pattern": "^(?!N/A$).+$"}, ["/pattern"]),
        ({"type": "string", "pattern": "(a)\\1"}, ["/pattern"]),
        ({"type": "number", "multipleOf": 0.1}, ["/multipleOf"]),
        ({"type": "object", "minProperties": 3}, ["/minProperties"]),
        ({"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 5}]}, ["/oneOf"]),
        (
            {"properties": {"a": {"type": "string", "pattern": "a(?=b)"}, "b": {"uniqueItems": True}}},
            ["/properties/a/pattern", "/properties/b/uniqueItems"],
        ),
        (
            {"type": "object", "properties": {"k": {"type": "string"}},
             "if": {"properties": {"k": {"pattern": "x"}}}, "then": {"required": ["k"]}},
            ["/if"],
        ),
        ({"$dynamicRef": "#x", "type": "integer"}, ["/$dynamicRef"]),
    ],
)  # fmt: skip
def test_what_is_left_out(schema: Any, pointers: list[str], vocabulary: TokenVocabulary) -> None:
    """Cases 43 and 44."""
    with pytest.raises(UnsupportedSchema):
        compile_schema(schema, vocabulary)
    grammar = compile_schema(schema, vocabulary, lenient=True)
    assert sorted(pointer for pointer, _ in grammar.checked_after) == pointers
    assert all(reason for _, reason in grammar.checked_after)


def test_lenient_changes_nothing_where_it_is_not_needed(vocabulary: TokenVocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert compile_schema(schema, vocabulary, lenient=True).checked_after == ()
    with pytest.raises(UnsupportedSchema):
        compile_schema(False, vocabulary, lenient=True)


def test_what_is_no_schema_has_no_keywords(grammars: GrammarCache) -> None:
    report = lint_schema({"items": [{}]}, grammars)
    assert (report.grammar, report.keywords) == (None, [])
    assert report.reason is not None
    assert "prefixItems" in report.reason


def test_the_backend_is_said(grammars: GrammarCache) -> None:
    small = lint_schema({"type": "string", "maxLength": 5}, grammars)
    large = lint_schema({"type": "string", "maxLength": 100_000}, grammars)
    chosen = lint_schema({"type": "string", "maxLength": 5}, grammars, backend="llguidance")
    backends = [report.grammar.backend for report in (small, large, chosen) if report.grammar is not None]
    assert backends == ["index", "llguidance", "llguidance"]
    cut = lint_schema({"type": "string", "maxLength": 100_000}, grammars, backend="index")
    assert "100000" in cut.notes[0]


def test_what_is_written_less_of_is_said_by_path(grammars: GrammarCache) -> None:
    schema = {
        "type": "object",
        "properties": {"any": {}, "least": {"minimum": 3}, "shape": {"properties": {"a": {"type": "null"}}},
                       "list": {"type": "array"}, "day": {"type": "string", "format": "date"}},
    }  # fmt: skip
    report = lint_schema(schema, grammars)
    assert report.grammar is not None
    assert report.grammar.backend == "index"
    said = dict(note.split(": ", 1) for note in report.notes)
    assert "nested at most 3 deep" in said["/properties/any"]
    assert "nested at most 2 deep" in said["/properties/list"]
    assert "speak of: integer" in said["/properties/least"]
    assert "speak of: object" in said["/properties/shape"]
    assert "Draft 2020-12" in notes(report)["/properties/day/format"]
    assert report.compilation is not None
    other = lint_schema(schema, grammars, backend="llguidance")
    assert any(note.startswith("/properties/least: no type is given") for note in other.notes)
    assert not any("nested" in note for note in other.notes)


def test_parts_of_a_schema_that_is_left_out_share_its_status(grammars: GrammarCache) -> None:
    report = lint_schema({"type": "string", "not": {"pattern": "a"}}, grammars, lenient=True)
    assert statuses(report)["/not/pattern"] == CHECKED_AFTER
    assert notes(report)["/not/pattern"] == "as /not"
