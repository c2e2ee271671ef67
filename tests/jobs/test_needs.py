"""Cases of NEEDS.md on Parquet input, documents and prompts, and scale: those that have no better place, and where the
others are."""

import os
import re
import subprocess
import sys
from pathlib import Path

from jobs.job_file import load_job
from jobs.run import prepare
from tests.job_fixtures import sample_rows
from tests.jobs.test_run import answers, assert_sound, query, run

TESTS = Path(__file__).resolve().parents[1]

ELSEWHERE = {
    1: ["jobs/test_source.py::test_files_with_different_columns_are_joined_by_name",
        "jobs/test_store.py::test_error_column_that_is_null_for_long_accepts_text_later"],
    2: ["jobs/test_source.py::test_files_with_different_columns_are_joined_by_name",
        "jobs/test_source.py::test_a_missing_required_column_names_file_and_column"],
    3: ["jobs/test_source_files.py::test_folder_values_stay_text_and_are_decoded_once"],
    4: ["jobs/test_source_files.py::test_a_column_that_repeats_its_folder_is_fine",
        "jobs/test_source_files.py::test_a_column_that_contradicts_its_folder_names_the_file"],
    5: ["jobs/test_source_files.py::test_folder_values_stay_text_and_are_decoded_once"],
    6: ["jobs/test_source_files.py::test_marker_and_side_files_are_passed_over"],
    7: ["jobs/test_source_files.py::test_all_bad_files_are_named_at_once",
        "jobs/test_source_files.py::test_bad_files_can_be_skipped_and_leave_no_rows",
        "jobs/test_run.py::test_files_that_were_skipped_make_a_run_partial"],
    8: ["jobs/test_source.py::test_no_rows_at_all_and_empty_row_groups"],
    10: ["jobs/test_source_values.py::test_ids_have_one_exact_text"],
    13: ["jobs/test_source.py::test_names_that_differ_in_case_need_a_setting",
         "jobs/test_source.py::test_two_columns_of_one_name_are_refused",
         "jobs/test_source.py::test_structs_with_two_fields_of_one_name_are_refused"],
    15: ["jobs/test_source.py::test_a_pandas_index_is_dropped"],
    16: ["jobs/test_source.py::test_identical_rows_merge_and_are_counted",
         "jobs/test_source.py::test_different_rows_with_one_key_are_named_both"],
    17: ["jobs/test_source.py::test_a_batch_too_large_for_arrow_is_read_in_smaller_ones",
         "jobs/test_input_scale.py::test_case_17"],
    18: ["jobs/test_prompt_frame.py::test_case_18_a_template_that_writes_bos_gives_exactly_one"],
    19: ["jobs/test_prompt.py::test_document_and_question_text_never_become_control_tokens",
         "jobs/test_prompt_text.py::test_no_text_becomes_a_control_token"],
    21: ["jobs/test_prompt_frame.py::test_case_21_a_template_without_a_system_role_is_rendered_once"],
    24: ["jobs/test_prompt_cut.py::test_a_long_document_is_cut_to_fit_and_what_was_used_is_recorded"],
    25: ["jobs/test_prompt_order.py::test_a_row_number_before_the_document_costs_every_document_again",
         "docqa/test_command_line.py::test_a_plan_warns_of_lost_reuse"],
    26: ["jobs/test_source.py::test_the_same_text_under_two_ids_is_one_document",
         "jobs/test_near_documents.py::test_case_26_equal_text_is_one_document_and_near_equal_text_is_counted",
         "jobs/test_identical_rows.py::test_identical_rows_are_computed_once_and_filed_under_each_key"],
    27: ["jobs/test_source.py::test_blank_documents_and_questions_are_rows_with_a_problem",
         "jobs/test_run.py::test_bad_rows_get_their_status_and_the_others_are_answered"],
    28: ["jobs/test_prompt_text.py::test_case_28_text_is_split_as_by_the_reference",
         "docqa/test_doctor.py::test_the_embedded_model_has_stored_ids"],
    83: ["jobs/test_plan_scale.py::test_a_run_of_95000_rows_takes_less_than_twice_the_memory_of_5000"],
    84: ["jobs/test_input_scale.py::test_case_84_one_row_group_holds_everything"],
    85: ["jobs/test_input_scale.py::test_case_85_forty_thousand_row_groups",
         "jobs/test_input_scale.py::test_case_85_twenty_thousand_files"],
    86: ["jobs/test_input_scale.py::test_case_86_a_column_beyond_two_gigabytes"],
    87: ["engine/test_engine.py::test_case_87_many_questions_and_many_documents",
         "docqa/test_run_log.py::test_progress_is_counted_in_tokens"],
    88: ["jobs/test_publish.py::test_publishing_takes_a_small_share_of_a_run",
         "jobs/test_publish.py::test_fifty_thousand_answers_are_journaled_and_published"],
}  # fmt: skip


