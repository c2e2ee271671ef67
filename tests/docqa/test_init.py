import json

import pyarrow.parquet as pq
import pytest

from docqa.init import FILES
from jobs.job_file import load_job
from jobs.job_settings import EngineSettings, ModelSettings, RunSettings


def test_the_job_can_be_planned_as_it_is(docqa, tmp_path, embedded_folder):
    status, out, err = docqa("init", tmp_path / "new" / "job")
    assert (status, [line.split("  ")[1] for line in out.splitlines()]) == (0, list(FILES.values()))
    assert f"docqa plan {tmp_path}/new/job/job.toml" in err
    status, out, _ = docqa("plan", tmp_path / "new" / "job" / "job.toml", "--json")
    plan = json.loads(out)
    assert (status, plan["rows"], plan["rows_to_run"], plan["rows_rejected"], plan["documents"]) == (0, 6, 6, 0, 2)
    assert plan["prompt_tokens"] > 2 * plan["minimum_tokens"]


def test_what_the_job_file_spells_out_are_the_defaults(docqa, tmp_path):
    assert docqa("init", tmp_path, "--quiet")[2] == ""
    job = load_job(tmp_path / "job.toml")
    assert (job.model, job.engine, job.run) == (ModelSettings(), EngineSettings(), RunSettings())


def test_gold_is_an_answer_and_quotes_stand_in_the_documents(docqa, tmp_path):
    from jobs.validate import AnswerValidator

    docqa("init", tmp_path)
    validator = AnswerValidator(json.loads((tmp_path / "answer.json").read_text()))
    rows = pq.read_table(tmp_path / "questions.parquet").to_pylist()
    for row in rows:
        assert validator.check(row["gold"]).error is None
        assert json.loads(row["gold"])["quote"] in row["document"]
    assert {json.loads(row["gold"])["verdict"] for row in rows} == {"true", "false", "not mentioned"}


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_overwritten(docqa, tmp_path, name):
    (tmp_path / name).write_text("mine")
    status, out, err = docqa("init", tmp_path)
    assert (status, out) == (2, "")
    assert f"{tmp_path / name} is there already" in err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_that_cannot_be_made(docqa, tmp_path):
    (tmp_path / "file").write_text("")
    status, out, err = docqa("init", tmp_path / "file")
    assert (status, out) == (2, "")
    assert "name another folder" in err
    assert docqa("init", tmp_path / "job", "--json")[1] == json.dumps(
        {"files": [str(tmp_path / "job" / name) for name in FILES]}
    ) + "\n"  # fmt: skip
