"""Cases 77 to 82 of NEEDS.md, on reporting: those that have no better place, and where the others are."""

import json
import re
from collections import Counter
from pathlib import Path

import duckdb

from docqa.report_page_sums import ShownFigures
from tests.docqa.test_report_page import Page
from tests.job_fixtures import sample_rows, write_rows

TESTS = Path(__file__).resolve().parents[1]

ELSEWHERE = {
    77: ["docqa/test_plan.py::test_a_plan_before_the_run",
         "jobs/test_time_estimate.py::test_the_error_is_how_far_off_each_run_would_have_been",
         "jobs/test_time_estimate.py::test_a_run_records_what_it_did_and_the_next_plan_uses_it"],
    78: ["docqa/test_report.py::test_reuse_is_told_by_segment_cause_and_what_it_saved",
         "engine/test_repeated_tokens.py::test_what_was_computed_is_the_minimum_and_the_causes",
         "jobs/test_run_statistics.py::test_segments_add_up_to_the_prompts"],
    79: ["jobs/test_quotes.py::test_a_piece_of_the_document_is_found_letter_for_letter",
         "jobs/test_quotes.py::test_a_long_document_with_many_quotes",
         "jobs/test_quotes.py::test_gold_answers_of_xquad",
         "jobs/test_xquad.py::test_a_few_rows_with_quotes_that_are_known"],
    80: ["jobs/test_evaluate.py::test_offsets_that_disagree_are_defects_of_the_data",
         "jobs/test_evaluate.py::test_texts_as_squad_scores_them"],
    81: ["jobs/test_confidence.py::test_it_is_a_number_or_unknown_and_never_nan",
         "jobs/test_confidence.py::test_the_confidences_of_all_answers_to_a_question_sum_to_one",
         "jobs/test_confidence.py::test_rows_without_a_valid_answer_have_none"],
    82: ["docqa/test_plan.py::test_every_row_has_one_place_in_the_plan",
         "docqa/test_report.py::test_check_finds_what_does_not_agree",
         "docqa/test_report.py::test_check_reads_the_page_s_figures_back",
         "jobs/test_run_statistics.py::test_the_check_finds_what_does_not_agree"],
}  # fmt: skip


def test_every_case_has_its_test():
    here = {int(number) for number in re.findall(r"^def test_case_(\d+)", Path(__file__).read_text(), re.M)}
    assert here | set(ELSEWHERE) == set(range(77, 83))
    for file, name in (place.split("::") for places in ELSEWHERE.values() for place in places):
        assert f"\ndef {name}" in (TESTS / file).read_text(), f"{file} has no {name}"


def test_case_78_figures_are_those_of_one_run(docqa, make_job, tmp_path):
    """A second run asks one more question of each document, a third has nothing to do: neither shows the first's."""
    rows = sample_rows(3, 5)
    database = tmp_path / "answers.duckdb"
    reports = []
    for questions in ("0123", "01234", "01234"):
        path = make_job([row for row in rows if row["question_id"][1] in questions])
        assert docqa("run", path, "--quiet")[0] == 0
        reports.append(json.loads(docqa("report", database, "--json")[1]))
    first, second, third = reports
    assert [report["rows_ok"] for report in reports] == [12, 3, 0]
    for report, questions in ((first, 4), (second, 1)):
        assert {document["rows"] for document in report["documents"]} == {questions}
        assert report["computed_tokens"] == report["minimum_tokens"] == report["statistics"]["prompt_tokens"]
        assert sum(document["cached_tokens"] for document in report["documents"]) == report["cached_tokens"] > 0
        assert report["saved"]["seconds"] > 0
    assert second["reused_share"] < 0.5 < first["reused_share"]  # of a document, only the common opening
    # What the first run had computed of these documents and the second had to compute again: all but the questions.
    segments = {segment["segment"]: segment for segment in second["segments"]}
    known = segments["instructions"]["computed_tokens"] + segments["document"]["computed_tokens"]
    assert second["computed_in_earlier_runs"] == {"tokens": known, "documents": 3}
    assert first["computed_in_earlier_runs"] == {"tokens": 0, "documents": 0}
    assert (
        f"{known:,} of the computed tokens had been computed in an earlier run"
        in docqa("report", database, "--run", second["run_id"])[1]
    )
    assert (third["prompt_tokens"], third["reused_share"], third["documents"]) == (0, None, [])
    assert "12 answered before" not in docqa("report", database, "--run", first["run_id"])[1]
    assert docqa("report", database, "--check")[0] == 0


def test_case_82_input_rows_are_the_sum_over_statuses_everywhere(docqa, make_job, tmp_path):
    """Rows that are ok, cut, too long, empty, of a bad schema, duplicate, and in a file that is skipped."""
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [row | {"schema": "boolean"} for row in sample_rows(4, 5)]
    rows[0] |= {"document": "", "doc_id": "empty"}
    rows[1] |= {"question": None, "question_id": "blank"}
    rows[2] |= {"document": "x" * 900, "doc_id": "long"}
    rows[3] |= {"schema": "no-such-schema"}
    for row in rows[4:8]:
        row["schema"] = "verdict"  # whose answers don't fit
    files = {"a.parquet": rows[:10], "b.parquet": [*rows[10:], rows[12]]}  # one of its rows stands twice
    for name, part in files.items():
        write_rows(folder / name, part)
    (folder / "c.parquet").write_bytes(b"")
    path = make_job(None, input={"documents": "in", "on_bad_file": "skip"}, run={"max_failures": "100%"},
                    sampling={"max_tokens": 16})  # fmt: skip
    assert docqa("run", path, "--quiet")[0] == 1
    database, html = tmp_path / "answers.duckdb", tmp_path / "page.html"
    expected = {"ok": 12, "truncated": 4, "too_long": 1, "empty_document": 1, "empty_question": 1, "bad_schema": 1}
    with duckdb.connect(str(database), read_only=True) as connection:
        found = connection.execute("SELECT doc_id, question_id, status FROM answers").fetchall()
        [(total,)] = connection.execute("SELECT rows_ok + rows_failed FROM runs").fetchall()
    assert Counter(status for *_, status in found) == expected
    assert total == sum(expected.values()) == 20
    statuses = {(doc_id, question_id): status for doc_id, question_id, status in found}
    for part in files.values():  # per file: every row has its status, a repeated one that of the first
        assert all((row["doc_id"], row["question_id"]) in statuses for row in part)
    report = json.loads(docqa("report", database, "--json")[1])
    assert report["rows_by_status"] == expected
    assert [Path(entry["file"]).name for entry in report["bad_files"]] == ["c.parquet"]
    out = docqa("report", database)[1]
    for status, rows_of_it in expected.items():
        assert re.search(rf"^  {status} +{rows_of_it} *$", out, re.M)
    assert docqa("report", database, "--html", html)[0] == 0
    page = html.read_text()
    assert Counter(row["status"] for row in Page(page).rows) == expected
    shown = ShownFigures(page)
    assert (shown.totals["rows_ok"], shown.totals["rows_failed"], shown.totals["failures"]) == (12, 8, 8)
    assert shown.sums["failures.rows"] == 8
    assert docqa("report", database, "--check")[0] == 0
