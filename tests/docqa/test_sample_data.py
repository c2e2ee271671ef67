"""The sample data is consistent: quotes, verdicts, ids, sizes, and the Parquet file made from them."""

import importlib.util
import json
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data"


def _load_maker() -> ModuleType:
    """make_sample.py as a module; sample_data is not a package."""
    spec = importlib.util.spec_from_file_location("make_sample", SAMPLE / "make_sample.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_sample = _load_maker()
DOCUMENTS = make_sample.load_documents()
QUESTIONS = make_sample.load_questions()
ENTRIES = [pytest.param(doc_id, entry, id=entry["id"]) for doc_id, rows in QUESTIONS.items() for entry in rows]
VERDICT_SCHEMA = json.loads((SAMPLE / "verdict.json").read_text(encoding="utf-8"))


def test_every_document_has_questions():
    assert len(DOCUMENTS) == 4
    assert set(QUESTIONS) == set(DOCUMENTS)


@pytest.mark.parametrize("doc_id", DOCUMENTS)
def test_document_length(doc_id):
    assert 1000 <= len(DOCUMENTS[doc_id].split()) <= 2000


@pytest.mark.parametrize("doc_id", QUESTIONS)
def test_questions_of_a_document(doc_id):
    verdicts = Counter(entry["verdict"] for entry in QUESTIONS[doc_id])
    assert 8 <= verdicts.total() <= 12
    assert set(verdicts) == {"true", "false", "not mentioned"}
    assert min(verdicts.values()) >= 2
    assert len({entry["question"] for entry in QUESTIONS[doc_id]}) == verdicts.total()


def test_question_ids_are_unique():
    ids = Counter(entry["id"] for entries in QUESTIONS.values() for entry in entries)
    assert [name for name, count in ids.items() if count > 1] == []


@pytest.mark.parametrize(("doc_id", "entry"), ENTRIES)
def test_quote_is_one_sentence_of_its_document(doc_id, entry):
    assert set(entry) == {"id", "topic", "question", "verdict", "quote"}
    assert (entry["quote"] == "") == (entry["verdict"] == "not mentioned")
    if entry["quote"]:
        before, found, after = DOCUMENTS[doc_id].partition(entry["quote"])
        assert found
        assert entry["quote"] not in after, "the quote must name one place"
        assert (
            before[-1] == "\n" or before.endswith((". ", "? ", ".** ", ": ")) or before.rpartition("\n")[2][0].isdigit()
        )
        assert entry["quote"].endswith(".")
        assert after[0] in " \n"


@pytest.mark.parametrize("row", make_sample.make_table().to_pylist(), ids=lambda row: row["question_id"])
def test_gold_matches_the_schema(row):
    jsonschema.validate(json.loads(row["gold"]), VERDICT_SCHEMA)


def test_schema_is_valid():
    jsonschema.Draft202012Validator.check_schema(VERDICT_SCHEMA)


def test_parquet_is_up_to_date():
    assert make_sample.main(["--check"]) == 0


def test_parquet_is_the_long_layout_zstd_and_dictionary():
    parquet = pq.ParquetFile(make_sample.PARQUET)
    assert parquet.schema_arrow.names == ["doc_id", "document", "question_id", "question", "gold", "topic"]
    assert set(parquet.schema_arrow.types) == {pa.string()}
    document = parquet.metadata.row_group(0).column(1)
    assert document.compression == "ZSTD"
    assert "RLE_DICTIONARY" in document.encodings
    assert make_sample.PARQUET.stat().st_size < 64 * 1024


def test_rows_of_a_document_are_scattered():
    doc_ids = make_sample.make_table()["doc_id"].to_pylist()
    runs = 1 + sum(a != b for a, b in pairwise(doc_ids))
    assert runs > len(doc_ids) / 2


def test_bytes_are_deterministic(tmp_path):
    for name in ("a", "b"):
        make_sample.write_table(make_sample.make_table(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_check_finds_a_changed_or_missing_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_sample, "PARQUET", tmp_path / "questions.parquet")
    assert make_sample.main(["--check"]) == 1
    assert make_sample.main([]) == 0
    assert make_sample.main(["--check"]) == 0
    make_sample.write_table(make_sample.make_table().slice(1), make_sample.PARQUET)
    assert make_sample.main(["--check"]) == 1
    make_sample.PARQUET.write_bytes(b"not Parquet")
    assert make_sample.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err


def test_job_file_names_files_that_exist():
    job = tomllib.loads((SAMPLE / "job.toml").read_text(encoding="utf-8"))
    assert (SAMPLE / job["input"]["documents"]).is_file()
    assert (SAMPLE / job["answer"]["schema"]).is_file()
    assert job["sampling"] == {"temperature": 0.0, "max_tokens": 96}
    assert job["output"]["database"] == "answers.duckdb"
