import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine import model_source
from engine.embedded_model import EMBEDDED_NAME, find_embedded_gguf
from engine.errors import ModelError
from engine.model_config import ModelConfig
from engine.model_source import MANIFEST, build_once, cache_folder, model_fingerprint, resolve_model
from engine.tokenizer import load_tokenizer, stop_token_ids
from engine.weights import load_weights
from tests.engine.tiny_models import byte_tokenizer, converted_smollm2, no_network, save_tiny_model

ROOT = Path(__file__).parents[2]


def python(code, **environment):
    """Start `code` in another interpreter at the root of the repository."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def tiny_folder(tmp_path):
    save_tiny_model("llama-tied", tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def smollm2_cache(monkeypatch):
    model, cache, _ = converted_smollm2()
    monkeypatch.setenv("DOCQA_CACHE", str(cache))
    return model


def test_embedded_model_is_converted_without_network(smollm2_cache):
    model, cache, attempts = converted_smollm2()
    assert attempts == []
    assert model.name == EMBEDDED_NAME
    assert cache in model.folder.parents
    assert ModelConfig.from_folder(model.folder).stored_dtype == "bfloat16"
    assert json.loads((model.folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert not list(model.folder.parent.glob(".*"))
    assert resolve_model(EMBEDDED_NAME, verify=True) == model


def test_resolving_and_loading_connect_nowhere(smollm2_cache, tiny_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with no_network() as attempts:
        for path in (EMBEDDED_NAME, str(tiny_folder)):
            folder = resolve_model(path).folder
            load_weights(folder, ModelConfig.from_folder(folder), torch.bfloat16)
            assert stop_token_ids(folder, load_tokenizer(folder)) == {2}
    assert attempts == []


def test_planning_imports_no_torch(smollm2_cache):
    code = f"""
import sys
from engine.model_config import ModelConfig
from engine.model_source import model_fingerprint, resolve_model
from engine.tokenizer import load_tokenizer, stop_token_ids
folder = resolve_model({EMBEDDED_NAME!r}).folder
ModelConfig.from_folder(folder), model_fingerprint(folder), stop_token_ids(folder, load_tokenizer(folder))
print("torch" in sys.modules)
"""
    process = python(code)
    output, errors = process.communicate(timeout=600)
    assert output.strip() == "False", errors
    assert errors == ""


def test_local_folder(tiny_folder):
    model = resolve_model(str(tiny_folder))
    assert (model.folder, model.name, model.source) == (tiny_folder, "tiny", str(tiny_folder))


def test_pickle_only_folder_is_refused(tiny_folder):
    (tiny_folder / "model.safetensors").rename(tiny_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*convert it to safetensors"):
        resolve_model(str(tiny_folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no model.safetensors"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_incomplete_folder_is_refused(tiny_folder, name, message):
    (tiny_folder / name).unlink()
    with pytest.raises(ModelError, match=message):
        resolve_model(str(tiny_folder))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere/model.gguf", "does not exist"),
        ("/nowhere/model", "no existing folder"),
        (__file__, "neither a folder nor a .gguf file"),
        ("smollm2", "no existing folder"),
    ],
)
def test_paths_that_lead_nowhere(path, message):
    with pytest.raises(ModelError, match=message):
        resolve_model(path)


def test_hub_without_connection(monkeypatch):
    def offline(hub_id, **options):
        assert not any("bin" in pattern or "py" in pattern for pattern in options["allow_patterns"])
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelError, match=r"owner/name is no local folder.*Name or service not known"):
        resolve_model("owner/name")


def test_hub_snapshot_on_disk_is_used_as_it_is(monkeypatch, tiny_folder):
    calls = []

    def on_disk(hub_id, **options):
        calls.append(options)
        return str(tiny_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", on_disk)
    assert resolve_model("owner/name").folder == tiny_folder
    assert [call.get("local_files_only") for call in calls] == [True]


def test_fingerprint_is_of_the_content(tiny_folder, tmp_path):
    before = model_fingerprint(tiny_folder)
    copy = tmp_path / "copy"
    shutil.copytree(tiny_folder, copy)
    os.utime(copy / "model.safetensors", (1, 1))
    (copy / "README.md").write_text("not part of the model")
    assert model_fingerprint(copy) == before
    for name in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors"):
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content + b" ")
        assert model_fingerprint(copy) != before, name
        (copy / name).write_bytes(content)
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert model_fingerprint(copy) != before


def test_cache_folder_order(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCQA_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("DOCQA_CACHE")
    assert cache_folder() == tmp_path / "b" / "docqa"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert cache_folder() == tmp_path / "c" / ".cache" / "docqa"


def write_two_files(folder):
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")


def test_build_once_builds_once(tmp_path):
    target, builds = tmp_path / "deep" / "model", []

    def build(folder):
        builds.append(folder)
        write_two_files(folder)

    assert build_once(target, build, "abc") == ()
    assert build_once(target, build, "abc", verify=True) == ()
    assert len(builds) == 1
    assert sorted(file.name for file in target.iterdir()) == ["config.json", MANIFEST, "model.safetensors"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"cut"),
        lambda folder: (folder / "config.json").write_text("[]"),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / MANIFEST).write_text("{"),
        lambda folder: (folder / MANIFEST).unlink(),
    ],
)
def test_damaged_cache_is_built_again_with_a_note(damage, tmp_path):
    target = tmp_path / "model"
    build_once(target, write_two_files, "abc")
    damage(target)
    (note,) = build_once(target, write_two_files, "abc")
    assert "was damaged" in note
    assert build_once(target, write_two_files, "abc", verify=True) == ()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_large_files_are_hashed_only_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(model_source, "_ALWAYS_HASHED_BYTES", 4)
    target = tmp_path / "model"
    build_once(target, write_two_files, "abc")
    (target / "model.safetensors").write_bytes(b"WEIGHTS")
    assert build_once(target, write_two_files, "abc") == ()
    assert build_once(target, write_two_files, "abc", verify=True) != ()


def test_failed_build_leaves_nothing(tmp_path):
    def fail(folder):
        write_two_files(folder)
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        build_once(tmp_path / "model", fail, "abc")
    assert list(tmp_path.iterdir()) == []


def test_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="set DOCQA_CACHE to a folder"):
        build_once(tmp_path / "file" / "model", write_two_files, "abc")


def test_two_processes_at_once_both_succeed(tmp_path):
    code = f"""
