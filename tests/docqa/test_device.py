"""Which device a job runs on, and what happens where there is none of that name."""

import pytest
import torch

from engine.errors import ModelError
from engine.kv_memory import kv_page_bytes
from jobs import model
from jobs.job_file import load_job
from jobs.model import choose_device, choose_dtype
from jobs.prepare import prepare
from tests.job_fixtures import sample_rows


@pytest.fixture
def gpus(monkeypatch):
    """gpus(n): torch says that there are n."""

    def set_count(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_count


def test_auto_takes_a_gpu_where_there_is_one(gpus, monkeypatch):
    gpus(0)
    assert choose_device("auto") == "cpu"
    gpus(2)
    assert choose_device("auto") == "cuda"
    assert choose_device("cpu") == "cpu"
    assert choose_device("cuda:1") == "cuda:1"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert choose_dtype("auto", "cuda") == torch.bfloat16


def test_a_gpu_that_is_not_there_is_named(gpus):
    gpus(0)
    with pytest.raises(ModelError, match="'cuda', but torch finds no GPU here; use auto or cpu"):
        choose_device("cuda")
    gpus(2)
    with pytest.raises(ModelError, match="'cuda:2', but torch finds cuda:0, cuda:1 only"):
        choose_device("cuda:2")


def test_a_job_for_a_missing_gpu_ends_with_2_and_writes_nothing(docqa, make_job, tmp_path, gpus):
    gpus(0)
    status, out, err = docqa("run", make_job(sample_rows(1, 2)), "--set", "model.device=cuda")
    assert (status, out) == (2, "")
    assert "model.device is 'cuda', but torch finds no GPU here; use auto or cpu." in err
    assert "Traceback" not in err
    assert not (tmp_path / "answers.duckdb").exists()


def test_an_engine_on_a_gpu_is_sized_after_the_weights_are_loaded(make_job, monkeypatch):
    """The order of things, and which memory sizes the pool; the engine itself would need a GPU."""
    calls = []
    prepared = prepare(load_job(make_job(sample_rows(1, 2)), ["model.dtype=float32"]))
    monkeypatch.setattr(model, "choose_device", lambda name: "cuda")
    monkeypatch.setattr(model, "free_memory_bytes", lambda device: 10**9)
    monkeypatch.setattr(model, "load_decoder", lambda *_: calls.append("load") or "decoder")
    monkeypatch.setattr("engine.gpu_memory.kv_memory_bytes", lambda decoder, **_: calls.append("measure") or 20 * 4096)
    monkeypatch.setattr(model, "make_engine_of", lambda decoder, job_model, settings, *_: settings)
    settings = model.make_engine(prepared.job, prepared.model, prepared.plan)
    assert calls == ["load", "measure"]
    page_bytes = kv_page_bytes(prepared.model.config, settings.page_size, 4)
    assert settings.kv_pages == 20 * 4096 // page_bytes - 1
    assert settings.step_tokens == 8192
