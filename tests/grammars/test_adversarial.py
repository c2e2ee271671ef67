"""Stub models that want what breaks JSON; the cases of NEEDS.md that a grammar must answer."""

import json
import time

import pytest
from jsonschema import Draft202012Validator

from grammars import TokenVocabulary, UnsupportedSchema, compile_schema
from tests.grammars.helpers import (
    accepts,
    accepts_value,
    allowed_ids,
    no_repeated_keys,
    preferring,
    random_writer,
    write_answer,
)

ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 20}, "quote": {"type": "string", "maxLength": 20}},
    "required": ["answer", "quote"],
    "additionalProperties": False,
}


def test_white_space_ends(vocabulary: TokenVocabulary) -> None:
    """Case 40."""
    grammar = compile_schema(ANSWER, vocabulary)
    text = write_answer(grammar, preferring(vocabulary, [b"\n\n", b"\n", b"\t", b"  ", b" ", b'"', b'"}']), cap=200)
    assert text is not None
    value = json.loads(text)
    assert list(value) == ["answer", "quote"]
    assert value["answer"] == " " * 20
    assert text == json.dumps(value, separators=(",", ":")).encode()


def test_a_stub_that_never_closes(vocabulary: TokenVocabulary) -> None:
    """Case 41: with bounds it ends by itself; without, it stays valid and the bound on the shortest answer holds."""
    grammar = compile_schema(ANSWER, vocabulary)
    assert write_answer(grammar, preferring(vocabulary, [b"a"]), cap=80) is not None
    endless = compile_schema({"type": "array", "items": {"type": "integer", "maximum": 9, "minimum": 0}}, vocabulary)
    assert write_answer(endless, preferring(vocabulary, [b",", b"1", b"["]), cap=100) is None
    assert endless.shortest_tokens == 1
    schema = {"enum": ["x" * 30]}
    assert compile_schema(schema, vocabulary).shortest_tokens == 32


@pytest.mark.parametrize(
    "wanted",
    [[b"\t"], [b"\x01", b"\x02", b"\x00"], [b"\\u", b"\\"], [b"ud800", b"\\u"], [b'\\u12"'], [b"\\", b"q", b"\n"],
     ["日".encode()[:2], "é".encode()[:1], "日".encode()[1:]],
     ["😀".encode()[:3], b"\xf4"], [b"\xc0", b"\xff", b"\xed\xa0"]],
)  # fmt: skip
def test_strings_stay_json(wanted: list[bytes], vocabulary: TokenVocabulary) -> None:
    """Case 47."""
    grammar = compile_schema(ANSWER, vocabulary)
    for seed in range(5):
        text = write_answer(grammar, preferring(vocabulary, wanted, seed), cap=400)
        assert text is not None
        assert Draft202012Validator(ANSWER).is_valid(json.loads(text.decode("utf-8")))
        assert min(text) >= 0x20


@pytest.mark.parametrize(
    "text", ['"\t"', '"\\q"', '"\\u12"', '"\\ud800"', '"\ud800"', '"a\x00"', '"', '"a', 'a"', '""x']
)
def test_not_json(text: str, vocabulary: TokenVocabulary) -> None:
    assert not accepts(compile_schema({"type": "string"}, vocabulary), text)


def test_a_character_may_be_split(vocabulary: TokenVocabulary) -> None:
    grammar = compile_schema({"type": "string", "maxLength": 1}, vocabulary)
    state = grammar.start()
    for part in (b'"', "日".encode()[:2]):
        state.advance(next(token_id for token_id, text in vocabulary.tokens.items() if text == part))
    following = {vocabulary.tokens[int(token_id)] for token_id in allowed_ids(state, vocabulary)}
    assert following == {bytes([byte]) for byte in range(0x80, 0xC0)}


def test_unspellable_characters_are_left_out() -> None:
    """A vocabulary without bytes above ASCII writes ASCII strings, and escapes the literals it can't spell."""
    ascii_only = TokenVocabulary({byte: bytes([byte]) for byte in range(0x80)} | {200: "é".encode()}, 256)
    assert accepts(compile_schema({"enum": ["é", "ab"]}, ascii_only), '"\\u00e9"')
    free = compile_schema({"type": "string"}, ascii_only)
    assert not accepts(free, '"é"')
    assert 200 not in allowed_ids(free.start(), ascii_only)
    pattern = {"type": "string", "pattern": "^é$"}
    with pytest.raises(UnsupportedSchema, match="no value"):
        compile_schema(pattern, ascii_only)
    with pytest.raises(UnsupportedSchema, match="no token for"):
        compile_schema(True, TokenVocabulary({1: b"a"}, 2))


