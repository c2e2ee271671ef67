import json
import os
import re
import subprocess
import sys
from importlib import import_module

import click
import duckdb
import pytest

from docqa.main import COMMANDS
from tests.docqa.conftest import start
from tests.job_fixtures import sample_rows, write_rows


def test_run_plan_and_report(docqa, make_job, tmp_path):
    path = make_job(sample_rows())
    status, out, err = docqa("plan", path)
    assert (status, err) == (0, "")
    assert re.search(r"rows\s+20", out)
    assert re.search(r"documents\s+4", out)
    status, out, err = docqa("run", path)
    assert (status, out) == (0, "")
    assert "20 ok, 0 failed" in err
    status, out, err = docqa("report", tmp_path / "answers.duckdb")
    assert (status, err) == (0, "")
    assert "1.000 of the least possible" in out
    status, out, _ = docqa("plan", path, "--json")
    summary = json.loads(out)
    assert (summary["rows"], summary["rows_to_run"], summary["rows_answered"]) == (20, 0, 20)


def test_a_plan_warns_of_lost_reuse(docqa, make_job):
    """Cases 25 and 26."""
    path = make_job(sample_rows())
    assert json.loads(docqa("plan", path, "--json")[1])["warnings"] == []
    rows = sample_rows(2, 5)
    rows += [
        row | {"doc_id": f"{row['doc_id']}-crlf", "document": row["document"].replace(". ", ".\r\n")} for row in rows
    ]
    rows += [row | {"doc_id": row["doc_id"].replace("crlf", "lf"), "document": row["document"].replace("\r", "")}
             for row in rows[10:]]  # fmt: skip
    for row in rows:
        row["note"] = f"note {row['question_id']}"
    path = make_job(rows, prompt={"document": "{{ extra.note }}: {{ document }}"})
    warnings = json.loads(docqa("plan", path, "--json")[1])["warnings"]
    assert len(warnings) == 2
    assert warnings[0].startswith("prompt.document writes extra.note before text that rows share")
    assert warnings[1].startswith("2 documents differ from another one only by line ends in 2")
    out = docqa("plan", path)[1]
    assert all(f"warning: {warning}" in out.splitlines() for warning in warnings)


def test_files_that_are_skipped_are_said(docqa, make_job, tmp_path):
    """Case 7."""
    path = make_job(None, input={"documents": "in", "on_bad_file": "skip"})
    (tmp_path / "in").mkdir()
    write_rows(tmp_path / "in" / "good.parquet", sample_rows(1, 2))
    (tmp_path / "in" / "empty.parquet").write_bytes(b"")
    bad_files = [{"file": "in/empty.parquet", "reason": "it is empty (0 bytes)"}]
    assert json.loads(docqa("plan", path, "--json")[1])["bad_files"] == bad_files
    status, out, err = docqa("run", path, "--json")
    summary = json.loads(out)
    assert (status, summary["exit_status"], summary["rows_ok"]) == (1, 1, 2)
    assert summary["bad_files"] == bad_files
    said = "1 file can't be read and was skipped: in/empty.parquet"
    assert said in summary["message"]
    assert said in err.splitlines()
    assert said in docqa("report", tmp_path / "answers.duckdb")[1].splitlines()
    assert json.loads(docqa("report", tmp_path / "answers.duckdb", "--json")[1])["bad_files"] == bad_files


def test_json_is_on_stdout_and_totals_agree(docqa, make_job, tmp_path):
    path = make_job(sample_rows())
    plan = json.loads(docqa("plan", path, "--json")[1])
    status, out, _ = docqa("run", path, "--json")
    summary = json.loads(out)
    assert summary["exit_status"] == status == 0
    assert summary["rows_ok"] == plan["rows"] == 20
    assert summary["minimum_tokens"] == summary["computed_tokens"] == plan["minimum_tokens"]
    assert summary["prompt_tokens"] == plan["prompt_tokens"]
    report = json.loads(docqa("report", tmp_path / "answers.duckdb", "--json")[1])
    assert report["rows_by_status"] == {"ok": 20}
    assert report["computed_to_minimum"] == 1.0
    assert sum(document["computed_tokens"] for document in report["documents"]) == summary["computed_tokens"]
    assert docqa("report", tmp_path / "answers.duckdb", "--run", "nothing")[0] == 2


