"""No answer is cut where its schema allows a shorter one: masks that know how many tokens are left."""

import json
from typing import Any

import pytest

from grammars import TokenVocabulary, compile_schema
from grammars.end_distances import EndDistances
from tests.grammars.helpers import Chooser, allowed_ids, is_valid, preferring, random_writer, write_answer

CLOSED = {"additionalProperties": False}
SCHEMAS: dict[str, Any] = {
    "two strings": {
        "type": "object", "properties": {"answer": {"type": "string"}, "quote": {"type": "string"}},
        "required": ["answer", "quote"], **CLOSED,
    },
    "bounded string": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 40}}, "required": ["a"]},
    "long minimum": {"type": "string", "minLength": 20},
    "list": {"type": "array", "items": {"type": "integer"}},
    "list of objects": {
        "type": "array",
        "items": {"type": "object", "properties": {"name": {"type": "string"}, "verdict": {"enum": ["yes", "perhaps"]}},
                  "required": ["name", "verdict"], **CLOSED},
    },
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
    "anything": True,
    "number": {"type": "number"},
    "pattern": {"type": "string", "pattern": "^(ab)*c{3,9}$"},
    "date": {"type": "string", "format": "date"},
    "one long or one short": {"anyOf": [{"const": "x" * 60}, {"type": "integer"}]},
    "tree": {
        "$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"v": {"type": "string"},
        "c": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "required": ["v", "c"], **CLOSED}},
    },
}  # fmt: skip


def stubs(vocabulary: TokenVocabulary) -> dict[str, Chooser]:
    return {
        "goes on": preferring(vocabulary, [b"a", b"b", b",", b"1", b'"', b"["]),
        "opens": preferring(vocabulary, [b"{", b"[", b",", b'"', "é".encode()]),
        "parts of characters": preferring(vocabulary, ["😀".encode()[:3], "日".encode()[:2], b"1", b'","', b","]),
        "white space": preferring(vocabulary, [b"\n\n", b" ", b"\t", b"  ", b"1"]),
        "escapes": preferring(vocabulary, [b"\\", b"\\n", b'\\"', b"0"]),
    }


@pytest.mark.parametrize("backend", ["index", "llguidance"])
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize(
    "spare", [(0, 1, 17), pytest.param((0, 1, 5, 17, 60), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_answers_end_within_their_tokens(
    name: str, backend: str, spare: tuple[int, ...], vocabulary: TokenVocabulary
) -> None:
    schema = SCHEMAS[name]
    grammar = compile_schema(schema, vocabulary, backend=backend)
    assert grammar.backend == backend
    for budget in (grammar.shortest_tokens + tokens for tokens in spare):
        for kind, stub in [*stubs(vocabulary).items(), ("random", random_writer(grammar, budget))]:
            answer = write_answer(grammar, stub, budget, in_time=True)
            assert answer is not None, (kind, budget)
            assert is_valid(schema, answer.decode()), (kind, answer)


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_too_few_tokens_leave_the_mask_alone(backend: str, vocabulary: TokenVocabulary) -> None:
    grammar = compile_schema({"enum": ["x" * 30, "y" * 30]}, vocabulary, backend=backend)
    state = grammar.start()
    assert allowed_ids(state, vocabulary, 3).tolist() == allowed_ids(state, vocabulary).tolist()


def test_the_last_token_closes(vocabulary: TokenVocabulary) -> None:
    grammar = compile_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, vocabulary)
    state = grammar.start()
    for text in ("{", '"', "a", '":', '"', "ab"):
        state.advance(vocabulary.usable[text.encode()][0])

    def texts(tokens_left: int) -> set[bytes]:
        return {vocabulary.tokens[int(token)] for token in allowed_ids(state, vocabulary, tokens_left)}

    assert texts(1) == {b'"}'}
    assert {b'"', b'"}', b"a"} <= texts(2)
    assert b"\xe6" not in texts(3)
    assert b"\xe6" in texts(4)  # two bytes of the character, and the end


def test_distances_fall_one_token_at_a_time(vocabulary: TokenVocabulary) -> None:
    grammar = compile_schema(SCHEMAS["list of objects"], vocabulary, backend="index")
    distances: EndDistances = grammar.end_distances
    for state, left in distances.tokens.items():
        following = [grammar.following(state, ids[0]) for ids in vocabulary.usable.values()]
        reached = [distances.tokens[found] for found in following if found is not None]
        assert (left == 0) == grammar.may_stop(state)
        assert left == 0 or min(reached) <= left - 1, (state, left)


def test_the_longest_answer_is_not_narrowed_early(vocabulary: TokenVocabulary) -> None:
    """A string may fill all of its row's tokens but those that the closing takes."""
    grammar = compile_schema(SCHEMAS["two strings"], vocabulary, backend="index")
    answer = write_answer(grammar, preferring(vocabulary, [b"a", b'"']), 50, in_time=True)
    assert answer is not None
    assert len(json.loads(answer)["answer"]) >= 34
