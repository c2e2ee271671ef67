import pytest

from jobs.schema_types import answer_columns, json_pointer, quote_identifier, quote_literal

BOOLEANS = {"type": "array", "items": {"type": "boolean"}}


def types(schema, **root):
    (column,) = answer_columns({"type": "object", "properties": {"x": schema}, **root})
    return column.duckdb_type


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "boolean"}, "BOOLEAN"),
        ({"type": "integer"}, "BIGINT"),
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, "BIGINT"),
        ({"type": "integer", "maximum": 2**63}, "HUGEINT"),
        ({"type": "integer", "maximum": 10**40}, "HUGEINT"),  # text once an answer needs it: see wide_integers
        ({"type": "number"}, "DOUBLE"),
        ({"type": ["integer", "number"]}, "DOUBLE"),
        ({"type": "string"}, "VARCHAR"),
        ({"type": "string", "format": "date"}, "VARCHAR"),
        ({"type": ["string", "null"]}, "VARCHAR"),
        ({"enum": ["a", "b"]}, "VARCHAR"),
        ({"enum": ["a", None]}, "VARCHAR"),
        ({"const": "a"}, "VARCHAR"),
        ({"const": None}, "JSON"),
        ({"enum": [1, 2]}, "BIGINT"),
        ({"enum": [1, 2.5]}, "DOUBLE"),
        ({"enum": [True, False]}, "BOOLEAN"),
        ({"enum": [True, 1]}, "JSON"),
        ({"enum": ["a", 1]}, "JSON"),
        ({"type": "string", "enum": ["a", 1]}, "VARCHAR"),
        ({"type": ["string", "integer"]}, "JSON"),
        ({"type": "array", "items": {"type": "integer"}}, "BIGINT[]"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "VARCHAR[]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "BIGINT[][]"),
        ({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
         'STRUCT("a" VARCHAR)[]'),
        ({"type": "array", "items": {"type": "array"}}, "JSON"),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "integer"}}, "JSON"),
        ({"type": "array"}, "JSON"),
        ({"type": "object"}, "JSON"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "JSON"),
        ({"type": "object", "properties": {"a": {"type": "string"}, "A": {"type": "string"}}}, "JSON"),
        ({"type": "object", "properties": {"": {"type": "string"}}}, "JSON"),
        (
            {"properties": {"a": {"type": "string"}, 'b"': {"properties": {"c": BOOLEANS}}}},
            'STRUCT("a" VARCHAR, "b""" STRUCT("c" BOOLEAN[]))',
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "VARCHAR"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "DOUBLE"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "JSON"),
        ({"anyOf": [{"minLength": 1}, {"maxLength": 9}], "type": "string"}, "VARCHAR"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "VARCHAR"),
        ({"$ref": "#/$defs/label"}, "VARCHAR"),
        ({"$ref": "#/$defs/a~1b%25"}, "BIGINT"),
        ({"$ref": "#/$defs/missing"}, "JSON"),
        ({"$ref": "https://example.com/schema"}, "JSON"),
        ({"$ref": "#/$defs/loop"}, "JSON"),
        ({"$ref": "#/$defs/tree"}, "JSON"),
        (True, "JSON"),
        (False, "JSON"),
        ({}, "JSON"),
    ],
)  # fmt: skip
def test_type_of_a_property(schema, expected):
    definitions = {
        "label": {"enum": ["a", "b"]},
        "a/b%": {"type": "integer"},
        "loop": {"$ref": "#/$defs/loop"},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}},
    }
    assert types(schema, **{"$defs": definitions}) == expected


def test_properties_of_references_and_unions():
    schema = {
        "$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"name": {"type": "string"}}}],
        "anyOf": [
            {"properties": {"kind": {"const": "a"}, "size": {"type": "integer"}}},
            {"properties": {"kind": {"const": "b"}, "size": {"type": "string"}}},
        ],
    }
    columns = {column.name: column.duckdb_type for column in answer_columns(schema)}
    assert columns == {"id": "BIGINT", "name": "VARCHAR", "kind": "VARCHAR", "size": "JSON"}


def test_order_is_the_schemas():
    names = ["reasoning", "answer", "quote"]
    columns = answer_columns({"properties": {name: {"type": "string"} for name in names}})
    assert [column.name for column in columns] == names


def test_branching_without_end_is_json_soon():
    """Followed to its end, the first alone would take 8**30 steps."""
    definitions = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 8} for n in range(30)}
    assert types({"$ref": "#/$defs/d0"}, **{"$defs": definitions}) == "JSON"
    wide = {f"p{n}": {"$ref": f"#/$defs/w{n}"} for n in range(2)}
    assert types({"properties": wide}, **{"$defs": {f"w{n}": {"properties": wide} for n in range(2)}}) == "JSON"
    deep = {"type": "integer"}
    for _ in range(3000):
        deep = {"properties": {"a": deep}}
    assert types(deep) == "JSON"


def test_quoting():
    assert quote_identifier('a"b\n') == '"a""b_"'
    assert quote_identifier("") == '"_"'
    assert quote_literal("it's") == "'it''s'"
    assert quote_literal("a\0b") == "('a' || chr(0) || 'b')"
    assert json_pointer("a/b~c") == "/a~1b~0c"
    assert json_pointer("") == "/"
    assert json_pointer(None) == "$"
