"""One question asked several times with different seeds: all answers are kept, and one is chosen."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.errors import InputError, JobFileError
from jobs.job_file import load_job
from jobs.journal_records import decode_record, encode_record
from jobs.resume import Selection
from jobs.row_calls import chosen_call
from jobs.run import prepare
from jobs.store import AnswerRecord, AnswerStore, RunRecord
from jobs.store_records import CallRecord
from tests.job_fixtures import sample_rows
from tests.jobs.test_run import answers, assert_sound, query, run

SAMPLING = {"temperature": 1.5, "samples": 5}
VALUES = st.sampled_from([1, 1.0, 2, True, "1", None, {"a": 1, "b": [2]}, {"b": [2.0], "a": 1}, {"a": 1}])


def calls(database):
    """The calls of each key, in order: (seed, status, answer, chosen)."""
    found = {}
    for doc_id, question_id, *call in query(
        database, "SELECT doc_id, question_id, seed, status, answer, chosen FROM calls ORDER BY attempt, call"
    ):
        found.setdefault((doc_id, question_id), []).append(tuple(call))
    return found


def test_every_answer_is_kept_and_the_prompt_is_computed_once(make_job):
    outcome = run(make_job(sample_rows(2, 3), sampling=SAMPLING))
    record, kept = outcome.run, calls(outcome.database)
    assert (outcome.exit_status, record.rows_ok, len(kept)) == (0, 6, 6)
    assert record.computed_tokens == record.minimum_tokens
    assert record.cached_tokens + record.computed_tokens == record.prompt_tokens
    assert query(outcome.database, "SELECT DISTINCT kind, max(call) OVER () FROM calls") == [("sample", 4)]
    for key, (status, answer) in answers(outcome.database).items():
        assert status == "ok"
        seeds, _, texts, chosen = zip(*kept[key], strict=True)
        assert len(set(seeds)) == 5
        assert texts[chosen.index(True)] == answer
        assert sum(chosen) == 1
    assert len({text for rows in kept.values() for _, _, text, _ in rows}) > 6, "seeds make a difference"
    sums = query(outcome.database, "SELECT sum(prompt_tokens), sum(computed_tokens), sum(output_tokens) FROM calls")
    assert sums == [(record.prompt_tokens, record.computed_tokens, record.output_tokens)]
    assert_sound(outcome.database)
    assert run(make_job(None, sampling=SAMPLING)).run.rows_reused == 6


def test_the_same_seed_gives_the_same_answers_in_any_batch(make_job):
    first = run(make_job(sample_rows(2, 3), sampling=SAMPLING))
    alone = run(make_job(sample_rows(2, 3)[:1], sampling=SAMPLING), ["output.database=alone.duckdb"])
    [(key, kept)] = calls(alone.database).items()
    assert calls(first.database)[key] == kept
    other = run(make_job(None, sampling=SAMPLING), ["output.database=other.duckdb", "sampling.seed=1"])
    assert calls(other.database)[key] != kept


def test_a_row_says_how_often_it_is_asked(make_job):
    rows = [row | {"samples": 3 if row["question_id"] == "q1" else None} for row in sample_rows(2, 3)]
    outcome = run(make_job(rows, sampling={"temperature": 1.0}))
    assert {key[1]: len(kept) for key, kept in calls(outcome.database).items()} == {"q1": 3}
    assert outcome.run.rows_ok == 6
    plan = prepare(load_job(make_job(rows[:3] + [row | {"samples": 4} for row in rows[3:]]),
                            ["sampling.temperature=1.0"])).plan  # fmt: skip
    assert plan.rows_changed == 3
    assert plan.changed_by == {"sampling": 3}


def test_one_sample_is_the_same_request_as_before_there_were_any(make_job):
    run(make_job(sample_rows(1, 2)))
    assert run(make_job(sample_rows(1, 2), sampling={"samples": 1, "choose": "first"})).run.rows_reused == 2


def test_samples_at_temperature_0_are_refused(make_job):
    with pytest.raises(JobFileError, match=r"sampling.samples is 2, but at sampling.temperature 0 all answers would"):
        prepare(load_job(make_job(sample_rows(1, 1), sampling={"samples": 2})))
    rows = [row | {"samples": 2} for row in sample_rows(1, 1)]
    with pytest.raises(InputError, match=r"rows.parquet row 1.*samples is 2"):
        prepare(load_job(make_job(rows)))


@pytest.mark.parametrize("count", [0, -3])
def test_a_number_that_makes_no_sense_is_refused(make_job, count):
    with pytest.raises(InputError, match=rf"row 1.*samples is {count}; give a whole number"):
        prepare(load_job(make_job([row | {"samples": count} for row in sample_rows(1, 1)])))


def test_without_a_valid_answer_the_row_fails_and_keeps_what_there_is(make_job):
    path = make_job(sample_rows(1, 2), sampling=SAMPLING, run={"max_failures": "100%"})
    outcome = run(path, ["sampling.max_tokens=20"])
    assert {status for status, _ in answers(outcome.database).values()} == {"truncated"}
    kept = [call for rows in calls(outcome.database).values() for call in rows]
    assert {status for _, status, _, _ in kept} == {"truncated"}
    assert not any(chosen for *_, chosen in kept)
    like = "error LIKE 'none of 5 answers is valid; of the first: %'"
    assert query(outcome.database, f"SELECT DISTINCT {like} FROM errors") == [(True,)]
    assert_sound(outcome.database)
    again = run(path, select=Selection.FAILED)
    assert (again.exit_status, again.run.rows_ok) == (0, 2)
    assert_sound(outcome.database)


def test_dependent_questions_get_the_chosen_answer(make_job):
    rows = [row | {"after": None} for row in sample_rows(2, 2)]
    rows += [rows[0] | {"doc_id": f"d{d}", "question_id": "last", "question": "Is {{ answers.q0.quote }} it?",
                        "document": next(row["document"] for row in rows if row["doc_id"] == f"d{d}"),
                        "after": ["q0"]} for d in range(2)]  # fmt: skip
    outcome = run(make_job(rows, sampling=SAMPLING))
    assert outcome.run.rows_ok == 6
    assert outcome.run.computed_tokens == outcome.run.minimum_tokens
    assert_sound(outcome.database)
    assert run(make_job(None, sampling=SAMPLING)).run.rows_reused == 6


def test_a_killed_run_has_whole_rows_only(make_job, monkeypatch):
    """Case 62: a row is in the journal with all its calls, or not at all."""
    from engine.engine import Engine

    steps, step = [], Engine.step

    def failing(engine):
        steps.append(1)
        if len(steps) > 40:
            raise OSError("the power went")
        return step(engine)

    path = make_job(sample_rows(3, 4), sampling=SAMPLING, engine={"step_tokens": 40})
    monkeypatch.setattr(Engine, "step", failing)
    first = run(path)
    monkeypatch.setattr(Engine, "step", step)
    assert first.run.status == "failed"
    assert 0 < first.run.rows_ok < 12
    second = run(path)
    assert second.run.rows_reused == first.run.rows_ok
    assert second.run.rows_ok == 12 - first.run.rows_ok
    numbers = "SELECT DISTINCT n FROM (SELECT count(*) AS n FROM calls GROUP BY doc_id, question_id)"
    assert query(second.database, numbers) == [(5,)]
    assert_sound(second.database)


def test_the_check_finds_calls_that_do_not_add_up(make_job):
    import duckdb

    outcome = run(make_job(sample_rows(1, 2), sampling=SAMPLING))
    faults = {
        "UPDATE calls SET computed_tokens = computed_tokens + 1, cached_tokens = cached_tokens - 1 WHERE call = 0":
            "do not add up",
        "UPDATE calls SET chosen = false": "the answers of 0 calls were chosen",
        "UPDATE calls SET call = 7 WHERE call = 2": "not numbered",
        "UPDATE calls SET attempt = 9": "belong to no row",
        "UPDATE calls SET prompt_tokens = prompt_tokens - 1": "not those of the prompt",
    }  # fmt: skip
    store = AnswerStore(outcome.database)
    for statement, sentence in faults.items():
        with duckdb.connect(str(outcome.database)) as connection:
            connection.execute("BEGIN")
            connection.execute(statement)
            from jobs.store_calls import wrong_calls

            assert any(sentence in found for found in wrong_calls(connection))
            connection.execute("ROLLBACK")
    assert store.check() == []


def test_compact_removes_the_calls_of_removed_attempts(make_job):
    from jobs.compact import compact

    path = make_job(sample_rows(1, 2), sampling=SAMPLING)
    for _ in range(3):
        outcome = run(path, select=Selection.ALL)
    assert query(outcome.database, "SELECT count(*) FROM calls") == [(30,)]
    compact(outcome.database, keep_attempts=1)
    assert query(outcome.database, "SELECT count(*), min(attempt) FROM calls") == [(10, 3)]
    assert_sound(outcome.database)


CALL = CallRecord(call=0, kind="sample", seed=2**64 - 1, status="ok", chosen=True, answer='{"a": 1}', raw_text="\ud800",
                  prompt_tokens=3, cached_tokens=1, computed_tokens=2, minimum_tokens=2, output_tokens=1)  # fmt: skip


def test_calls_survive_the_journal_and_the_store(tmp_path):
    record = AnswerRecord(run_id="r", doc_id="d", question_id="q", status="ok", answer='{"a": 1}', prompt_tokens=6,
                          cached_tokens=2, computed_tokens=4, minimum_tokens=4, output_tokens=2,
                          calls=(CALL, replace(CALL, call=1, chosen=False)))  # fmt: skip
    assert decode_record(encode_record(record)) == record
    store = AnswerStore(tmp_path / "a.duckdb")
    store.publish([RunRecord(run_id="r", rows_total=1), record, record])
    store.publish([record])
    assert query(store.path, "SELECT call, seed, raw_text, attempt FROM calls ORDER BY 1") == [
        (0, 2**64 - 1, "\ufffd", 1), (1, 2**64 - 1, "\ufffd", 1)
    ]  # fmt: skip
    assert store.check() == []


def plain_same(first, second):
    """Equality of JSON: Python's, but that true is not 1."""
    return json.dumps(first, sort_keys=True).replace(".0", "") == json.dumps(second, sort_keys=True).replace(".0", "")


