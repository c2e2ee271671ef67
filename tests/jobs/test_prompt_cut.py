"""Documents longer than the context, cut at their end: run.on_too_long = "truncate" (cases 22 to 24 of NEEDS.md)."""

import hashlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docqa.plain_console import plain_console
from docqa.plan import plan_summary, print_plan
from docqa.report_figures import report_of
from engine.prefix_order import depth_first_order, first_positions
from grammars import TokenVocabulary
from jobs.errors import JobFileError
from jobs.job_file import load_job
from jobs.job_settings import PromptSettings
from jobs.plan_order import first_positions_in_order, plan_order
from jobs.prompt import Asked, PromptBuilder
from jobs.prompt_cut import DocumentCut
from jobs.run import Observer, prepare
from jobs.source import Document, InputRow
from jobs.store import AnswerStore
from tests.engine.tiny_models import byte_tokenizer
from tests.job_fixtures import CHAT_TEMPLATE, sample_rows
from tests.jobs.test_run import assert_sound, query, run

CONTEXT, LONGEST_ANSWER = 600, 60


def long_rows(length=3000):
    """Two documents, one too long, with questions of different lengths."""
    rows = sample_rows(2, 4)
    for row in rows:
        row["document"] = (row["document"] * 100)[: length if row["doc_id"] == "d0" else 200]
        row["question"] = "What is it?" + " Please." * int(row["question_id"][1:])
    return rows


def test_a_long_document_is_cut_to_fit_and_what_was_used_is_recorded(make_job):
    notes = []
    path = make_job(long_rows(), run={"on_too_long": "truncate"})
    plan = prepare(load_job(path)).plan
    outcome = run(path, observer=Observer(on_note=notes.append))
    record = outcome.run
    assert (outcome.exit_status, record.rows_ok, record.rows_failed) == (0, 8, 0)
    assert (plan.rows_cut, plan.documents_cut) == (4, 1)
    assert "4 rows get only the beginning of their document" in "".join(notes)
    found = query(
        outcome.database,
        "SELECT doc_id, prompt_tokens, document_tokens, used_document_tokens FROM answers ORDER BY doc_id, question_id",
    )
    whole = len("Document:\n") + 3000
    assert [row[1:3] for row in found[:4]] == [(CONTEXT - LONGEST_ANSWER, whole)] * 4
    # Each longer question leaves so much less for the document.
    assert [found[0][3] - row[3] for row in found[:4]] == [len(" Please.") * number for number in range(4)]
    assert all(used == document for _, _, document, used in found[4:])
    difference = "CAST(prompt_segments->'document'->>'prompt_tokens' AS BIGINT) - used_document_tokens"
    assert query(outcome.database, f"SELECT DISTINCT {difference} FROM answers") == [(0,)]
    # The beginnings of one document are one path of the prefix tree, so every position is computed once.
    assert record.computed_tokens == record.minimum_tokens
    prompts = [planned.prompt for planned in plan.rows]
    assert record.minimum_tokens == sum(first_positions([prompts[index] for index in depth_first_order(prompts)]))
    rows = long_rows()
    text = next(row["document"] for row in rows if row["doc_id"] == "d0")
    document = query(
        outcome.database, "SELECT document_hash, characters, tokens FROM documents WHERE characters = 3000"
    )
    assert document == [(hashlib.sha256(text.encode()).hexdigest(), 3000, whole)]
    cut = report_of(AnswerStore(outcome.database, read_only=True), None)["cut"]
    used = sum(row[3] for row in found[:4])
    assert cut == {"rows": 4, "documents": 1, "document_tokens": 4 * whole, "used_document_tokens": used}
    assert_sound(outcome.database)


def test_rows_are_asked_anew_when_the_limit_changes_and_only_then(make_job):
    path = make_job(long_rows(), run={"on_too_long": "truncate"})
    assert run(path).run.rows_ok == 8
    assert run(path).run.rows_ok == 0
    # Another question, even the longest, changes no other row.
    more = [*long_rows(), long_rows()[0] | {"doc_id": "d0", "question_id": "q9", "question": "Is it so? " * 12}]
    more[-1]["document"] = next(row["document"] for row in more if row["doc_id"] == "d0")
    assert run(make_job(more, run={"on_too_long": "truncate"})).run.rows_ok == 1
    shorter = prepare(load_job(path, ["sampling.max_tokens=50"])).plan
    assert (shorter.rows_changed, shorter.changed_by["sampling"]) == (9, 9)
    refused = prepare(load_job(path, ["run.on_too_long=error"])).plan
    assert refused.rejected_by_status == {"too_long": 5}


