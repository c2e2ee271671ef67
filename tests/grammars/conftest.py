import json
from typing import Any

import pytest

from grammars import TokenVocabulary
from tests.conftest import SHARED
from tests.grammars.helpers import byte_vocabulary

CORPUS = SHARED / "data" / "schemas" / "corpus.jsonl"


@pytest.fixture(scope="session")
def vocabulary() -> TokenVocabulary:
    return byte_vocabulary()


@pytest.fixture(scope="session")
def smollm2(embedded_tokenizer) -> tuple[Any, TokenVocabulary]:
    """The tokenizer of the embedded model, and its vocabulary."""
    return embedded_tokenizer, TokenVocabulary.from_tokenizer(embedded_tokenizer, 49152)


@pytest.fixture(scope="session")
def corpus() -> list[dict[str, Any]]:
    if not CORPUS.exists():
        pytest.skip("the schema corpus is not here")
    with CORPUS.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
