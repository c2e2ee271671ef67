import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Triton decides when it is first imported; its kernels then run on the CPU, in its interpreter.
os.environ["TRITON_INTERPRET"] = "1"

import engine  # noqa: F401  # before torch, for what it sets

# No test may fail because the machine is busy, or draw an example that it did not draw before the change: new ones are
# looked for with --hypothesis-profile=random. The profile "thorough" is that of the slow run (see thorough.py).
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("docqa", settings.get_profile("random"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("docqa"), max_examples=500)
settings.load_profile("docqa")

pytest_plugins = ["tests.job_fixtures"]


# Collecting garbage took a tenth of the time: what the imports made is looked at no more, and what is new more rarely.
gc.set_threshold(20_000)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()


SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def embedded_folder():
    """The embedded default model as a Hugging Face folder, converted once into the user's cache."""
    from engine.embedded_model import EMBEDDED_NAME
    from engine.model_source import resolve_model

    return resolve_model(EMBEDDED_NAME).folder


@pytest.fixture(scope="session")
def embedded_tokenizer(embedded_folder):
    from engine.tokenizer import load_tokenizer

    return load_tokenizer(embedded_folder)


@pytest.fixture
def shared_data():
    """The data that lies beside the project, where it is there."""
    if not (SHARED / "data").is_dir():
        pytest.skip("../shared/data is not here")
    return SHARED / "data"
