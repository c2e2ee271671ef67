import json
import socket
from collections import namedtuple

import pytest

from docqa import doctor_machine, doctor_model
from docqa.doctor_network import refusing_connections
from jobs.journal import Journal
from jobs.output_lock import OutputLock
from jobs.store import AnswerRecord, AnswerStore, RunRecord
from tests.job_fixtures import sample_rows

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def doctor(docqa):
    """doctor(job, ...) -> (exit status, status and whole line by check)."""

    def call(*arguments):
        status, out, err = docqa("doctor", *arguments, "--json")
        assert err == ""
        found = json.loads(out)
        assert found["ok"] == (status == 0) == all(check["status"] != "fail" for check in found["checks"])
        for check in found["checks"]:
            assert check["status"] == "ok" or check["advice"]
        return status, {c["name"]: (c["status"], f"{c['text']} | {c['advice']}") for c in found["checks"]}

    return call


def test_a_job_that_works(doctor, docqa, make_job, tmp_path):
    job = make_job(sample_rows())
    before = sorted(path.name for path in tmp_path.rglob("*"))
    status, checks = doctor(job)
    assert status == 0
    assert set(checks) == {
        "versions", "duckdb", "job file", "input", "model", "tokenizer", "network", "device", "memory", "schemas",
        "cache", "disk", "database", "lock",
    }  # fmt: skip
    assert "1 file, 20 rows" in checks["input"][1]
    assert "will be made" in checks["database"][1]
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    status, out, _ = docqa("doctor", job)
    assert status == 0
    assert out.splitlines()[0].startswith("ok   versions   docqa")
    assert "A run would work." in out


def test_the_embedded_model_has_stored_ids(doctor, embedded_folder, monkeypatch):
    status, checks = doctor()
    assert (status, checks["tokenizer"][0], checks["network"][0]) == (0, "ok", "ok")
    assert "input" not in checks
    monkeypatch.setattr("engine.embedded_model.PROBE_IDS", (1, 2, 3))
    status, checks = doctor()
    assert (status, checks["tokenizer"][0]) == (2, "fail")
    assert "splits text differently from the reference" in checks["tokenizer"][1]
    assert "memory" not in checks


def test_faults_of_a_job(doctor, make_job, tmp_path, tiny_model_folder):
    job = make_job(sample_rows(1, 1))
    good = job.read_text()

    def check(name, old, new):
        assert old in good
        job.write_text(good.replace(old, new))
        status, checks = doctor(job)
        assert (status, checks[name][0]) == (2, "fail")
        return checks[name][1]

    assert "inputs" in check("job file", "[input]", "[inputs]")
    assert "there is no file or folder 'none.parquet'" in check("input", "rows.parquet", "none.parquet")
    (tmp_path / "bad.parquet").write_text("no")
    assert "bad.parquet: " in check("input", "rows.parquet", "bad.parquet")
    assert "none.json does not exist" in check("schemas", "verdict.json", "none.json")
    assert "is no existing folder" in check("model", str(tiny_model_folder), "nowhere at all")
    assert "mkdir -p" in check("disk", "answers.duckdb", "none/answers.duckdb")
    (tmp_path / "text.duckdb").write_text("text, but no database")
    assert "is no DuckDB database" in check("database", "answers.duckdb", "text.duckdb")
    job.write_text(good)
    status, checks = doctor(job, "--set", "input.documents=gone.parquet")
    assert (status, checks["input"][0]) == (2, "fail")
    AnswerStore(tmp_path / "answers.duckdb")
    status, checks = doctor(tmp_path / "answers.duckdb")
    assert "answers.duckdb is a DuckDB database; give the job file" in checks["job file"][1]


def test_damaged_weights(doctor, make_job, tmp_path, tiny_model_folder):
    copy = tmp_path / "model"
    copy.mkdir()
    for file in tiny_model_folder.iterdir():
        content = file.read_bytes()
        (copy / file.name).write_bytes(content[: len(content) // 2] if file.suffix == ".safetensors" else content)
    status, checks = doctor(make_job(sample_rows(1, 1)), "--model", copy)
    assert (status, checks["model"][0]) == (2, "fail")
    assert "model.safetensors is damaged" in checks["model"][1]


def test_a_model_that_is_not_on_disk(doctor, make_job, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    status, checks = doctor(make_job(sample_rows(1, 1)), "--model", "nobody/no-such-model")
    assert (status, checks["model"][0], checks["network"][0]) == (2, "fail", "fail")
    assert "run docqa plan once with a connection" in checks["network"][1]


def test_what_is_worth_knowing(doctor, make_job, tmp_path):
    job, database = make_job(sample_rows(1, 1)), tmp_path / "answers.duckdb"
    AnswerStore(database)
    with OutputLock(database, "docqa run job.toml"):
        status, checks = doctor(job)
        assert (status, checks["lock"][0], checks["database"][0]) == (0, "warn", "ok")
        assert "docqa run job.toml" in checks["lock"][1]
        journal = Journal(database)
        journal.append(RunRecord(run_id="r1"))
        journal.append(AnswerRecord(run_id="r1", doc_id="d", question_id="q", status="ok", answer="{}"))
        journal.close()
    status, checks = doctor(job)
    assert (status, checks["lock"][0], checks["journal"][0]) == (0, "ok", "warn")
    assert f"1 answers wait to get into the database | docqa status {database} --publish" in checks["journal"][1]


def test_room_and_versions(doctor, make_job, monkeypatch):
    job = make_job(sample_rows(1, 1))
    monkeypatch.setattr(doctor_machine.shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 500 << 20))
    monkeypatch.setattr(doctor_model, "free_memory_bytes", lambda device: 400_000)
    status, checks = doctor(job)
    assert (status, checks["disk"][0], checks["memory"][0]) == (0, "warn", "warn")
    assert "less than a prompt of full length" in checks["memory"][1]
    monkeypatch.setattr(doctor_machine.shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 50 << 20))
    monkeypatch.setattr(doctor_model, "free_memory_bytes", lambda device: 1000)
    monkeypatch.setattr(
        doctor_machine, "requires", lambda name: ["duckdb>=99", "no-such-package>=1", "x>=1; extra=='test'"]
    )
    status, checks = doctor(job)
    assert (status, checks["disk"][0], checks["memory"][0], checks["versions"][0]) == (2, "fail", "fail", "fail")
    assert "pip install 'duckdb>=99' 'no-such-package>=1'" in checks["versions"][1]


def test_nothing_connects_and_it_is_remembered():
    with refusing_connections() as tried:
        with pytest.raises(OSError, match="huggingface"):
            socket.create_connection(("huggingface.invalid", 443))
        with socket.socket() as plain, pytest.raises(OSError, match=r"127\.0\.0\.1"):
            plain.connect(("127.0.0.1", 9))
        left, right = socket.socketpair()
        with left, right:
            left.sendall(b"x")
    assert tried == ["huggingface.invalid", "127.0.0.1"]