def test_quiet_success_writes_nothing(docqa, make_job):
    assert docqa("run", make_job(sample_rows(1, 2)), "--quiet") == (0, "", "")


def test_environment_twins(docqa, make_job, monkeypatch):
    monkeypatch.setenv("DOCQA_QUIET", "1")
    monkeypatch.setenv("DOCQA_SET", "sampling.max_tokens=3 run.max_failures=100%")
    status, out, err = docqa("run", make_job(sample_rows(1, 2)))
    assert (status, out, err) == (1, "", "")


def test_flags_instead_of_a_job_file(docqa, make_job, tmp_path, tiny_model_folder, monkeypatch):
    make_job(sample_rows(2, 2))
    monkeypatch.chdir(tmp_path)
    flags = ("--documents", "rows.parquet", "--schema", "verdict.json", "--model", tiny_model_folder)
    status, out, _ = docqa("run", *flags, "--output", "flags.duckdb", "--json")
    assert (status, json.loads(out)["rows_ok"]) == (0, 4)
    status, out, _ = docqa("run", *flags, "--output", "mapped.duckdb", "--column", "question=doc_id", "--json")
    assert (status, json.loads(out)["rows_ok"]) == (0, 4)
    with duckdb.connect("mapped.duckdb", read_only=True) as connection:
        assert connection.execute("SELECT DISTINCT question = doc_id FROM answers").fetchall() == [(True,)]


