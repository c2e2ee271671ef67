"""From tokenizers to bytes."""

from types import SimpleNamespace
from typing import Any

import pytest

from grammars import TokenVocabulary, compile_schema, stock_schema
from tests.grammars.helpers import accepts, assert_sound

tokenizers = pytest.importorskip("tokenizers")


def as_fast_tokenizer(backend: Any, special: list[int], added: list[int]) -> Any:
    return SimpleNamespace(
        backend_tokenizer=backend,
        all_special_ids=special,
        added_tokens_decoder=dict.fromkeys(special + added),
        get_vocab=backend.get_vocab,
    )


def test_byte_level() -> None:
    entries = {"Ġthe": 0, "Ã©": 1, "Ċ": 2, "{": 3, "<|im_end|>": 4, "<tool_call>": 5, "日": 6, "Ģ": 7}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(entries, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_tokens(["<tool_call>", "<extra>"])
    vocabulary = TokenVocabulary.from_tokenizer(as_fast_tokenizer(backend, [4], [5]), 6)
    assert vocabulary.tokens == {0: b" the", 1: "é".encode(), 2: b"\n", 3: b"{"}
    wider = TokenVocabulary.from_tokenizer(as_fast_tokenizer(backend, [4], [5]), 100)
    assert wider.tokens == vocabulary.tokens | {7: b"\x80"}


def test_sentencepiece() -> None:
    entries = {"<unk>": 0, "<s>": 1, "▁the": 2, "<0x0A>": 3, "<0xE6>": 4, "▁▁": 5, "日": 6, "</s>": 7, "<0xZZ>": 8}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(entries, [], byte_fallback=True, unk_token="<unk>"))
    decoders = tokenizers.decoders
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    vocabulary = TokenVocabulary.from_tokenizer(as_fast_tokenizer(backend, [0, 1, 7], []), 16)
    assert vocabulary.tokens == {2: b" the", 3: b"\n", 4: b"\xe6", 5: b"  ", 6: "日".encode(), 8: b"<0xZZ>"}


def test_other_tokenizers_are_refused() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(ValueError, match="neither byte-level nor SentencePiece"):
        TokenVocabulary.from_tokenizer(as_fast_tokenizer(backend, [], []), 1)
    with pytest.raises(ValueError, match="not a fast tokenizer"):
        TokenVocabulary.from_tokenizer(SimpleNamespace(), 1)


def test_digest_is_the_content() -> None:
    one = TokenVocabulary({1: b"a", 0: b"b"}, 4)
    assert one.digest == TokenVocabulary({0: b"b", 1: b"a", 9: b"x", 2: b""}, 4).digest
    assert one.digest != TokenVocabulary({0: b"b", 1: b"a"}, 5).digest
    assert one.digest != TokenVocabulary({0: b"a", 1: b"b"}, 4).digest
    assert len(one.digest) == 64


def test_fewest_tokens() -> None:
    vocabulary = TokenVocabulary(dict(enumerate([b"a", b"b", b"c", b"ab", b"bc", b"abc", b"cab"])), 8)
    assert vocabulary.fewest_tokens("") == 0
    assert vocabulary.fewest_tokens("abcab") == 2
    assert vocabulary.fewest_tokens("abab") == 2


def test_smollm2(smollm2: tuple[Any, TokenVocabulary]) -> None:
    tokenizer, vocabulary = smollm2
    assert not set(tokenizer.all_special_ids) & set(vocabulary.tokens)
    text = 'Grüße, "日本" 😀\n\t{"a": [1.5]}'
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(vocabulary.tokens[token_id] for token_id in ids).decode() == text
    grammar = compile_schema(stock_schema("verdict"), vocabulary)
    assert accepts(grammar, '{"verdict":"not mentioned","quote":"Grüße \\"日本\\""}')
    assert grammar.shortest_tokens < 12
    assert_sound(grammar, samples=10)
    state = grammar.start()
    for token_id in tokenizer.encode('{"verdict":"true","quote":"yes"}', add_special_tokens=False):
        state.advance(token_id)
    assert state.must_stop
    assert not any(word in grammar.regex for word in ("<|im_end|>", "endoftext"))
