"""The compiled library as a whole: whether it is the one that the sources beside it make."""

import re
from pathlib import Path

import pytest
import torch

from engine import native

FOLDER = Path(native.__file__).parent


def test_every_function_that_is_called_is_looked_for():
    files = [*FOLDER.glob("*.py"), FOLDER.parent / "attention_native.py"]
    called = {name for file in files for name in re.findall(r"\.(docqa_\w+)", file.read_text())}
    assert called == set(native.FUNCTIONS)


def test_a_library_of_older_sources_is_not_used(monkeypatch):
    if native.unavailable_reason(torch.float32) is not None:
        pytest.skip(native.unavailable_reason(torch.float32))
    monkeypatch.setattr(native, "FUNCTIONS", (*native.FUNCTIONS, "docqa_of_tomorrow"))
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    assert "not built from these sources" in native.unavailable_reason(torch.float32)