def test_flags_win_over_the_job_file(docqa, make_job, tmp_path, monkeypatch):
    path = make_job(sample_rows(1, 2))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert docqa("run", path, "--output", "mine.duckdb", "--quiet")[0] == 0
    assert (elsewhere / "mine.duckdb").exists()
    assert not (tmp_path / "answers.duckdb").exists()
    status, _, err = docqa("plan", path, "--documents", "")
    assert (status, 'input.documents is [""]' in err) == (2, True), "the current folder is not read instead"
    status, _, err = docqa("plan", path, "--documents", "s3://bucket/a.parquet")
    assert (status, "'s3://bucket/a.parquet' is an address" in err) == (2, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_text("[input"), r"line 1"),
        (
            lambda path: path.write_text(path.read_text().replace("[sampling]", "[smapling]")),
            r"nearest known one is \[sampling\]",
        ),
        (lambda path: path.write_text(path.read_text().replace("rows.parquet", "none.parquet")), "none.parquet"),
        (lambda path: path.write_text(path.read_text().replace('"verdict.json"', '"missing.json"')), "missing.json"),
        (lambda path: (path.parent / "rows.parquet").write_bytes(b"PAR1nonsense"), "rows.parquet"),
        (lambda path: path.unlink(), "can't be read"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_2(docqa, make_job, tmp_path, change, message):
    path = make_job(sample_rows(1, 2))
    change(path)
    status, out, err = docqa("run", path)
    assert (status, out) == (2, "")
    assert re.search(message, err)
    assert err.startswith("docqa: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "answers.duckdb").exists()


def test_a_folder_is_no_database(docqa, make_job, tmp_path, monkeypatch):
    make_job(sample_rows(1, 1))
    monkeypatch.chdir(tmp_path)
    for place in (".", "/", ""):
        for command in ("status", "status --publish", "report", "eval", "compact", "export --to a.csv"):
            status, out, err = docqa(*command.split(), place)
            assert (status, out, "is a folder; name the database" in err) == (2, "", True), (command, err)
    for place in (".", "/"):
        status, _, err = docqa("run", "--documents", "rows.parquet", "--schema", "verdict.json", "--output", place)
        assert (status, "is a folder; name a file as output.database" in err) == (2, True)


def test_an_unknown_model_is_exit_2(docqa, make_job, tmp_path):
    (tmp_path / "model").mkdir()
    status, _, err = docqa("run", make_job(sample_rows(1, 1)), "--model", tmp_path / "model")
    assert (status, "config.json" in err) == (2, True)


def test_failed_rows_are_exit_1_and_reported(docqa, make_job, tmp_path):
    rows = sample_rows(1, 3)
    rows[0]["question"] = ""
    status, _, err = docqa("run", make_job(rows, run={"max_failures": "50%"}))
    assert (status, "2 ok, 1 failed" in err) == (1, True)
    out = docqa("report", tmp_path / "answers.duckdb")[1]
    assert "empty_question: d0" in out


def test_a_held_output_is_exit_4(docqa, make_job, tmp_path):
    from jobs.output_lock import OutputLock

    path = make_job(sample_rows(1, 1))
    with OutputLock(tmp_path / "answers.duckdb", "docqa run nightly.toml"):
        status, _, err = docqa("run", path)
    assert (status, "nightly.toml" in err, str(os.getpid()) in err) == (4, True, True)


def test_a_run_from_cron(make_job, tmp_path):
    """Cases 75 and 76: no terminal, a bare environment, an ASCII locale, and names with other letters."""
    rows = [row | {"doc_id": f"Größe {row['doc_id']}"} for row in sample_rows(1, 2)]
    rows[0]["question"] = ""
    path = make_job(rows, input={"documents": "Prüfung/вход.parquet"}, run={"max_failures": 1})
    (tmp_path / "Prüfung").mkdir()
    (tmp_path / "rows.parquet").rename(tmp_path / "Prüfung" / "вход.parquet")
    (tmp_path / "Prüfung" / "ключ.parquet").write_bytes(b"")
    environment = {"PATH": os.environ["PATH"], "LANG": "C", "PYTHONIOENCODING": "ascii", "HOME": str(tmp_path)}
    flags = (
        "--documents",
        tmp_path / "Prüfung",
        "--set",
        "input.on_bad_file=skip",
        "--output",
        tmp_path / "größer.duckdb",
    )
    told = tmp_path / "told"
    process = start(
        "run", path, *flags, "--on-finish", f"cat >{told}",
        env=environment, stdin=subprocess.DEVNULL, cwd=os.getcwd(),
    )  # fmt: skip
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (1, b""), err
    assert b"1 ok, 1 failed" in err
    assert b"was skipped" in err
    assert b"\r" not in err
    assert b"\x1b" not in err
    assert json.loads(told.read_text())["database"].endswith("größer.duckdb")


def test_help_and_status_are_light(docqa, make_job, tmp_path):
    """Neither loads torch or a tokenizer; --help loads nothing that takes time."""
    docqa("run", make_job(sample_rows(1, 1)), "--quiet")
    program = (
        "import sys; from docqa.main import cli; cli(sys.argv[1:], standalone_mode=False); "
        "print(*sorted({'torch', 'transformers', 'tokenizers', 'duckdb', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )

    def loaded(*arguments):
        result = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        return result.stdout.splitlines()[-1].split()

    assert loaded("--help") == []
    assert loaded("status", str(tmp_path / "answers.duckdb")) == ["duckdb", "numpy", "pyarrow"]


def test_help_lists_every_command_with_its_first_sentence(docqa):
    out = docqa("--help")[1]
    for name, summary in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary[:40])}", out, flags=re.MULTILINE)
        status, text, _ = docqa(name, "--help")
        assert (status, f"Usage: docqa {name}" in text) == (0, True)
    assert "130, 143  interrupted" in out
    assert docqa("nonsense")[0] == 2


def test_every_flag_has_an_environment_twin():
    for name in COMMANDS:
        command = import_module(f"docqa.{name}").command
        for option in command.params:
            if isinstance(option, click.Option):
                (flag,) = option.opts
                assert option.envvar == "DOCQA_" + flag.removeprefix("--").upper().replace("-", "_")
