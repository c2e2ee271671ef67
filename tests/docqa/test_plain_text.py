"""Texts of the user's are printed as they are: brackets are no markup, names between colons no emoji."""

import json

import pytest

from jobs.store import AnswerRecord, AnswerStore, DocumentRecord, RunEnding, RunRecord
from tests.job_fixtures import sample_rows

HOSTILE = "[b]x[/b] [/] [0] :smile:"
HASH = "0" * 64


@pytest.fixture
def database(tmp_path):
    """A run whose ids, names and errors could be taken for markup."""
    path = tmp_path / "answers.duckdb"
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id=HOSTILE, job_name=HOSTILE, rows_total=4))
    store.define_schema_views({"v": {"properties": {HOSTILE: {"enum": [HOSTILE, "[no]"]}}}})
    tokens = {"prompt_tokens": 2, "computed_tokens": 2, "minimum_tokens": 2, "cached_tokens": 0}
    times = {"ttft_seconds": 1.0, "latency_seconds": 2.0}
    rows = []
    for question_id in ("[a]", "[b]"):
        for doc_id in (HOSTILE, "[/b]"):
            value = json.dumps({HOSTILE: HOSTILE})
            failed = (question_id, doc_id) == ("[b]", "[/b]")
            answer = {"status": "failed", "error": HOSTILE} if failed else {"status": "ok", "answer": value}
            rows.append(AnswerRecord(run_id=HOSTILE, doc_id=doc_id, question_id=question_id, document_hash=HASH,
                                     schema_name="v", extra=json.dumps({"gold": {HOSTILE: HOSTILE}}),
                                     **answer, **tokens, **times))  # fmt: skip
    store.write_answers(rows, [DocumentRecord(HASH, 1, 1)])
    store.finish_run(RunEnding(run_id=HOSTILE, status="finished", error=HOSTILE))
    return path


@pytest.mark.parametrize(("command", "least"), [("status", 2), ("report", 5), ("eval", 5)])
def test_texts_in_tables_and_lines(docqa, database, monkeypatch, command, least):
    monkeypatch.setenv("COLUMNS", "400")
    status, out, err = docqa(command, database)
    assert (status, err) == (0, "")
    assert out.count(HOSTILE) >= least, out
    assert "\N{SMILING FACE WITH OPEN MOUTH AND SMILING EYES}" not in out


def test_a_plan_and_its_rejected_rows(docqa, make_job, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    path = make_job([*sample_rows(1, 1), {"doc_id": HOSTILE, "document": "", "question_id": "q", "question": "?"}],
                    output={"database": "[b].duckdb"})  # fmt: skip
    out = docqa("plan", path)[1]
    assert f"empty_document: {HOSTILE} / q" in out
    assert f"{tmp_path}/[b].duckdb" in out


def test_no_text_steers_the_terminal(docqa, make_job, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    odd = "\x1b[2J\x9b1m\x00é\t"
    rows = [row | {"doc_id": odd} for row in sample_rows(1, 2)]
    rows[0] |= {"document": ""}
    status, out, err = docqa("plan", make_job(rows))
    assert (status, "\x1b" in out + err, "\x9b" in out + err) == (0, False, False)
    assert "empty_document: ␛[2J�1m␀é" in out
    rows[0] |= {"document": rows[1]["document"], "question_id": rows[1]["question_id"]}
    status, _, err = docqa("plan", make_job(rows, input={"documents": "rows.parquet", "columns": {"gold": "\x1bc"}}))
    assert (status, "\x1b" in err) == (2, False)


def test_a_schema(docqa, tmp_path, tiny_model_folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    path = tmp_path / "[b].json"
    path.write_text(json.dumps({"type": "object", "properties": {HOSTILE: {"enum": ["x"], "[0]": 1}}}))
    out = docqa("schema", path, "--model", tiny_model_folder)[1]
    escaped = HOSTILE.replace("/", "~1")
    assert f"/properties/{escaped}" in out
    assert "\\[" not in out