def test_recursion(vocabulary: TokenVocabulary) -> None:
    """Case 46: the shape of the childresource schema of xgrammar#207."""
    schema = {
        "$ref": "#/definitions/resource",
        "definitions": {
            "resource": {
                "type": "object",
                "properties": {
                    "type": {"type": "string"},
                    "resources": {"type": "array", "items": {"$ref": "#/definitions/child"}},
                },
                "required": ["type"],
            },
            "child": {
                "allOf": [{"$ref": "#/definitions/resource"}, {"properties": {"name": {"type": "string"}}}],
                "required": ["name"],
            },
        },
    }

    def resource(depth: int) -> dict[str, object]:
        return {"type": "t", "resources": [resource(depth - 1) | {"name": "n"}] if depth else []}

    grammar = compile_schema(schema, vocabulary)
    for depth in range(7):
        assert accepts_value(grammar, resource(depth))
    assert any("contains itself at most" in note for note in grammar.notes)


@pytest.mark.parametrize("depth", [10, 40, 400])
def test_deep_nesting_compiles_or_is_refused(depth: int, vocabulary: TokenVocabulary) -> None:
    """Case 48."""
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    if depth > 100:
        with pytest.raises(UnsupportedSchema):
            compile_schema(schema, vocabulary)
    else:
        assert accepts(compile_schema(schema, vocabulary), "[" * depth + "]" * depth)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 10**6},
        {"type": "array", "items": {"type": "string", "minLength": 50}, "minItems": 100_000},
        {"type": "string", "pattern": "^(.*a){3000}.{4000}$"},
        {"allOf": [{"anyOf": [{"minLength": i} for i in range(30)]} for _ in range(3)], "type": "string"},
    ],
)
def test_explosions_are_refused(schema: dict[str, object], vocabulary: TokenVocabulary) -> None:
    """Case 48."""
    with pytest.raises(UnsupportedSchema):
        compile_schema(schema, vocabulary)


def test_a_large_enum(vocabulary: TokenVocabulary) -> None:
    """Case 48."""
    letters = "abcdefghijklmnopqrst"
    codes = [a + b + c + d for a in letters[:10] for b in letters[:5] for c in letters[:10] for d in letters[:10]]
    started = time.perf_counter()
    grammar = compile_schema({"type": "string", "enum": codes, "maxLength": 4}, vocabulary)
    print(f"enum of {len(codes)}: {time.perf_counter() - started:.2f} s")
    for code in codes[::97]:
        assert accepts_value(grammar, code)
    assert not accepts_value(grammar, "zzzz")
    assert grammar.shortest_tokens <= 6


def test_awkward_enum_values(vocabulary: TokenVocabulary) -> None:
    """Case 50: every value can be written, and comes back as it was, type included."""
    values = [
        "No",
        "No answer",
        "Not mentioned",
        'a"b',
        "C:\\x",
        "Ä",
        1,
        1.0,
        None,
        True,
        "",
        [],
        {},
        -0.5,
        "<b>\u2028",
    ]
    grammar = compile_schema({"enum": values}, vocabulary)
    for value in values:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert accepts(grammar, text)
        assert type(json.loads(text)) is type(value)
    for text in ('"no"', "2", "0", "false", '"No "', "1.00", "01"):
        assert not accepts(grammar, text)


def test_no_key_twice(vocabulary: TokenVocabulary) -> None:
    """Case 51."""
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": True}
    grammar = compile_schema(schema, vocabulary)
    for seed in range(10):
        stub = preferring(vocabulary, [b'"answer"', b"answer", b",", b":"], seed)
        text = write_answer(grammar, stub, cap=50) or write_answer(grammar, random_writer(grammar, seed), cap=300)
        if text is not None:
            json.loads(text, object_pairs_hook=no_repeated_keys)
    assert not accepts(grammar, '{"answer":"a","answer":"b"}')
    assert not accepts(grammar, '{"answer":"a","\\u0061nswer":"b"}')
