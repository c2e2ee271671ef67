"""Tokens that come to the same text: of a finite schema, those after which the same answers are left."""

import itertools
import json
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammars import compile_schema
from tests.grammars.helpers import allowed_ids, byte_vocabulary

VOCABULARY = byte_vocabulary()
VALUES = ["true", "false", "not mentioned", "No", "No answer", "Nothing", "yes, it is", "yes, it was", "", "ab", "abc",
          "Ä", 1, 12, 120, True, False, None]  # fmt: skip
enums = st.lists(st.sampled_from(VALUES), min_size=1, max_size=6, unique_by=lambda value: json.dumps(value))


def texts_of(first, second):
    return [
        json.dumps({"a": one, "b": other}, ensure_ascii=False, separators=(",", ":")).encode()
        for one, other in itertools.product(first, second)
    ]


@pytest.mark.parametrize("backend", ["index", "llguidance"])
@settings(max_examples=10, deadline=None)
@given(first=enums, second=enums, picks=st.lists(st.integers(0, 10_000), min_size=3, max_size=25))
def test_they_leave_the_same_answers(backend, first, second, picks):
    schema = {"type": "object", "properties": {"a": {"enum": first}, "b": {"enum": second}}, "required": ["a", "b"],
              "additionalProperties": False}  # fmt: skip
    grammar = compile_schema(schema, VOCABULARY, backend=backend)
    answers = texts_of(first, second)
    state, text = grammar.start(), b""
    for pick in picks:
        ids = allowed_ids(state, VOCABULARY)
        if not ids.size:
            assert state.same_text() == {}
            break
        left = defaultdict(list)
        for token in ids.tolist():
            begun = text + VOCABULARY.tokens[token]
            left[frozenset(answer for answer in answers if answer.startswith(begun))].append(token)
        groups = list(left.values())
        same = {token: sorted(set(tokens) & set(ids.tolist())) for token, tokens in state.same_text().items()}
        same = {token: tokens for token, tokens in same.items() if token in tokens and len(tokens) > 1}
        if backend == "index":
            assert same == {token: group for group in groups if len(group) > 1 for token in group}
        else:  # only where the text is forced
            assert all(set(tokens) <= set(next(group for group in groups if token in group))
                       for token, tokens in same.items())  # fmt: skip
            if len(groups) == 1 and len(ids) > 1:
                assert same == dict.fromkeys(ids.tolist(), sorted(ids.tolist()))
        token = int(ids[pick % ids.size])
        state.advance(token)
        text += VOCABULARY.tokens[token]


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_in_free_text_every_token_stands_alone(backend):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    state = compile_schema(schema, VOCABULARY, backend=backend).start()
    for byte in b'{"a":"free':
        state.advance(VOCABULARY.usable[bytes([byte])][0])
    same = state.same_text()
    assert not any(VOCABULARY.tokens[token][:1].isalnum() for token in same)
