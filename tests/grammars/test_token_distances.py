"""The end is as far after each token as the index itself says."""

from typing import Any

import numpy as np
import pytest

from grammars import JsonGrammar, TokenVocabulary, compile_schema
from tests.grammars.helpers import allowed_ids, random_writer


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string", "maxLength": 5}},
        {"type": "object", "properties": {"é": {"type": "number"}, "b": {"enum": ["日本", "a\\u0001", None]}}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "string", "pattern": "^[a-c😀]{2,4}é*$"},
    ],
)
def test_every_token_of_every_state(schema: Any, vocabulary: TokenVocabulary) -> None:
    grammar = compile_schema(schema, vocabulary, backend="index")
    assert isinstance(grammar, JsonGrammar)
    seen = set()
    for number in range(4):
        state, text, choose = grammar.start(), b"", random_writer(grammar, number)
        while not state.must_stop and len(text) < 60:
            at = state._states[-1]
            ids = allowed_ids(state, vocabulary)
            if at not in seen:
                seen.add(at)
                tokens, needed = grammar._token_distances.after(at)
                assert sorted(tokens.tolist()) == ids.tolist()
                for token, distance in zip(tokens.tolist(), needed.tolist(), strict=True):
                    following = grammar.following(at, token)
                    assert following is not None
                    assert distance == grammar.end_distances.tokens[following]
            token = choose(np.asarray(ids), text)
            state.advance(int(token))
            text += vocabulary.tokens[int(token)]
    assert len(seen) > 5


def test_a_token_longer_than_others(vocabulary: TokenVocabulary) -> None:
    longer = TokenVocabulary(vocabulary.tokens | {vocabulary.size: b'ab":"cd","ef'}, vocabulary.size + 1)
    schema = {"type": "object", "properties": {"ab": {"type": "string"}, "efg": {"type": "null"}}}
    grammar = compile_schema(schema, longer, backend="index")
    assert isinstance(grammar, JsonGrammar)
    state = grammar.start()
    for text in ("{", '"'):
        state.advance(longer.usable[text.encode()][0])
    tokens, needed = grammar._token_distances.after(state._states[-1])
    distances = dict(zip(tokens.tolist(), needed.tolist(), strict=True))
    following = grammar.following(state._states[-1], vocabulary.size)
    assert following is not None
    assert distances[vocabulary.size] == grammar.end_distances.tokens[following]
