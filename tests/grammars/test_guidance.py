"""Grammars that llguidance runs keep the same contract as those of an index."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammars import GuidanceState, TokenVocabulary, UnsupportedSchema, compile_schema
from grammars.guidance_schema import for_guidance
from tests.grammars.helpers import (
    accepts,
    accepts_value,
    allowed_ids,
    assert_sound,
    byte_vocabulary,
    is_valid,
    random_writer,
    write_answer,
)
from tests.grammars.instances import in_schema_order

VOCABULARY = byte_vocabulary()
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 6},
        "b": {"type": "array", "items": {"type": "number"}},
        "c": {"enum": ["No", "No answer", None]},
    },
}
GRAMMAR = compile_schema(SCHEMA, VOCABULARY, backend="llguidance")


def snapshot(state: GuidanceState) -> tuple[list[int], bool, bool, int | None, list[int]]:
    ids = allowed_ids(state, VOCABULARY).tolist()
    return ids, state.may_stop, state.must_stop, state.only_token, state.forced_tokens()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 60)), max_size=60))
def test_roll_back_is_exact(moves: list[tuple[int, int]]) -> None:
    state, taken = GRAMMAR.start(), []
    for pick, back in moves:
        ids = allowed_ids(state, VOCABULARY)
        if ids.size:
            taken.append(int(ids[pick % ids.size]))
            state.advance(taken[-1])
        if back > 50:
            count = min(back - 50, len(taken))
            state.roll_back(count)
            del taken[len(taken) - count :]
        again = GRAMMAR.start()
        for token_id in taken:
            again.advance(token_id)
        assert snapshot(state) == snapshot(again)


def test_a_mask_is_exactly_what_advance_takes() -> None:
    state = GRAMMAR.start()
    for token in ("{", '"', "a", '":', '"', "ab", "c", '"}'):
        token_id = VOCABULARY.usable[token.encode()][0]
        allowed = set(allowed_ids(state, VOCABULARY).tolist())
        assert max(allowed) < VOCABULARY.size
        for candidate in range(-3, VOCABULARY.size + 3):
            before = snapshot(state)
            if candidate in allowed:
                state.advance(candidate)
                state.roll_back(1)
            else:
                with pytest.raises(ValueError, match="not allowed"):
                    state.advance(candidate)
            assert snapshot(state) == before
        state.advance(token_id)
    assert (state.must_stop, state.only_token, allowed_ids(state, VOCABULARY).size) == (True, None, 0)


def test_states_are_independent_and_roll_back_has_an_end() -> None:
    one, other = GRAMMAR.start(), GRAMMAR.start()
    one.advance(ord("{"))
    assert snapshot(one) != snapshot(other)
    with pytest.raises(ValueError, match="take back 2 of 1"):
        one.roll_back(2)
    one.roll_back(1)
    assert snapshot(one) == snapshot(other)


def test_stopping() -> None:
    state = compile_schema({"enum": [1, 12, True]}, VOCABULARY, backend="llguidance").start()
    assert not state.may_stop
    state.advance(ord("1"))
    assert (state.may_stop, state.must_stop, state.only_token) == (True, False, None)
    state.advance(ord("2"))
    assert state.must_stop


@pytest.mark.parametrize("size", [311, 320, 321])
def test_masks_of_odd_sizes(size: int) -> None:
    vocabulary = TokenVocabulary(VOCABULARY.tokens, size)
    words = np.full(-(-size // 32) + 1, -1, dtype=np.int32)
    compile_schema({"type": "string"}, vocabulary, backend="llguidance").start().write_mask(words)
    assert np.unpackbits(words.view(np.uint8), bitorder="little").nonzero()[0].max() < 306


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (SCHEMA, [{"a": "é\n"}, {"c": "No answer"}, {"b": [1, -0.5]}]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [{"x": 1}]),
        ({"enum": ["a\"b", "C:\\x", "Ä", 1, 1.5, None, True, "", [], {}]}, ["Ä", [], {}, 1.5]),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "array", "items":
          {"$ref": "#/$defs/n"}}]}}}, [[[[[[[[None]]]]]]]]),
        ({"type": "string", "format": "colour", "minLength": 2}, ["ab"]),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["b"], "properties": {"b": {"const": 1}}}],
          "type": "object"}, [{"a": 1, "b": 1}]),
    ],
)  # fmt: skip
def test_sound_and_complete(schema: Any, values: list[Any]) -> None:
    grammar = compile_schema(schema, VOCABULARY, backend="llguidance")
    for value in values:
        assert accepts_value(grammar, value)
    assert_sound(grammar, samples=15)


def test_objects_are_closed_where_that_is_sound() -> None:
    assert not accepts(GRAMMAR, '{"a":"x","a":"y"}')
    assert not accepts(GRAMMAR, '{"z":1}')
    closed = {"additionalProperties": False}
    inner = {"type": "object", "properties": {"x": {}}}
    assert for_guidance({"properties": {"p": inner, "q": {"items": inner}}}) == {
        "properties": {"p": inner | closed, "q": {"type": ["array"], "items": inner | closed}},
            "type": ["object"], **closed,
    }  # fmt: skip
    for keyword in ("allOf", "oneOf", "anyOf"):
        combined = {"properties": {"p": {}}, keyword: [inner, {"type": "null"}]}
        assert for_guidance(combined) == combined
    for schema in ({"not": inner}, {"if": inner, "then": inner}, inner | {"required": ["y"]}, inner | {"enum": [{}]}):
        assert for_guidance(schema) == schema


@pytest.mark.parametrize("pattern", ["^\\S+$", "^\\D$", "\\W", "^[^\\s]$", "^[^\\d,]{1,2}$", "^a\\W?[^\\w]*$"])
def test_classes_that_readers_differ_about(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    grammar = compile_schema(schema, VOCABULARY, backend="llguidance")
    characters = [*map(chr, range(0x100)), *"\u0660\u0967\uff11\u1680\u2003\u2028\u200b\ufeff\u4e00"]
    for character in characters:
        for text in (character, "a" + character):
            assert not accepts_value(grammar, text) or is_valid(schema, json.dumps(text)), ascii(text)
    assert accepts_value(grammar, "a,") or accepts_value(grammar, "a") or accepts_value(grammar, "-")
    other = {"oneOf": [schema, {"type": "null"}]}
    with pytest.raises(UnsupportedSchema, match="readers differ"):
        compile_schema(other, VOCABULARY, backend="llguidance")


def test_what_it_would_judge_differently_is_refused() -> None:
    for schema in ({"multipleOf": 0.01}, {"type": "object", "minProperties": 2}, {"uniqueItems": True}, False):
        with pytest.raises(UnsupportedSchema):
            compile_schema(schema, VOCABULARY, backend="llguidance")


def test_a_vocabulary_without_the_characters_is_refused() -> None:
    ascii_only = TokenVocabulary({byte: bytes([byte]) for byte in range(0x80)}, 256)
    with pytest.raises(UnsupportedSchema, match="no token spells"):
        compile_schema({"type": "string"}, ascii_only, backend="llguidance")


def test_special_tokens_are_never_text(smollm2: tuple[Any, TokenVocabulary]) -> None:
    tokenizer, vocabulary = smollm2
    grammar = compile_schema({"type": "string"}, vocabulary, backend="llguidance")
    state = grammar.start()
    state.advance(vocabulary.usable[b'"'][0])
    allowed = set(allowed_ids(state, vocabulary).tolist())
    assert not allowed & set(tokenizer.all_special_ids)
    assert not any(min(vocabulary.tokens[token]) < 0x20 for token in allowed)
    assert len(allowed) > 40_000
    assert json.loads(grammar.shortest_text) == ""


def test_one_answer_does_not_spoil_the_next(corpus: list[dict[str, Any]], smollm2: tuple[Any, TokenVocabulary]) -> None:
    """With llguidance's own limits, a random answer to this schema made the start of every other one impossible."""
    record = next(record for record in corpus if record["id"] == "Github_hard---o21075")
    grammar = compile_schema(record["schema"], smollm2[1], backend="llguidance")
    write_answer(grammar, random_writer(grammar, 0), 150)
    text = json.dumps(in_schema_order(record["valid"][0], record["schema"]), separators=(",", ":"), ensure_ascii=False)
    state = grammar.start()
    for token in smollm2[1].spell(text.encode()):
        state.advance(token)
    assert state.may_stop
