"""How sure the model was of each property: tokens go to the values they spell, and the numbers are probabilities."""

import itertools
import json
import math

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.confidence import answer_confidence
from jobs.job_file import load_job
from jobs.run import StopRequest, run_job
from tests.job_fixtures import sample_rows
from tests.thorough import examples

characters = st.characters(exclude_categories=["Cs"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(characters),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(characters, max_size=3), inner, max_size=3),
    max_leaves=6,
)


def split(data, text):
    """The bytes of a text as tokens of any lengths, also inside characters, and a log-probability each."""
    raw = text.encode()
    cuts = data.draw(st.lists(st.integers(1, max(len(raw) - 1, 1)), unique=True).map(sorted))
    edges = [0, *(cut for cut in cuts if cut < len(raw)), len(raw)]
    tokens = [raw[start:end] for start, end in itertools.pairwise(edges)]
    logs = data.draw(st.lists(st.floats(-3, 0), min_size=len(tokens), max_size=len(tokens) + 1))
    return tokens, logs


def expected_probability(tokens, logs, start, end, is_number):
    """Byte by byte: a token counts if a byte of the value is its own, or if it is the first after a number."""
    total = place = 0
    for index, log in enumerate(logs):
        length = len(tokens[index]) if index < len(tokens) else 1
        owns = any(start <= byte < end for byte in range(place, place + length)) and index < len(tokens)
        if owns or (is_number and place == end):
            total += log
        place += length
    return math.exp(total)


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


@given(st.data())
@examples(60)
def test_tokens_count_for_the_values_whose_characters_they_hold(data):
    answer = data.draw(st.dictionaries(st.text(characters, max_size=4), values, max_size=4))
    dump = {"ensure_ascii": data.draw(st.booleans())}
    comma, colon = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]))
    text, spans = data.draw(st.sampled_from(["{", " { "])), {}
    for number, (name, value) in enumerate(answer.items()):
        text += (comma if number else "") + json.dumps(name, **dump) + colon
        start = len(text.encode())
        text += json.dumps(value, **dump)
        spans[name] = (start, len(text.encode()), is_number(value))
    text += data.draw(st.sampled_from(["}", " }\n"]))
    tokens, logs = split(data, text)
    found = json.loads(answer_confidence(text, tokens, logs))
    assert list(found) == list(answer)
    for name, span in spans.items():
        assert found[name] == pytest.approx(expected_probability(tokens, logs, *span), rel=1e-5)


@given(st.data(), values.filter(lambda value: not isinstance(value, dict)))
@examples(40)
def test_an_answer_that_is_no_object_has_one(data, value):
    text = " " + json.dumps(value)
    tokens, logs = split(data, text)
    found = json.loads(answer_confidence(text, tokens, logs))
    assert found == pytest.approx(expected_probability(tokens, logs, 1, len(text.encode()), is_number(value)), rel=1e-5)


def test_it_is_a_number_or_unknown_and_never_nan():
    tokens = [b'{"', b'a"', b":", b'"x"', b',"b":', b"1", b',"c":', b"true", b"}"]
    text = b"".join(tokens).decode()
    nan, infinite = math.nan, math.inf
    found = answer_confidence(text, tokens, [nan, 0, 0, nan, 0, -infinite, 0, 1e-9, nan])
    assert found == '{"a": null, "b": 0.0, "c": 1.0}'
    assert answer_confidence(text, tokens, [-1.0] * 9) == '{"a": 0.367879, "b": 0.135335, "c": 0.367879}'
    assert answer_confidence(text, tokens, [-1000.0] * 9) == '{"a": 0.0, "b": 0.0, "c": 0.0}'
    assert answer_confidence("{}", [b"{}"], [0.0]) == "{}"
    assert answer_confidence("7", [b"7"], [-math.log(2)]) == "0.5"
    assert answer_confidence("7", [b"7"], [-math.log(2), -math.log(2)]) == "0.25"  # and the stop token after it
    assert answer_confidence('"7"', [b'"7', b'"'], [0.0, 0.0, -9.0]) == "1.0"  # the text had ended
    assert answer_confidence("7", [b"7"], [nan]) == "null"


def run(path, overrides=()):
    outcome = run_job(load_job(path, overrides), command="test", stop=StopRequest())
    with duckdb.connect(str(outcome.database), read_only=True) as connection:
        return connection.execute(
            "SELECT doc_id, question_id, status, answer, confidence FROM answers ORDER BY ALL"
        ).fetchall()


def same_question(rows):
    """The same prompt many times; the keys, and so the seeds, differ."""
    first = sample_rows(1, 1)[0]
    return [first | {"question_id": f"q{number}"} for number in range(rows)]


def test_the_confidences_of_all_answers_to_a_question_sum_to_one(make_job):
    """The tiny model's tokens are bytes: a text can be split in one way only, so nothing is lost."""
    path = make_job(same_question(40), sampling={"temperature": 3.0})
    found = {}
    for *_, status, answer, confidence in run(path):
        assert status == "ok"
        assert list(json.loads(confidence)) == ["verdict", "quote"]
        found.setdefault(json.loads(answer)["verdict"], set()).add(json.loads(confidence)["verdict"])
    assert set(found) == {"true", "false", "not mentioned"}
    assert all(max(ones) - min(ones) < 1e-5 for ones in found.values()), "the same prompt, the same confidence"
    assert sum(max(ones) for ones in found.values()) == pytest.approx(1, abs=1e-4)


def test_numbers_are_certain_only_with_their_end(make_job, tmp_path):
    path = make_job(same_question(40), sampling={"temperature": 3.0})
    schema = {"type": "object", "properties": {"n": {"enum": [1, 12, 123]}, "fixed": {"const": "so"}},
              "required": ["n", "fixed"], "additionalProperties": False}  # fmt: skip
    (tmp_path / "verdict.json").write_text(json.dumps(schema))
    found = {json.loads(answer)["n"]: json.loads(confidence) for *_, answer, confidence in run(path)}
    assert set(found) == {1, 12, 123}
    assert sum(one["n"] for one in found.values()) == pytest.approx(1, abs=1e-4)
    assert {one["fixed"] for one in found.values()} == {1.0}


def test_rows_without_a_valid_answer_have_none(make_job):
    path = make_job(sample_rows(1, 3), sampling={"max_tokens": 12}, run={"max_failures": "100%"})
    rows = run(path)
    assert {(status, confidence) for _, _, status, _, confidence in rows} == {("truncated", None)}


def test_it_can_be_left_out_and_changes_no_answer(make_job, tmp_path):
    path = make_job(sample_rows(2, 3))
    with_it = run(path)
    without = run(path, ["answer.confidence=false", f"output.database={tmp_path / 'other.duckdb'}"])
    assert [row[:4] for row in without] == [row[:4] for row in with_it]
    assert {row[4] for row in without} == {None}
    assert None not in {row[4] for row in with_it}
    assert run(path, ["answer.confidence=false"]) == with_it  # rows that are answered are not answered again


def test_equal_rows_share_it(make_job):
    """At temperature 0 rows that ask the very same are answered once."""
    assert len({(answer, confidence) for *_, answer, confidence in run(make_job(same_question(3)))}) == 1