def test_a_question_that_leaves_no_room_is_too_long(make_job):
    rows = long_rows()
    rows[0]["question"] = "x" * 560
    outcome = run(make_job(rows, run={"on_too_long": "truncate", "max_failures": "100%"}))
    [(error,)] = query(outcome.database, "SELECT error FROM errors WHERE status = 'too_long'")
    assert "no part of its document would fit" in error
    assert outcome.run.rows_ok == 7


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def prompts_of(tokenizer, asked, **settings):
    """The builder, and (row, document, prompt) of (document, question) pairs."""
    builder = PromptBuilder(PromptSettings(system="S.", **settings), tokenizer)
    rows = []
    for number, (text, question) in enumerate(asked):
        document = Document(hashlib.sha256(text.encode()).hexdigest(), text)
        row = InputRow("d", f"q{number}", document.document_hash, question, None, None, {}, None, "a.parquet row 1")
        rows.append((row, document))
    prompts = builder.prompts(Asked(row, document, "verdict", "{}") for row, document in rows)
    return builder, [(*pair, prompt) for pair, prompt in zip(rows, prompts, strict=True)]


def cut_of(builder, tokenizer, context, max_tokens):
    vocabulary = TokenVocabulary.from_tokenizer(tokenizer, 320)
    return DocumentCut(builder, vocabulary, context_length=context, max_tokens=max_tokens)


def words(letters, most):
    return st.lists(st.sampled_from(letters), min_size=1, max_size=most).map("".join)


PIECES = words("ab日é\U0001f600", 6)
TEXTS = st.lists(
    st.builds(lambda start, piece, times: start + piece * times, PIECES, PIECES, st.integers(0, 150)),
    min_size=1,
    max_size=3,
)
QUESTIONS = st.lists(words("pq?", 20), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, QUESTIONS, st.integers(120, 900), st.integers(1, 80), st.integers(1, 30))
def test_what_is_cut_is_the_beginning_of_its_document_in_whole_characters(
    tokenizer, texts, questions, context, max_tokens, shortest
):
    asked = [(text, question) for text in texts for question in questions]
    builder, rows = prompts_of(tokenizer, asked)
    document_cut = cut_of(builder, tokenizer, context, max_tokens)
    cut = []
    for row, document, prompt in rows:
        if len(prompt) + shortest <= context:
            cut.append(prompt)
            continue
        around = len(prompt) - len(document.text.encode())
        found = document_cut.cut(prompt, row, document, shortest)
        room = context - around
        answer = max(shortest, min(max_tokens, room // 2))
        if found is None:
            assert room - answer < len(document.text[0].encode())
            continue
        kept = found.used_document_tokens - len("Document:\n")
        text = document.text.encode()[:kept].decode()  # fails inside a character
        assert document.text.startswith(text)
        missed = len(document.text[len(text)].encode())
        assert context - answer - missed < len(found) <= context - answer
        whole = prompt.ids()
        end = len(prompt.prefix) - (found.document_tokens - found.used_document_tokens)
        np.testing.assert_array_equal(found.ids(), np.concatenate([whole[:end], prompt.rest]))
        cut.append(found)
    order = plan_order(cut)
    ids = [prompt.ids() for prompt in cut]
    assert order == depth_first_order(ids)
    assert first_positions_in_order([cut[index] for index in order]) == first_positions([ids[i] for i in order])


def test_what_a_template_writes_behind_the_document_stays(tokenizer):
    builder, [(row, document, prompt)] = prompts_of(
        tokenizer, [("<" + "x" * 500 + ">", "Why?")], document="Read: {{ document }} END"
    )
    found = cut_of(builder, tokenizer, 300, 40).cut(prompt, row, document, 10)
    text = tokenizer.decode(found.ids())
    assert "Read: <xxx" in text
    assert "xx END\n\nQuestion: Why?" in text
    assert len(found) == 260
    assert found.document_tokens - found.used_document_tokens == len(prompt) - len(found)


@pytest.mark.parametrize(
    "template", ["{{ document }} {{ document }}", "{{ document | length }} characters: {{ document }}"]
)
def test_a_template_that_does_not_write_the_document_once_is_said(tokenizer, template):
    builder, [(row, document, prompt)] = prompts_of(tokenizer, [("x" * 900, "Why?")], document=template)
    with pytest.raises(JobFileError, match=r"a\.parquet row 1.*on_too_long"):
        cut_of(builder, tokenizer, 300, 40).cut(prompt, row, document, 10)


def test_plan_counts_what_is_cut(make_job, capsys):
    summary = plan_summary(
        prepare(load_job(make_job(long_rows(), run={"on_too_long": "truncate"}))), prepare_seconds=0.0
    )
    assert (summary["rows_cut"], summary["documents_cut"], summary["rows_rejected"]) == (4, 1, 0)
    print_plan(summary, plain_console())
    assert "get the beginning of their document (1 of them)" in capsys.readouterr().out
