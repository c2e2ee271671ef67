"""`docqa plan`: what it says of rows, tokens, memory and shared parts, and what it warns of."""

import io
import json
import re

import pytest
from rich.console import Console

from docqa.plan_view import print_plan
from tests.job_fixtures import sample_rows


def plan_of(docqa, path, *options):
    status, out, err = docqa("plan", path, "--json", *options)
    assert (status, err) == (0, "")
    return json.loads(out)


def heavy_tailed_rows():
    """In the shape of COVID-QA: 98 documents, 1,380 questions, 113 of them about one document."""
    counts = [113] + [13] * 97
    for number in range(1380 - sum(counts)):
        counts[1 + number] += 1
    return [
        {
            "doc_id": f"d{document}",
            "document": f"{document} is its number. " * 12,
            "question_id": f"q{question}",
            "question": f"What of {question}?",
        }
        for document, questions in enumerate(counts)
        for question in range(questions)
    ]


def test_a_plan_before_the_run(docqa, make_job):
    """Case 77, in the shape of its data; see test_what_if.py for the weights, which are not loaded."""
    rows = heavy_tailed_rows()
    rows[5]["document"], rows[5]["doc_id"] = "x" * 700, "long"
    found = plan_of(docqa, make_job(rows))
    assert (found["rows"], found["rows_to_run"], found["documents"]) == (1380, 1379, 98)
    assert found["rejected_by_status"] == {"too_long": 1}
    assert found["rows_answered"] == found["rows_done"] == 0
    assert found["shared_tokens"] == found["prompt_tokens"] - found["minimum_tokens"]
    assert found["hit_share"] == found["shared_tokens"] / found["prompt_tokens"] > 0.8
    most = found["shared_parts"]["parts"][0]["parts"][0]
    assert (most["doc_id"], most["rows"]) == ("d0", 112)


def test_the_expected_hit_share_tells_templates_apart(docqa, make_job):
    """Case 25: a row's own value before the document, or behind it."""
    rows = [row | {"row": f"{row['doc_id']}{row['question_id']}"} for row in sample_rows(5, 6)]
    behind = {"document": "{{ document }}", "question": "{{ extra.row }} {{ question }}"}
    good = plan_of(docqa, make_job(rows, prompt=behind))
    bad = plan_of(docqa, make_job(rows, prompt={"document": "Row {{ extra.row }}: {{ document }}"}))
    assert good["hit_share"] > 0.7
    assert bad["hit_share"] < good["hit_share"] / 2
    assert good["warnings"] == []
    assert bad["warnings"][0].startswith("prompt.document writes extra.row before text that rows share")
    # What the run then has is what was expected.
    path = make_job(rows, prompt=behind)
    summary = json.loads(docqa("run", path, "--json")[1])
    assert summary["cached_tokens"] / summary["prompt_tokens"] == good["hit_share"]


def test_every_row_has_one_place_in_the_plan(docqa, make_job, tmp_path):
    """Case 82."""
    rows = sample_rows(3, 4)
    rows[0]["document"], rows[0]["doc_id"] = "", "empty"
    rows[1]["question"] = None
    path = make_job(rows, run={"max_failures": "100%"})
    first = plan_of(docqa, path)
    assert first["rejected_by_status"] == {"empty_document": 1, "empty_question": 1}
    assert first["rows"] == first["rows_to_run"] + first["rows_rejected"] + first["rows_answered"] == 12
    assert re.search(r"that can't run +2 +1 empty_document, 1 empty_question", docqa("plan", path)[1])
    docqa("run", path, "--quiet")
    after = plan_of(docqa, path)
    assert (after["rows_answered"], after["rows_to_run"], after["rows_rejected"]) == (10, 0, 2)
    assert (after["input_order"], after["peak_kv_pages"], after["hit_share"]) == (None, 0, None)
    status, out, _ = docqa("plan", path)
    assert status == 0
    if after["time_estimate"] is not None:
        assert re.search(r"time +[0-9]+ s +to plan; nothing is left to compute", out)