def agreements(value, others):
    """How many properties of other answers are the same as this one's."""
    if not isinstance(value, dict):
        return 0
    return sum(isinstance(other, dict) and name in other and plain_same(part, other[name])
               for name, part in value.items() for other in others)  # fmt: skip


def test_answers_that_all_differ_are_chosen_by_what_most_of_them_say():
    """Each quotes something else; two of three say true."""
    values = [{"quote": text, "verdict": verdict} for text, verdict in (("a", "false"), ("b", "true"), ("c", "true"))]
    assert chosen_call(values, [True, True, True], "majority") == 1
    assert chosen_call(values, [True, False, True], "majority") == 0
    assert chosen_call(values, [True, True, True], "first") == 0


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=8))
def test_the_majority_counts_and_of_equal_ones_the_one_most_agree_with_then_the_earliest(pairs):
    values, valid = [value for value, _ in pairs], [ok for _, ok in pairs]
    chosen = chosen_call(values, valid, "majority")
    first = chosen_call(values, valid, "first")
    if not any(valid):
        assert chosen is first is None
        return
    assert first == valid.index(True)
    votes = [sum(ok and plain_same(value, other) for other, ok in pairs) if own else 0 for value, own in pairs]
    others = [value for value, ok in pairs if ok]
    ranks = [(vote, agreements(value, others) if vote else 0) for vote, value in zip(votes, values, strict=True)]
    assert chosen == ranks.index(max(ranks))