def test_every_case_has_its_test():
    here = {int(number) for number in re.findall(r"^def test_case_(\d+)", Path(__file__).read_text(), re.M)}
    numbers = {*range(1, 9), 10, 13, *range(15, 20), *range(21, 30), *range(83, 89)}
    assert here | set(ELSEWHERE) == numbers
    for file, name in (place.split("::") for places in ELSEWHERE.values() for place in places):
        assert f"\ndef {name}" in (TESTS / file).read_text(), f"{file} has no {name}"


def test_case_22_one_prompt_beyond_the_context(make_job):
    rows = [
        {"doc_id": f"d{number}", "document": f"Number {number}.", "question_id": "q", "question": "Which?"}
        for number in range(100)
    ]
    rows[50]["document"] *= 180
    outcome = run(make_job(rows))
    found = answers(outcome.database)
    assert (outcome.exit_status, len(found)) == (1, 100)
    assert [key for key, (status, _) in found.items() if status != "ok"] == [("d50", "q")]
    [(status, error)] = query(outcome.database, "SELECT status, error FROM errors")
    assert status == "too_long"
    assert re.search(r"rows\.parquet row 51: the prompt has \d{4} tokens .*context is 600", error)
    assert_sound(outcome.database)


def test_case_23_a_row_runs_if_its_shortest_answer_still_fits(make_job):
    row = sample_rows(1, 1)[0]
    [planned] = prepare(load_job(make_job([row]))).plan.rows
    shortest, context = planned.schema.grammar.shortest_tokens, 600
    around = planned.prompt_tokens - len(row["document"])  # a token a byte
    lengths = [context - 1, context, context + 1, context - shortest, context - shortest + 1]
    rows = [
        row | {"doc_id": f"d{number}", "document": "x" * (length - around)} for number, length in enumerate(lengths)
    ]
    outcome = run(make_job(rows, run={"max_failures": "100%"}))
    found = query(
        outcome.database, "SELECT status, prompt_tokens, output_tokens, finish_reason FROM answers ORDER BY doc_id"
    )
    too_long = ("too_long", None, None, None)
    assert found[:3] == [too_long] * 3
    assert found[3:] == [("ok", context - shortest, shortest, "stop"), too_long]
    assert_sound(outcome.database)


def test_case_29_a_local_model_needs_no_network(make_job, tmp_path):
    """In a network of its own that leads nowhere, with an empty home; and nothing tries to connect."""
    program = """
__file__ = "program"  # without one, DuckDB thinks that a person looks on and draws a bar for what takes over 2 s
import sys
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo") and not isinstance(arguments[-1], str):
        print("connects:", event, arguments, file=sys.stderr)
sys.addaudithook(hook)
from docqa.main import main
main()
"""
    alone = ["unshare", "-Urn"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        alone = []
    path = make_job(sample_rows(1, 1))
    (tmp_path / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [*alone, sys.executable, "-c", program, "run", str(path), "--quiet"],
        capture_output=True, text=True, check=False, timeout=600, cwd=TESTS.parent,
        env={**kept, "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
