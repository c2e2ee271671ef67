"""README's commands and queries, run as they stand, on the sample data with the embedded model's real weights."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from docqa import main as command_line
from jobs.prompt_template import PART_VARIABLES
from jobs.quotes import fold
from jobs.store import AnswerStore
from jobs.validate import AnswerValidator

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_MINUTES = re.search(r"^## First minutes\n(.*?)^## ", README, flags=re.MULTILINE | re.DOTALL)[1]
"""Its commands are run by test_newcomer.py."""


def blocks(language):
    text = README.replace(FIRST_MINUTES, "")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands():
    return [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]


def queries_with_output():
    return re.findall(r"^```sql\n(.*?)^```\n```\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def questions(folder):
    return pq.read_table(folder / "sample_data" / "questions.parquet").to_pylist()


def query(folder, sql):
    with duckdb.connect(str(folder / "sample_data" / "answers.duckdb"), read_only=True) as connection:
        return connection.sql(sql).fetchall()


@pytest.fixture(scope="module", params=[1, pytest.param(4, marks=pytest.mark.slow)], ids="{} of 4 documents".format)
def sample_run(request, tmp_path_factory):
    """README's docqa commands in a copy of the sample, one document of it or all: (folder, exit status by command)."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "sample_data", folder / "sample_data", ignore=shutil.ignore_patterns("*.duckdb*"))
    sample = pq.read_table(ROOT / "sample_data" / "questions.parquet")
    documents = sorted(sample["doc_id"].unique().to_pylist())[-request.param :]
    part = sample.filter(pc.field("doc_id").isin(documents))
    pq.write_table(part, folder / "sample_data" / "questions.parquet")
    statuses = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PATH", "/usr/bin:/bin")  # a crontab line has no room for every PATH
        for command in commands():
            patch.setattr(sys, "argv", command.split())
            try:
                command_line.main()
                statuses[command] = 0
            except SystemExit as ended:
                statuses[command] = ended.code or 0
    return folder, statuses


def test_readme_has_commands_and_five_queries():
    assert len(commands()) >= 4
    assert all(command.startswith("docqa ") for command in commands())
    assert len(queries_with_output()) >= 5


def test_the_commands_do_what_they_say(sample_run):
    _, statuses = sample_run
    assert {command: status for command, status in statuses.items() if status} == {
        command: 1 for command in commands() if "max_failures" in command
    }


def test_the_sample_is_answered_validly_and_every_shared_token_once(sample_run):
    folder, _ = sample_run
    database = folder / "sample_data" / "answers.duckdb"
    store = AnswerStore(database, read_only=True)
    run = store.runs()[-1]  # the first; a retry came after it
    rows = len(questions(folder))
    assert (run.rows_total, run.rows_ok) == (rows, rows)
    assert rows in (12, 47)
    assert run.computed_tokens == run.minimum_tokens < run.prompt_tokens / 8
    assert store.check() == []
    validator = AnswerValidator(json.loads((folder / "sample_data" / "verdict.json").read_text()))
    with duckdb.connect(str(database), read_only=True) as connection:
        answers = connection.execute("SELECT answer FROM answers").fetchall()
    assert all(validator.check(answer).error is None for (answer,) in answers)


def test_the_quotes_of_the_sample_stand_where_it_says(sample_run):
    folder, _ = sample_run
    rows = questions(folder)
    documents = {row["doc_id"]: row["document"] for row in rows}
    found = pq.read_table(folder / "verdicts.parquet").to_pylist()
    assert len(found) == len(rows)
    for row in found:
        document, quote = documents[row["doc_id"]], row["quote"]
        assert row["quote_found"] or quote not in document or not quote.strip()
        if row["quote_found"]:
            assert fold(document[row["quote_start"] : row["quote_end"]]).strip() == fold(quote).strip()
    assert any(row["quote_found"] for row in found)


@pytest.mark.parametrize("block", blocks("python"))
def test_the_python_that_readme_shows_reads_the_answers(sample_run, block, monkeypatch):
    folder, _ = sample_run
    monkeypatch.chdir(folder)
    names = {}
    exec(block, names)
    assert len(names["answers"]) == len(questions(folder))
    confidences = [row[0] for row in query(folder, "SELECT verdict_confidence FROM answers_verdict ORDER BY 1 LIMIT 5")]
    least_certain = names["least_certain"]
    if isinstance(least_certain, list):
        assert [row[3] for row in least_certain] == confidences
    else:
        assert list(least_certain["verdict_confidence"]) == confidences


@pytest.mark.parametrize("command", [line for block in blocks("sh") for line in block.splitlines()])
def test_the_command_line_of_duckdb_reads_the_answers(sample_run, command):
    folder, _ = sample_run
    *call, sql = shlex.split(command)
    assert call == ["duckdb", "-readonly", "sample_data/answers.duckdb"]
    rows = query(folder, sql)
    assert len(rows) == 5
    if shutil.which("duckdb"):
        output = subprocess.run([*call, "-json", sql], cwd=folder, capture_output=True, text=True, check=True).stdout
        assert [tuple(row.values()) for row in json.loads(output)] == rows


def test_the_names_that_templates_may_use_are_those_of_the_code():
    text = README.replace(" (`{{ extra.title }}`)", "")
    for part, names in PART_VARIABLES.items():
        said = re.search(rf"`{part}` may use (.*?)[;.]\s", text, re.DOTALL)[1]
        assert re.findall(r"`(\w+)`", said) == list(names)


@pytest.mark.parametrize("index", range(len(queries_with_output())))
def test_a_query_gives_the_columns_that_readme_shows(sample_run, index):
    query, output = queries_with_output()[index]
    folder, _ = sample_run
    with duckdb.connect(str(folder / "sample_data" / "answers.duckdb"), read_only=True) as connection:
        relation = connection.sql(query)
        header = [cell.strip() for cell in output.splitlines()[1].strip("│").split("│")]
        assert relation.columns == header
        assert len(relation.fetchall()) > 0 or "0 rows" in output


def test_the_settings_that_readme_shows_exist():
    import tomllib

    from jobs.job_values import SECTIONS

    for block in blocks("toml"):
        for section, values in tomllib.loads(block).items():
            assert set(values) <= set(SECTIONS[section])


def test_the_folders_that_readme_shows_exist():
    for name in re.findall(r"^(\w+)/ ", README, flags=re.MULTILINE):
        assert (ROOT / name).is_dir()


def test_make_targets_that_readme_names_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (demo|test|test-slow|lint|types|setup)\b", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
