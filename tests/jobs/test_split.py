"""Documents longer than the context, asked in overlapping pieces whose answers are combined."""

import json
import re
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from docqa.plan_summary import plan_summary
from docqa.report_figures import report_of
from engine.forward_work import ForwardWork
from jobs.errors import JobFileError
from jobs.job_file import load_job
from jobs.job_settings import SplitSettings
from jobs.observe import Observer
from jobs.prompt_split import piece_places
from jobs.resume import Selection
from jobs.run import prepare
from jobs.store import AnswerStore
from jobs.time_estimate import PlannedWork
from tests.jobs.test_after import program_rows, prompts_made  # noqa: F401
from tests.jobs.test_run import answers, assert_sound, query, run

SPLIT = {"run": {"on_too_long": "split", "max_failures": "100%"}, "split": {"overlap_tokens": 20},
         "sampling": {"max_tokens": 60}}  # fmt: skip


def long_text(sentences=60, name="long"):
    return " ".join(f"Sentence {number} of the {name} document says {number * 7}." for number in range(sentences))


def split_rows(questions=2, sentences=60):
    """A document of several contexts, and one that fits."""
    documents = {"long": long_text(sentences), "short": "A short one. It says 5."}
    return [{"doc_id": doc_id, "document": text, "question_id": f"q{q}", "question": f"What is said about {q}?"}
            for doc_id, text in documents.items() for q in range(questions)]  # fmt: skip


def test_pieces_share_their_instructions_and_all_calls_are_counted(make_job):
    """Case 24."""
    path = make_job(split_rows(), **SPLIT)
    notes = []
    outcome = run(path, observer=Observer(on_note=notes.append))
    counted = query(outcome.database, "SELECT kind, count(*) FROM calls GROUP BY 1 ORDER BY 1 DESC")
    assert f"{counted[0][1]} calls, and those that combine their answers" in notes[-1]
    said = report_of(AnswerStore(outcome.database, read_only=True), None)["calls"]
    assert [(entry["kind"], entry["calls"], entry["rows"]) for entry in said] == [(*kind, 2) for kind in counted]
    record = outcome.run
    assert (outcome.exit_status, record.error, record.rows_total, record.rows_ok) == (0, None, 4, 4)
    assert record.computed_tokens == record.minimum_tokens < record.prompt_tokens * 0.7
    text = long_text()
    calls = query(
        outcome.database,
        "SELECT doc_id, question_id, kind, piece_start, piece_end, uses, chosen, answer FROM calls ORDER BY ALL",
    )
    assert {row[0] for row in calls} == {"long"}
    for question in ("q0", "q1"):
        own = [row[2:] for row in calls if row[1] == question]
        pieces = [row for row in own if row[0] == "piece"]
        assert len(pieces) > 2
        assert pieces[0][1] == 0
        assert pieces[-1][2] == len(text)
        for before, after in pairwise(pieces):
            assert before[1] < after[1] < before[2] < after[2]
            assert re.search(r"[.]\s$", text[: before[2]]), "it ends with a sentence"
        [last] = [row for row in own if row[5 - 1]]
        assert last[0] == "combine"
        assert answers(outcome.database)["long", question] == ("ok", last[5])
    used = query(outcome.database, "SELECT DISTINCT document_tokens = used_document_tokens FROM answers")
    assert used == [(True,)]
    assert_sound(outcome.database)
    again = run(make_job(None, **SPLIT))
    assert (again.exit_status, again.run.rows_reused) == (0, 4)


def test_prompts_have_the_piece_or_the_answers(make_job, prompts_made):  # noqa: F811
    outcome = run(make_job(split_rows(1), **SPLIT))
    text = long_text()
    parts = query(outcome.database, "SELECT kind, piece_start, piece_end, answer, uses FROM calls ORDER BY call")
    prompts = list(prompts_made.values())
    for kind, start, end, _, uses in parts:
        if kind == "piece":
            assert any(
                f"Document:\n{text[start:end]}\n\nQuestion: What is said about 0?" in prompt for prompt in prompts
            )
        else:
            listed = "".join(f"{n}. {parts[call][3]}\n" for n, call in enumerate(json.loads(uses), start=1))
            assert any(f"in their order:\n{listed}Make one answer" in prompt for prompt in prompts)


def test_the_work_of_combining_is_foreseen_and_not_a_whole_context(make_job):
    prepared = prepare(load_job(make_job(split_rows(), **SPLIT), ["sampling.max_tokens=20"]))
    plan, work = prepared.plan, ForwardWork.of(prepared.model.config)
    pieces = PlannedWork.of(replace(plan, combining_tokens=0), work, 20).prompt_flops
    combining = PlannedWork.of(plan, work, 20).prompt_flops - pieces
    assert 0 < combining < plan.rows_split * work.flops(0, 400), "the context has 600 tokens"
    summary = plan_summary(prepared, prepare_seconds=0.0)
    assert (summary["rows_split"], summary["piece_calls"]) == (2, len(plan.rows) - 2)


def test_many_answers_are_combined_in_levels(make_job):
    settings = {**SPLIT, "split": {"overlap_tokens": 5, "piece_tokens": 90}}
    outcome = run(make_job(split_rows(1, 40), **settings))
    assert outcome.exit_status == 0
    combined = query(outcome.database, "SELECT call, uses FROM calls WHERE kind = 'combine' ORDER BY call")
    assert len(combined) > 2
    used = [call for _, uses in combined for call in json.loads(uses)]
    calls = query(outcome.database, "SELECT max(call) FROM calls")[0][0]
    assert sorted(used) == list(range(calls)), "each answer goes into one of a higher level"
    assert_sound(outcome.database)


