"""Vocabularies without a model, and stub models that write answers through the masks."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

from grammars import AnswerGrammar, GuidanceState, JsonGrammarState, TokenVocabulary
from jobs.validate import AnswerValidator

MERGES = [
    '{"', '":', '":"', '","', '"}', '"}]', '[{"', "[]", "{}", "true", "false", "null", '"true', "not", " mentioned",
    " the", " a", "the", "ab", "abc", "10", "00", "123", "0.", "\n\n", "\t\t", "  ", '\\"', "\\n", "\\u", "\\\\", "é",
       "Ä", "日本", "answer", "quote", '"answer"', '":["', '"]', "No", '"No', " answer", "ud800", '\\u12"',
]  # fmt: skip
# Parts of characters, as byte-level vocabularies hold them.
SPLIT = ["é".encode()[:1] + b"", "日".encode()[:2], "日".encode()[1:], "😀".encode()[:3], "😀".encode()[2:] + b"a"]


def byte_vocabulary(spare: int = 5) -> TokenVocabulary:
    """All single bytes, some longer tokens, and `spare` ids at the end that stand for nothing."""
    texts = [bytes([byte]) for byte in range(256)] + [text.encode() for text in MERGES] + SPLIT
    return TokenVocabulary(dict(enumerate(texts)), len(texts) + spare)


def is_valid(schema: Any, text: str) -> bool:
    """True if both jsonschema and our own check find the text valid.

    A pattern that `re` can't read is left to our check; a key that repeats, as a map may have it, and a number beyond
    a double, as llguidance may write it, to jsonschema, which reads the last one and infinity.
    """
    error = AnswerValidator(schema).check(text).error
    if error is not None and not repeats_a_key(text) and "out of range" not in error:
        return False
    try:
        return bool(Draft202012Validator(schema).is_valid(json.loads(text)))
    except re.error:
        return True


def allowed_ids(
    state: JsonGrammarState | GuidanceState, vocabulary: TokenVocabulary, tokens_left: int | None = None
) -> np.ndarray:
    words = np.full(-(-vocabulary.size // 32), -1, dtype=np.int32)
    state.write_mask(words, tokens_left)
    return np.nonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))[0]


def accepts(grammar: AnswerGrammar, text: str) -> bool:
    """True if the grammar allows the text byte by byte, and to stop after it."""
    single = {content[0]: token_id for token_id, content in grammar.vocabulary.tokens.items() if len(content) == 1}
    state = grammar.start()
    for byte in text.encode("utf-8", "surrogatepass"):
        if byte not in single:
            return False
        try:
            state.advance(single[byte])
        except ValueError:
            return False
    return state.may_stop


def accepts_value(grammar: AnswerGrammar, value: Any) -> bool:
    return accepts(grammar, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


Chooser = Callable[[np.ndarray, bytes], int]


def write_answer(grammar: AnswerGrammar, choose: Chooser, cap: int, *, in_time: bool = False) -> bytes | None:
    """Let a stub choose tokens until it must stop, or None after `cap` tokens. It stops as soon as it may and would.

    `in_time`: the masks know how many tokens are left, as they do in the engine.
    """
    state, text = grammar.start(), b""
    for place in range(cap):
        if state.must_stop:
            return text
        ids = allowed_ids(state, grammar.vocabulary, cap - place if in_time else None)
        assert ids.size or state.may_stop, f"stuck after {text!r}"
        token_id = choose(np.append(ids, -1) if state.may_stop else ids, text)
        if token_id == -1:
            return text
        state.advance(int(token_id))
        text += grammar.vocabulary.tokens[int(token_id)]
    return text if state.must_stop or (in_time and state.may_stop) else None


def random_writer(grammar: AnswerGrammar, seed: int) -> Chooser:
    """Uniform over the mask, with a growing wish to close strings, lists and objects and to stop."""
    rng = random.Random(seed)
    closing = {token_id for token_id, text in grammar.vocabulary.tokens.items() if text and text[-1:] in b'"}]'}

    def choose(ids: np.ndarray, text: bytes) -> int:
        wish = 0.25 if len(text) < 80 else 0.95
        if rng.random() < wish:
            if ids[-1] == -1:
                return -1
            wanted = [token_id for token_id in ids if int(token_id) in closing]
            if wanted:
                return int(rng.choice(wanted))
        return int(ids[rng.randrange(ids.size)])

    return choose


def preferring(vocabulary: TokenVocabulary, wanted: list[bytes], fallback_seed: int = 0) -> Chooser:
    """Takes the first allowed of `wanted` at every step; else any token, at random, but closes in the end."""
    ids_of = [[token_id for token_id, text in vocabulary.tokens.items() if text == want] for want in wanted]
    rng = random.Random(fallback_seed)

    def choose(ids: np.ndarray, text: bytes) -> int:
        allowed = set(ids.tolist())
        for candidates in ids_of:
            for token_id in candidates:
                if token_id in allowed:
                    return token_id
        return int(ids[rng.randrange(ids.size)])

    return choose


def no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), f"repeated key in {names}"
    return dict(pairs)


def repeats_a_key(text: str) -> bool:
    """True if an object has a key twice: the one thing that a grammar of a map can't rule out."""
    try:
        json.loads(text, object_pairs_hook=no_repeated_keys)
    except AssertionError:
        return True
    return False


def assert_sound(grammar: AnswerGrammar, samples: int, seed: int = 0) -> int:
    """Random answers are strict, compact JSON, valid under the schema. Returns how many came to an end."""
    finished = 0
    for number in range(samples):
        answer = write_answer(grammar, random_writer(grammar, seed * 1000 + number), cap=600)
        if answer is None:
            continue
        finished += 1
        assert is_valid(grammar.schema, answer.decode()), answer
    shortest = grammar.shortest_text
    assert accepts(grammar, shortest), shortest
    assert is_valid(grammar.schema, shortest), shortest
    return finished
