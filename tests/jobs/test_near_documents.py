"""Near-equal documents are counted, and never merged (case 26)."""

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from jobs.job_settings import InputSettings
from jobs.near_documents import DIFFERENCES, near_documents
from jobs.source import read_input
from tests.jobs.test_prompt import document_of

TEXT = "Café opens.\nIt closes at six."


def token_ids(text):
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def found(*texts):
    return near_documents([document_of(text) for text in texts], token_ids)


def test_case_26_equal_text_is_one_document_and_near_equal_text_is_counted(tmp_path):
    """Case 26."""
    variants = [
        TEXT, TEXT, TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT, TEXT.replace("\n", " \n") + "\n",
        unicodedata.normalize("NFD", TEXT), "Another text.",
    ]  # fmt: skip
    columns = {
        "doc_id": [f"d{number}" for number in range(7)],
        "document": variants,
        "question": ["When does it close?"] * 7,
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    data = read_input(InputSettings(("a.parquet",)), tmp_path)
    assert len(data.documents) == 6
    assert [row.document_hash for row in data.rows[:2]] == [document_of(TEXT).document_hash] * 2
    assert [row.doc_id for row in data.rows] == columns["doc_id"]

    near = near_documents(data.documents.values(), token_ids)
    assert near.groups == [tuple(document_of(text).document_hash for text in dict.fromkeys(variants[1:6]))]
    assert near.repeats == 4
    assert near.differences == {"byte order mark": 1, "line ends": 1, "Unicode form": 1, "trailing blanks": 1}
    # All but the twin with the byte order mark share their first bytes with another.
    assert len(("\ufeff" + TEXT).encode()) < near.tokens < 4 * len(TEXT.encode())
    assert f"{near.tokens:,} tokens again" in near.sentence()


def test_what_could_be_meant_is_not_near_equal():
    assert found("a b", "a  b", "A b", " a b", "a\n\nb", "a\nb").groups == []
    assert found("a b", "a c").sentence() == ""


def test_tokens_are_those_beyond_the_longest_path():
    near = found("same text\n", "same text", "same text\n\n")
    assert (near.repeats, near.tokens) == (2, 0)  # each is the beginning of the next
    assert found("x" * 50 + "\r\n" + "y" * 50, "x" * 50 + "\n" + "y" * 50).tokens == 51


def test_long_runs_of_blanks_take_no_longer():
    assert found(" " * 1_000_000 + "x", " " * 1_000_000 + "x ").repeats == 1


lines = st.lists(st.sampled_from(["", "a", "e\u0301 b", "é b", "ﬁ"]), min_size=1, max_size=4)


@given(lines, st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["", " ", "\t"]), st.booleans())
def test_each_difference_alone_is_found_and_named(parts, end, blanks, mark):
    """The other text is made of the first by one, two or three differences; all of them and no others are named."""
    first = "\n".join([*parts, "end"])
    other = ("\ufeff" if mark else "") + (blanks + end).join([*parts, "end"])
    near = found(first, other)
    wanted = {"byte order mark"} if mark else set()
    wanted |= {"line ends"} if end != "\n" else set()
    wanted |= {"trailing blanks"} if blanks else set()
    if first == other:
        return
    assert set(near.differences) == wanted
    assert set(DIFFERENCES) >= wanted
