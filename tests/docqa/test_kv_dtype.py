"""engine.kv_dtype: what a user sees of keys and values in 8 bits."""

import json

import duckdb
import pytest
import torch

from engine import kv_check
from engine.errors import ModelError
from jobs.model import check_kv_device
from tests.job_fixtures import sample_rows


def test_a_job_with_int8_runs_and_its_plan_has_the_real_bytes(docqa, make_job, tmp_path):
    job = make_job(sample_rows(1, 3))
    plans = {}
    for name in ("auto", "int8"):
        status, out, _ = docqa("plan", job, "--json", "--set", f"engine.kv_dtype={name}")
        assert status == 0
        plans[name] = json.loads(out)
    # 2 layers and 2 KV heads of 8 values: 8 bytes and a scale of 4 each, where float32 has 32.
    assert (plans["auto"]["kv_dtype"], plans["auto"]["kv_bytes_per_token"]) == ("float32", 2 * 2 * 2 * 32)
    assert (plans["int8"]["kv_dtype"], plans["int8"]["kv_bytes_per_token"]) == ("int8", 2 * 2 * 2 * 12)
    assert plans["int8"]["smallest_kv_bytes"]["int8"] == plans["int8"]["smallest_kv_bytes"]["float32"] * 12 / 32
    status, out, _ = docqa("plan", job, "--set", "engine.kv_dtype=int8")
    assert "96 bytes a token in int8: keys and values x 2 layers x 2 KV heads x (8 bytes and a scale of 4)" in " ".join(
        out.split()
    )
    status, _, err = docqa("run", job, "--set", "engine.kv_dtype=int8", "--quiet")
    assert (status, err) == (0, "")
    with duckdb.connect(str(tmp_path / "answers.duckdb"), read_only=True) as connection:
        assert connection.sql("SELECT DISTINCT status FROM answers").fetchall() == [("ok",)]
        ((config,),) = connection.sql("SELECT config FROM runs").fetchall()
    assert json.loads(config)["engine"]["kv_dtype"] == "int8"
    # It is part of what an answer depends on, like the model's dtype.
    for name, changed in (("auto", 3), ("int8", 0)):
        _, out, _ = docqa("plan", job, "--json", "--set", f"engine.kv_dtype={name}")
        assert json.loads(out)["rows_changed"] == changed


def test_a_model_whose_predictions_change_too_much_is_refused(docqa, make_job, monkeypatch):
    monkeypatch.setattr(kv_check, "MOST_MEAN_DIVERGENCE", 1e-12)
    job = make_job(sample_rows(1, 2))
    status, out, err = docqa("run", job, "--set", "engine.kv_dtype=int8")
    assert (status, out) == (2, "")
    assert "engine.kv_dtype is int8, but on a text of 600 tokens this model's predictions then differ by " in err
    assert "nats a token, and 1e-12 is the most that is let through; set engine.kv_dtype to auto." in err
    assert "Traceback" not in err


def test_a_format_that_the_device_lacks_is_refused(docqa, make_job, tmp_path, monkeypatch):
    job = make_job(sample_rows(1, 2))
    status, out, err = docqa("run", job, "--set", "engine.kv_dtype=fp8", "--set", "model.device=cpu")
    assert (status, out) == (2, "")
    assert "engine.kv_dtype is fp8, which needs a GPU; use int8 or auto on the CPU." in err
    assert not (tmp_path / "answers.duckdb").exists()
    status, _, err = docqa("run", job, "--set", "engine.kv_dtype=int4")
    assert status == 2
    assert "auto, int8 or fp8" in err
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ModelError, match=r"fp8, which needs a GPU of compute capability 8.9 or more, .* has 8.0; use"):
        check_kv_device("fp8", "auto", "cuda")
    check_kv_device("int8", "bfloat16", "cuda")
    with pytest.raises(ModelError, match=r"int8, which a GPU has with model.dtype bfloat16 or float16 only"):
        check_kv_device("int8", "float32", "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    check_kv_device("fp8", "auto", "cuda")
