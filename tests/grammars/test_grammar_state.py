"""The engine's side: masks, advancing, rolling back, stopping; and the cache."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammars import JsonGrammarState, TokenVocabulary, compile_schema, stock_schema, stock_schema_names
from tests.grammars.helpers import allowed_ids, assert_sound, byte_vocabulary

VOCABULARY = byte_vocabulary()
GRAMMAR = compile_schema(
    {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 6},
            "b": {"type": "array", "items": {"type": "number"}},
            "c": {"enum": ["No", "No answer", None]},
        },
    },
    VOCABULARY,
)


def snapshot(state: JsonGrammarState) -> tuple[list[int], bool, bool]:
    return allowed_ids(state, VOCABULARY).tolist(), state.may_stop, state.must_stop


@settings(max_examples=60, deadline=None)
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
    for token in ("{", '"', "a", '":', '"', "ab", "c"):
        token_id = next(token_id for token_id, text in VOCABULARY.tokens.items() if text == token.encode())
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


def test_states_are_independent_and_roll_back_has_an_end() -> None:
    one, other = GRAMMAR.start(), GRAMMAR.start()
    one.advance(ord("{"))
    assert snapshot(one) != snapshot(other)
    with pytest.raises(ValueError, match="take back 2 of 1"):
        one.roll_back(2)
    one.roll_back(1)
    assert snapshot(one) == snapshot(other)


def test_stopping() -> None:
    grammar = compile_schema({"enum": [1, 12, True]}, VOCABULARY)
    state = grammar.start()
    assert not state.may_stop
    state.advance(ord("1"))
    assert state.may_stop
    assert not state.must_stop
    state.advance(ord("2"))
    assert state.must_stop
    assert allowed_ids(state, VOCABULARY).size == 0


@pytest.mark.parametrize("size", [32, 33, 63, 64, 65])
def test_masks_of_odd_sizes(size: int) -> None:
    chosen = [*'{}[]",:\\-+.eE0123456789truefalsn']
    small = {index: character.encode() for index, character in enumerate(dict.fromkeys(chosen))}
    vocabulary = TokenVocabulary(small | {40: b"true", 62: b"un"}, size)
    grammar = compile_schema({"type": "string", "maxLength": 9}, vocabulary)
    words = np.full(-(-size // 32) + 1, -1, dtype=np.int32)
    state = grammar.start()
    state.advance(small_id(small, b'"'))
    state.write_mask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert bits[small_id(small, b"a")]
    assert not bits[size:].any()
    assert bits[min(40, size - 1)] == (size > 40)


def small_id(tokens: dict[int, bytes], text: bytes) -> int:
    return next(token_id for token_id, content in tokens.items() if content == text)


def test_stock_schemas() -> None:
    assert stock_schema_names() == ["answer", "boolean", "verdict"]
    for name in stock_schema_names():
        grammar = compile_schema(stock_schema(name), VOCABULARY)
        assert grammar.notes == ()
        assert_sound(grammar, samples=10)
        assert 0 < grammar.shortest_tokens <= len(grammar.shortest_text)
    with pytest.raises(KeyError, match="verdict"):
        stock_schema("verdicts")


def walk(grammar, text: bytes):
    """A state after the byte tokens of `text`."""
    state = grammar.start()
    for byte in text:
        state.advance(VOCABULARY.usable[bytes([byte])][0])
    return state


def spelled(state: JsonGrammarState) -> bytes:
    return b"".join(VOCABULARY.tokens[token] for token in state.forced_tokens())


def test_forced_text_ends_where_there_is_a_choice() -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes, it is", "yes, it was"]}, "quote": {"type": "string", "maxLength": 5}},
        "required": ["answer", "quote"],
    }
    grammar = compile_schema(schema, VOCABULARY)
    assert spelled(grammar.start()) == b'{"answer":"yes, it '
    assert spelled(walk(grammar, b'{"answer":"yes, it w')) == b'as","quote":"'
    assert spelled(walk(grammar, b'{"answer":"yes, it was","quote":"ab')) == b""
    assert spelled(walk(grammar, b'{"answer":"yes, it was","quote":"abcde')) == b'"}'
    done = walk(grammar, b'{"answer":"yes, it was","quote":"abcde"}')
    assert (done.must_stop, spelled(done)) == (True, b"")


def test_nothing_is_forced_where_the_answer_may_stop() -> None:
    grammar = compile_schema({"enum": [1, 12]}, VOCABULARY)
    state = walk(grammar, b"1")
    assert (state.may_stop, state.only_token, spelled(state)) == (True, None, b"")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_forced_tokens_and_the_only_token_are_what_the_masks_say(picks: list[int]) -> None:
    state = GRAMMAR.start()
    for pick in picks:
        ids = allowed_ids(state, VOCABULARY)
        if not ids.size:
            break
        only = int(ids[0]) if ids.size == 1 and not state.may_stop else None
        assert state.only_token == only
        forced = state.forced_tokens()
        if forced:
            first_bytes = {VOCABULARY.tokens[int(token)][:1] for token in ids}
            assert first_bytes == {VOCABULARY.tokens[forced[0]][:1]}
        for token in forced:
            state.advance(token)
        state.roll_back(len(forced))
        state.advance(int(ids[pick % ids.size]))


def test_two_tokens_in_the_highest_bits_of_a_word_are_not_one() -> None:
    """As a signed number such a word is -2**30, whose absolute value has one bit."""
    texts = [bytes([byte]) for byte in b'{}[]",:\\-+.eE0123456789truefalsnxyz']
    ids = {text: 40 + place for place, text in enumerate(dict.fromkeys(texts))}
    ids[b"x"], ids[b"y"] = 30, 31
    vocabulary = TokenVocabulary({token_id: text for text, token_id in ids.items()}, 96)
    state = compile_schema({"enum": ["x", "y"]}, vocabulary).start()
    assert state.only_token == ids[b'"']
    state.advance(ids[b'"'])
    assert allowed_ids(state, vocabulary).tolist() == [30, 31]
    assert state.only_token is None
