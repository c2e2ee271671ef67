"""Text as tokens: the reference tokenizer's, and never a control token, whatever kind of vocabulary it is."""

from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from jobs.job_settings import InputSettings
from jobs.prompt_text import TextTokenizer
from jobs.source import read_input

CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
LETTERS = [chr(code) for code in range(33, 127)]


def unigram():
    """A vocabulary that holds its control tokens as pieces, the best ones for their text."""
    pieces = [
        ("<unk>", 0.0),
        *((token, 0.0) for token in CONTROL),
        ("▁", -2.0),
        *((letter, -3.0) for letter in LETTERS),
    ]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>", *CONTROL])
    return backend


def byte_pairs():
    """A vocabulary with merges that lead to a control token, and blanks added behind it."""
    pieces = ["<unk>", *LETTERS, "<s", "<s>", "Ġ"]
    backend = Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(pieces)}, [("<", "s"), ("<s", ">")], unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<unk>", *CONTROL])
    backend.add_tokens(["<think>"])
    backend.add_tokens([AddedToken("    ", normalized=False)])
    return backend


@pytest.mark.parametrize("make", [unigram, byte_pairs])
@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.sampled_from([*CONTROL, "<think>", "<", "s>", "|im", "_end|>", "word", " ", "    ", "<unk>"])))
def test_no_text_becomes_a_control_token(make, parts):
    """Case 19."""
    backend, text = make(), "".join(parts)
    encoder = TextTokenizer(SimpleNamespace(backend_tokenizer=backend))
    ids = encoder.encode(text).tolist()
    forbidden = {backend.token_to_id(token) for token in [*CONTROL, "<think>"]} - {None}
    assert forbidden <= encoder.control_ids
    assert not set(ids) & encoder.control_ids
    assert backend.decode(ids, skip_special_tokens=False).lstrip() == text.lstrip()


@pytest.mark.parametrize("make", [unigram, byte_pairs])
@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(st.sampled_from("ab.x\n <s>▁"), max_size=6), max_size=6))
def test_a_batch_is_encoded_as_its_texts_are(make, texts):
    encoder = TextTokenizer(SimpleNamespace(backend_tokenizer=make()))
    assert [ids.tolist() for ids in encoder.encode_batch(texts)] == [encoder.encode(text).tolist() for text in texts]


def test_blanks_that_were_added_keep_their_ids():
    backend = byte_pairs()
    ids = TextTokenizer(SimpleNamespace(backend_tokenizer=backend)).encode("a    b").tolist()
    assert backend.token_to_id("    ") in ids


def test_case_28_text_is_split_as_by_the_reference(embedded_tokenizer, shared_data):
    """Case 28: one given text and 200 paragraphs of each language that is here."""
    encoder = TextTokenizer(embedded_tokenizer)
    texts = ["Hello world! Café déjà vu — 123 😊"]
    for folder in sorted(shared_data.glob("xquad_*")):
        texts += pq.read_table(folder / "nested.parquet", columns=["document"])["document"].to_pylist()[:200]
    assert len(texts) > 200
    for text in texts:
        assert encoder.encode(text).tolist() == embedded_tokenizer.encode(text, add_special_tokens=False)


def test_xquad_text_and_questions_survive_byte_for_byte(embedded_tokenizer, shared_data):
    """From Parquet to tokens and back."""
    encoder = TextTokenizer(embedded_tokenizer)
    for name in ("xquad_en", "xquad_zh"):
        path = shared_data / name / "nested.parquet"
        table = pq.read_table(path).to_pylist()
        data = read_input(InputSettings((str(path),)), shared_data)
        asked = [(row, question) for row in table for question in row["questions"]]
        assert len(data.rows) == len(asked) == 1190
        for row, (written, question) in zip(data.rows, asked, strict=True):
            assert row.question == question["question"]
            assert row.question_id == question["question_id"]
            assert row.doc_id == written["doc_id"]
            assert data.documents[row.document_hash].text == written["document"]
        texts = [document.text for document in data.documents.values()][::4] + [row.question for row in data.rows[::10]]
        for text in texts:
            assert embedded_tokenizer.decode(encoder.encode(text), clean_up_tokenization_spaces=False) == text
