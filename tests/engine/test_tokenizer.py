import json
from functools import cache
from itertools import pairwise

import pytest
import regex
from gguf import GGUFReader

from engine.embedded_model import PROBE_IDS, PROBE_TEXT, find_embedded_gguf
from engine.errors import ModelError
from engine.tokenizer import load_tokenizer, stop_token_ids
from tests.engine.tiny_models import byte_tokenizer, converted_smollm2, no_network

TEXTS = [
    PROBE_TEXT,
    "In 2023, 1,204 of 30000 people paid 17.50 EUR; it's 3x what they'd paid.\n\n\tTwo   spaces  \n",
    "Die Straßenbahn fährt um 23:59 über die Größe von 4² Plätzen — „wirklich“.",
    "模型在2024年回答了12个问题,准确率为97.5%。",
    "Модель ответила на 128 вопросов за 3,5 секунды.",
    "العربية ٣٤٥ و 678 — नमस्ते १२३",
]


@cache
def vocabulary():
    fields = GGUFReader(str(find_embedded_gguf())).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    return (
        {token: index for index, token in enumerate(tokens)},
        {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)},
    )


def byte_alphabet():
    """GPT-2's printable letter for every byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in plain else next(others)) for byte in range(256)}


def plain_bpe(text):
    """SmolLM2's encoding from the GGUF alone: single digits, GPT-2's split, then the merges, lowest rank first.

    The two patterns are those llama.cpp uses for the pre-tokenizer "smollm".
    """
    token_ids, ranks = vocabulary()
    letters = byte_alphabet()
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    ids = []
    for part in regex.findall(r"\p{N}|\P{N}+", text):
        for word in words.findall(part):
            symbols = [letters[byte] for byte in word.encode()]
            while len(symbols) > 1:
                pairs = list(pairwise(symbols))
                best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
                if best not in ranks:
                    break
                at = pairs.index(best)
                symbols[at : at + 2] = ["".join(best)]
            ids += [token_ids[symbol] for symbol in symbols]
    return ids


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(converted_smollm2()[0].folder)


def test_converted_tokenizer_splits_as_the_reference(tokenizer):
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == plain_bpe(text), text
        assert tokenizer.decode(ids) == text
    assert tuple(tokenizer.encode(PROBE_TEXT, add_special_tokens=False)) == PROBE_IDS


def test_digits_stand_alone(tokenizer):
    assert tokenizer.tokenize("10 000 1st") == ["1", "0", "Ġ", "0", "0", "0", "Ġ", "1", "st"]


def test_chat_template_and_control_tokens_survive(tokenizer):
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert tokenizer.encode("x") == tokenizer.encode("x", add_special_tokens=False), "no BOS is added"


def test_stop_ids_of_smollm2(tokenizer):
    assert stop_token_ids(converted_smollm2()[0].folder, tokenizer) == {2}


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 7}, {"eos_token_id": 9}, {7}),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 9}, {7, 8}),
        ({}, {"eos_token_id": 9}, {9}),
        (None, {"eos_token_id": [9, 10]}, {9, 10}),
    ],
)
def test_both_forms_of_eos_token_id(generation, config, expected, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert stop_token_ids(tmp_path) == expected
    assert stop_token_ids(tmp_path, byte_tokenizer()) == expected | {2}


def test_no_stop_id_and_a_bad_one(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no eos_token_id"):
        stop_token_ids(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": "</s>"}')
    with pytest.raises(ModelError, match="must be a token id"):
        stop_token_ids(tmp_path)


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_damaged_tokenizer(content, tmp_path):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with no_network() as attempts, pytest.raises(ModelError, match="tokenizer can't be loaded"):
        load_tokenizer(tmp_path)
    assert attempts == []


def test_large_vocabulary_asks_no_hub(tmp_path):
    """transformers looks for a Mistral on the hub when a vocabulary exceeds 100,000, unless told not to."""
    byte_tokenizer(surplus_tokens=100_000).save_pretrained(tmp_path)
    with no_network() as attempts:
        assert load_tokenizer(tmp_path).encode("a b")
    assert attempts == []
