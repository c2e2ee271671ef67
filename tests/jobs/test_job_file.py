import json
from fractions import Fraction
from pathlib import Path

import pytest

from jobs.errors import JobFileError
from jobs.job_file import job_from_settings, load_job, resolve_path
from jobs.job_settings import FailureLimit

FULL = """
[job]
name = "contracts-nightly"
[input]
documents = ["contracts/*.parquet"]
questions = "questions.parquet"
on_bad_file = "skip"
[input.columns]
document = "body"
[prompt]
system = ""
document = "D {{ document }}"
question = "Q {{ question }}"
[answer]
schema = "verdict.json"
[answer.schemas]
verdict = "verdict.json"
[model]
path = "some/model"
dtype = "float32"
device = "cuda:1"
[engine]
kv_memory = "4GiB"
page_size = 32
step_tokens = 512
deterministic = true
[sampling]
temperature = 1
max_tokens = 99
seed = 7
top_p = 0.5
top_k = 40
[run]
time_budget = "6h"
max_failures = "2.5%"
on_too_long = "error"
[output]
database = "out/answers.duckdb"
"""


def make(**sections):
    sections.setdefault("input", {})
    sections["input"] = {"documents": "a.parquet", **sections["input"]}
    return job_from_settings(sections, Path("/jobs"))


def test_every_key_of_the_contract_is_read(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(FULL)
    job = load_job(path)
    assert job.name == "contracts-nightly"
    assert job.input.documents == ("contracts/*.parquet",)
    assert job.input.questions == ("questions.parquet",)
    assert (job.input.on_bad_file, job.input.columns) == ("skip", {"document": "body"})
    assert (job.prompt.system, job.prompt.document) == ("", "D {{ document }}")
    assert (job.answer.schema, job.answer.schemas) == ("verdict.json", {"verdict": "verdict.json"})
    assert (job.model.path, job.model.dtype, job.model.device) == ("some/model", "float32", "cuda:1")
    assert (job.engine.kv_memory, job.engine.page_size, job.engine.step_tokens) == (4 * 2**30, 32, 512)
    assert job.engine.deterministic is True
    assert (job.sampling.temperature, job.sampling.max_tokens, job.sampling.seed) == (1.0, 99, 7)
    assert (job.sampling.top_p, job.sampling.top_k) == (0.5, 40)
    assert (job.run.time_budget, job.run.max_failures.share) == (21600.0, Fraction(1, 40))
    assert resolve_path(job, job.output.database) == tmp_path / "out/answers.duckdb"
    assert resolve_path(job, "/abs/x.json") == Path("/abs/x.json")


def test_defaults():
    job = make()
    assert job.name == "docqa"
    assert job.prompt.system == "You answer questions about one document. Reply with one JSON object."
    assert job.prompt.document == "Document:\n{{ document }}"
    assert job.prompt.question == "Question: {{ question }}"
    assert (job.input.questions, job.input.on_bad_file, dict(job.input.columns)) == ((), "fail", {})
    assert (job.answer.schema, job.model.path) == (None, "smollm2-135m-instruct")
    assert (job.engine.kv_memory, job.engine.page_size, job.engine.step_tokens) == (None, 16, None)
    assert (job.sampling.temperature, job.sampling.max_tokens, job.sampling.top_p, job.sampling.top_k) == (0, 256, 1, 0)
    assert (job.run.time_budget, str(job.run.max_failures), job.run.on_too_long) == (None, "5%", "error")
    assert job.output.database == "answers.duckdb"


def test_as_dict_is_json_and_makes_the_same_job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(FULL)
    for job in (load_job(path), make()):
        stored = json.loads(json.dumps(job.as_dict()))
        assert job_from_settings(stored, job.folder) == job


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("engine", "kv_memory", "512MiB", 512 * 2**20),
        ("engine", "kv_memory", "1.5 gb", 1_500_000_000),
        ("engine", "kv_memory", 4096, 4096),
        ("engine", "kv_memory", "auto", None),
        ("run", "time_budget", "90m", 5400.0),
        ("run", "time_budget", "1h30m", 5400.0),
        ("run", "time_budget", "1d 2s", 86402.0),
        ("run", "time_budget", 12.5, 12.5),
        ("run", "max_failures", 10, FailureLimit(count=10)),
        ("model", "device", "cuda", "cuda"),
        ("engine", "step_tokens", "auto", None),
    ],
)
def test_values_are_resolved(section, key, value, expected):
    assert getattr(getattr(make(**{section: {key: value}}), section), key) == expected


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("engine", "kv_memory", "4 elephants", "4GiB"),
        ("engine", "kv_memory", 0, "whole number of bytes"),
        ("engine", "kv_memory", True, "auto"),
        ("engine", "page_size", 16.0, "whole number of at least 1"),
        ("engine", "page_size", 0, "whole number of at least 1"),
        ("engine", "deterministic", "yes", "true or false"),
        ("run", "time_budget", "", "1h30m"),
        ("run", "time_budget", "30 parsecs", "1h30m"),
        ("run", "time_budget", 0, "above 0"),
        ("run", "max_failures", "101%", "100%"),
        ("run", "max_failures", 0.05, "5%"),
        ("run", "max_failures", -1, "5%"),
        ("sampling", "temperature", -0.1, "at least 0"),
        ("sampling", "temperature", float("nan"), "at least 0"),
        ("sampling", "top_p", 0, "above 0 and up to 1"),
        ("sampling", "seed", True, "whole number"),
        ("model", "dtype", "int8", "auto, bfloat16, float16 or float32"),
        ("model", "device", "gpu", "cuda:N"),
        ("model", "path", "  ", "not empty"),
        ("input", "documents", ["a", 3], "list of paths"),
        ("input", "on_bad_file", "ignore", "fail or skip"),
        ("input", "columns", {"documnt": "x"}, "doc_id, document"),
        ("answer", "schemas", {"a": 1}, "schema files"),
        ("output", "database", 5, "text in quotes"),
    ],
)
def test_a_wrong_value_names_setting_value_and_what_is_allowed(section, key, value, allowed):
    with pytest.raises(JobFileError) as caught:
        make(**{section: {key: value}})
    message = str(caught.value)
    assert f"{section}.{key}" in message
    assert allowed in message
    if isinstance(value, str):
        assert value in message