def test_quotes_are_located_in_the_whole_document(make_job, tmp_path):
    path = make_job(split_rows(1), **SPLIT)
    quote = {"type": "string", "x-docqa": "quote", "enum": ["Sentence 57 of the long"]}
    schema = {"type": "object", "properties": {"q": quote}, "required": ["q"], "additionalProperties": False}
    (tmp_path / "verdict.json").write_text(json.dumps(schema))
    outcome = run(path)
    start = long_text().index("Sentence 57")
    [(quotes,)] = query(outcome.database, "SELECT quotes FROM answers WHERE doc_id = 'long'")
    assert json.loads(quotes)["/q"] == {"start": start, "end": start + 23, "found": True, "exact": True}


def test_without_a_piece_s_answer_the_row_fails_and_says_which(make_job):
    path = make_job(split_rows(1), **SPLIT)
    outcome = run(path, ["sampling.max_tokens=20"])
    assert answers(outcome.database)["long", "q0"][0] == "truncated"
    [(error,)] = query(outcome.database, "SELECT error FROM errors WHERE doc_id = 'long'")
    assert re.match(r"piece 1 of \d+: the answer was cut after 20 tokens", error)
    assert query(outcome.database, "SELECT DISTINCT kind, chosen FROM calls") == [("piece", False)]
    assert_sound(outcome.database)
    again = run(path, select=Selection.FAILED)
    assert (again.exit_status, again.run.rows_ok) == (0, 2)


def test_what_does_not_fit_the_memory_is_too_long(make_job):
    outcome = run(make_job(split_rows(1), **SPLIT), ["engine.kv_memory=64KiB"])
    assert {status for status, _ in answers(outcome.database).values()} <= {"too_long", "ok"}
    assert answers(outcome.database)["long", "q0"][0] == "too_long"
    assert_sound(outcome.database)


def test_questions_after_others_are_asked_of_pieces_too(make_job):
    rows = [row | {"document": long_text(60, row["doc_id"]), "follow_up": row["question_id"] == "d"}
            for row in program_rows(2)]  # fmt: skip
    room = ["split.piece_tokens=200", "sampling.max_tokens=40"]  # for the earlier turns
    outcome = run(make_job(rows, **SPLIT), room)
    assert (outcome.exit_status, outcome.run.error, outcome.run.rows_ok) == (0, None, 10)
    assert_sound(outcome.database)
    assert run(make_job(None, **SPLIT), room).run.rows_reused == 10


def test_settings_of_the_split_belong_to_the_request(make_job):
    run(make_job(split_rows(1), **SPLIT))
    other = {**SPLIT, "split": {"overlap_tokens": 30}}
    plan = prepare(load_job(make_job(None, **other))).plan
    assert (plan.rows_to_run, plan.changed_by, plan.rows_split) == (1, {"split": 1}, 1)
    assert "1 rows have a document that is longer" in " ".join(plan.notes)


def test_the_settings_that_readme_shows_are_the_defaults():
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    [shown] = [tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
               if "[split]" in block]  # fmt: skip
    defaults = SplitSettings()
    assert shown["split"] == {"piece_tokens": "auto", "overlap_tokens": defaults.overlap_tokens,
                              "combine": defaults.combine}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"overlap_tokens": 300}, "split.overlap_tokens is 300, and pieces have"),
     ({"combine": "no answers"}, "split.combine does not use {{ answers }}"),
     ({"combine": "{{ answers }} {{ question }}"}, "split.combine uses {{ question }}"),
     ({"combine": "{{ answers"}, "not a valid template")],
)  # fmt: skip
def test_settings_that_can_not_be_used_are_refused(make_job, settings, text):
    with pytest.raises(JobFileError) as error:
        prepare(load_job(make_job(split_rows(1), **SPLIT | {"split": settings})))
    assert text in str(error.value)


def test_samples_of_a_row_in_pieces_are_refused_row_by_row(make_job):
    path = make_job(split_rows(1), **SPLIT)
    outcome = run(path, ["sampling.temperature=1.0", "sampling.samples=3"])
    assert answers(outcome.database)["long", "q0"][0] == "too_long"
    assert "set samples to 1" in query(outcome.database, "SELECT error FROM errors WHERE doc_id = 'long'")[0][0]


def test_a_long_question_is_too_long(make_job):
    rows = [row | {"question": "Why? " * 100} for row in split_rows(1)[:1]]
    plan = prepare(load_job(make_job(rows, **SPLIT))).plan
    assert [row.status for row in plan.rejected] == ["too_long"]
    assert "a prompt with a piece of its document" in plan.rejected[0].error


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60, deadline=None)
@given(
    st.text(alphabet="ab .\n\u3002", min_size=1, max_size=200),
    st.integers(3, 40),
    st.integers(0, 19),
    st.integers(1, 3),
)
@example("aaaa aa", 3, 0, 2)  # the space ends a piece within a token
def test_pieces_cover_the_text_overlap_and_go_on(text, piece_tokens, overlap_tokens, characters_a_token):
    """A token ends after every few characters."""
    overlap_tokens = min(overlap_tokens, (piece_tokens - 1) // 2)
    ends = np.array([*range(characters_a_token, len(text), characters_a_token), len(text)])
    places = piece_places(text, ends, piece_tokens, overlap_tokens)
    assert places[0][0] == 0
    assert places[-1][1] == len(text)
    for start, end in places:
        assert 0 <= start < end <= len(text)
        assert end - start <= (piece_tokens + 1) * characters_a_token
    for before, after in pairwise(places):
        assert before[0] < after[0] <= before[1] < after[1]
        assert before[1] - after[0] <= (overlap_tokens + 1) * characters_a_token