def test_what_grouping_saves_and_what_is_shared(docqa, make_job):
    path = make_job(sample_rows())
    found = plan_of(docqa, path)
    parts = found["shared_parts"]
    assert parts["saved_tokens"] + parts["saved_tokens_below"] == found["shared_tokens"]
    [common] = parts["parts"]
    assert common["segments"] == ["system", "document"]
    assert [part["doc_id"] for part in common["parts"]] == ["d3", "d2", "d1", "d0"]  # the longest saves most
    in_order = found["input_order"]
    assert in_order["pool_pages"] == found["smallest_kv_pages"]
    assert in_order["saved_tokens"] == in_order["computed_tokens"] - found["minimum_tokens"] > 0
    ample = plan_of(docqa, path, "--set", "engine.kv_memory=64MiB")
    assert ample["input_order"]["saved_tokens"] == 0  # where all fits, order does not matter
    out = docqa("plan", path)[1]
    assert re.search(rf"grouping saves +{found['shared_tokens']:,} +tokens, against no reuse", out)
    assert re.search(r"document d3 .*: [0-9]+ tokens x 5 rows, saves [0-9,]+", out)
    console = Console(file=io.StringIO(), width=60)
    parts["parts"][0]["parts"][0]["doc_id"] = "a/long/path " * 10
    print_plan(found, console)
    last = f"saves {common['parts'][0]['saved_tokens']:,}"
    assert last in " ".join(console.file.getvalue().replace("│", " ").split()), "wrapped, and not cut"


def test_kv_memory_is_derived_where_it_is_said(docqa, make_job):
    found = plan_of(docqa, make_job(sample_rows()))
    # The tiny model: 2 layers, 2 KV heads of size 8, float32.
    assert (found["kv_dtype"], found["kv_bytes_per_token"]) == ("float32", 2 * 2 * 2 * 8 * 4)
    assert found["kv_bytes_per_token_derived"] == "keys and values x 2 layers x 2 KV heads x 8 x 4 bytes"
    page = 16 * found["kv_bytes_per_token"]
    assert found["peak_kv_bytes"]["float32"] == (found["peak_kv_pages"] + 1) * page
    assert found["smallest_kv_bytes"]["float32"] == (found["smallest_kv_pages"] + 1) * page
    assert found["smallest_kv_bytes"]["bfloat16"] * 2 == found["smallest_kv_bytes"]["float32"]
    [schema] = found["schemas"]
    assert schema["schema"] == "verdict"
    assert schema["seconds"] >= 0


@pytest.mark.parametrize(
    ("setting", "status", "words"),
    [
        ("engine.kv_memory=30000", "too_long", ["engine.kv_memory of 30,000 bytes has room for", "raise it to"]),
        ("sampling.max_tokens=5", "truncated", ["shortest answer of the schema verdict", "raise sampling.max_tokens"]),
    ],
)
def test_rows_that_will_fail_are_warned_of_with_the_cause(docqa, make_job, tmp_path, setting, status, words):
    path = make_job(sample_rows(), run={"max_failures": "100%"})
    [warning] = plan_of(docqa, path, "--set", setting)["warnings"]
    assert all(text in warning for text in words)
    summary = json.loads(docqa("run", path, "--set", setting, "--json")[1])
    said = int(re.search(r"([0-9,]+) rows", warning)[1].replace(",", ""))
    assert summary["rows_failed"] == said > 0
    errors = json.loads(docqa("report", tmp_path / "answers.duckdb", "--json")[1])["rows_by_status"]
    assert errors[status] == said


def test_a_pool_without_a_page_is_refused_by_the_run_and_the_plan_says_so(docqa, make_job):
    path = make_job(sample_rows(1, 2))
    [warning] = plan_of(docqa, path, "--set", "engine.kv_memory=100")["warnings"]
    assert "100 bytes holds no KV page of this model, so a run will refuse the job" in warning
    assert docqa("run", path, "--set", "engine.kv_memory=100")[0] == 2


def test_too_much_to_simulate_is_said_and_the_plan_goes_on(docqa, make_job, monkeypatch):
    path = make_job(sample_rows())
    monkeypatch.setattr("jobs.what_if.MOST_TOKENS", 300)
    found = plan_of(docqa, path, "--what-if")
    assert (found["input_order"]["computed_tokens"], found["input_order"]["saved_tokens"]) == (None, None)
    assert "at most 300 are simulated, so try a part of the input" in found["what_if"]["refused"]
    out = " ".join(docqa("plan", path, "--what-if")[1].split())
    assert "against input order: the prompts have" in out
    assert "what if: not simulated, the prompts have" in out
    monkeypatch.setattr("jobs.what_if.MOST_TOKENS", 2000)
    out = " ".join(docqa("plan", path, "--what-if")[1].split())
    assert "those of one in 2 documents with all their rows" in out


def test_what_if_is_a_table_and_says_when_there_is_nothing_to_simulate(docqa, make_job):
    path = make_job(sample_rows())
    out = docqa("plan", path, "--what-if")[1]
    found = plan_of(docqa, path, "--what-if")["what_if"]
    for strategy in found["strategies"]:
        for pool in strategy["pools"]:
            assert re.search(rf"{strategy['name']} +{pool['computed_tokens']:,} .* {pool['peak_pages']:,} ", out)
    docqa("run", path, "--quiet")
    assert "what if: not simulated, there is no row to run" in docqa("plan", path, "--what-if")[1]