@pytest.mark.parametrize("choice", ["error", "truncate", "split"])
def test_what_is_done_with_long_documents_is_a_choice(choice):
    job = make(run={"on_too_long": choice}, split={"piece_tokens": "auto", "overlap_tokens": 9})
    assert (job.run.on_too_long, job.split.piece_tokens, job.split.overlap_tokens) == (choice, None, 9)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"engin": {}}, "[engine]"),
        ({"engine": {"kv_memry": "1GiB"}}, "engine.kv_memory"),
        ({"run": {"kv_memory": "1GiB"}}, "engine.kv_memory"),
        ({"kv_memory": "1GiB"}, "engine.kv_memory"),
        ({"engine": 3}, "table"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(tmp_path, settings, expected):
    with pytest.raises(JobFileError) as caught:
        job_from_settings(settings, tmp_path, source="night.toml")
    assert expected in str(caught.value)
    assert "night.toml" in str(caught.value)


def test_missing_documents_is_an_error_with_an_example(tmp_path):
    with pytest.raises(JobFileError, match=r"input\.documents is missing"):
        job_from_settings({}, tmp_path)


def test_overrides_win_over_the_file_and_keep_text_as_text(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(FULL)
    job = load_job(
        path,
        [
            "engine.kv_memory=1GiB",
            "engine.page_size=8",
            "input.columns.question=frage",
            'input.documents=["x.parquet", "y.parquet"]',
            "job.name=2024",
            "model.path = a=b",
            "run.max_failures=3",
            "engine.deterministic=false",
        ],
    )
    assert (job.engine.kv_memory, job.engine.page_size, job.engine.deterministic) == (2**30, 8, False)
    assert job.input.columns == {"document": "body", "question": "frage"}
    assert job.input.documents == ("x.parquet", "y.parquet")
    assert (job.name, job.model.path, job.run.max_failures.count) == ("2024", "a=b", 3)
    assert job.sampling.max_tokens == 99


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engine.kv_memory", "section.key=value"),
        ("kv_memory=1", "section.key=value"),
        ("engine.kv_memry=1", "engine.kv_memory"),
        ("engine.page_size.x=1", "engine.page_size=value"),
        ("input.columns=x", "input.columns.NAME=value"),
        ("engine.page_size=8\ny=1", "whole number"),
    ],
)
def test_a_wrong_override_is_quoted(override, expected):
    with pytest.raises(JobFileError) as caught:
        job_from_settings({"input": {"documents": "a"}}, Path(), [override])
    assert override in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'[job]\nname = "a\n', "line 2, column 10"),
        (b"[job]\nname 3\n", "line 2, column 6"),
        (b'[job]\nname = """a', "line 2, column 12"),
        (b'[job]\nname = "\xff"\n', "line 2"),
    ],
)
def test_a_syntax_error_gives_file_line_and_column(tmp_path, content, place):
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(JobFileError) as caught:
        load_job(path)
    assert f"{path}, {place}" in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_job_file_that_is_not_there_or_starts_with_a_byte_order_mark(tmp_path):
    with pytest.raises(JobFileError, match=r"nowhere\.toml"):
        load_job(tmp_path / "nowhere.toml")
    with pytest.raises(JobFileError, match="can't be read"):
        load_job(tmp_path)
    path = tmp_path / "bom.toml"
    path.write_bytes(b"\xef\xbb\xbf[input]\ndocuments = 'a'\n")
    assert load_job(path).name == "bom"


def test_failure_limit_is_exact_at_its_edge():
    share = FailureLimit.from_text("7%")
    assert not share.exceeded(7, 100)
    assert share.exceeded(8, 100)
    assert not share.exceeded(0, 0)
    count = FailureLimit.from_text("0")
    assert not count.exceeded(0, 5)
    assert count.exceeded(1, 5)
    assert str(FailureLimit.from_text("12.5%")) == "12.5%"