import os, time
from pathlib import Path
from engine.model_source import build_once
target, gate = Path({str(tmp_path)!r}) / "model", Path({str(tmp_path)!r}) / "gate"
def build(folder):
    (folder / "model.safetensors").write_bytes(b"weights")
    (gate / str(os.getpid())).touch()
    deadline = time.monotonic() + 300
    while len(list(gate.iterdir())) < 2 and time.monotonic() < deadline:  # until both are inside the build
        time.sleep(0.01)
build_once(target, build, "abc")
print((target / "model.safetensors").read_text())
"""
    (tmp_path / "gate").mkdir()
    processes = [python(code), python(code)]
    for process in processes:
        output, errors = process.communicate(timeout=600)
        assert output.strip() == "weights", errors
    assert len(list((tmp_path / "gate").iterdir())) == 2, "the test must have raced"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gate", "model"]


def write_gguf(path, architecture="llama", pre="smollm", **values):
    """A GGUF file of one layer with nothing but its embedding: enough to be judged by."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    for key, value in values.items():
        name = f"{architecture}.{key.replace('__', '.')}"
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
    for key, value in {"block_count": 1, "embedding_length": 8, "feed_forward_length": 8, "vocab_size": 4}.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_uint32(f"{architecture}.attention.head_count", 1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("bloom", {}, "'bloom' is not supported"),
        ("llama", {"rope__scaling__type": "yarn"}, "rotary positions"),
        ("llama", {"attention__sliding_window": 4096}, "sliding_window"),
        ("llama", {"expert_count": 8}, "expert_count"),
        ("llama", {}, "lacks tensors"),
    ],
)
def test_gguf_that_would_be_converted_wrongly_is_refused(architecture, values, message, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCQA_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "model.gguf", architecture, **values)
    with pytest.raises(ModelError, match=message):
        resolve_model(str(tmp_path / "model.gguf"))
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_file_that_is_no_gguf(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCQA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(b"not a gguf file at all")
    with pytest.raises(ModelError, match="can't be read as GGUF"):
        resolve_model(str(tmp_path / "model.gguf"))


def test_unknown_text_splitting_is_refused(tmp_path):
    tokenizer = byte_tokenizer()
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "from-next-year"}
    with pytest.raises(ModelError, match="from-next-year"):
        model_source._set_pre_tokenizer(tokenizer, metadata, tmp_path / "model.gguf")


def test_gguf_path_and_embedded_name_share_the_weights(smollm2_cache, monkeypatch):
    """The same bytes under another name are another cache entry; converting again is what this test avoids."""
    asked = []
    monkeypatch.setattr(model_source, "build_once", lambda target, *_: asked.append(target) or ())
    resolve_model(str(find_embedded_gguf()))
    assert asked[0].name.endswith(smollm2_cache.folder.name.removeprefix(EMBEDDED_NAME))
