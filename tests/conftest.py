import os
from pathlib import Path

import pytest

# The tests' Hub is on the loopback interface; the client reads this when it is imported.
os.environ.pop("HF_HUB_OFFLINE", None)
# Processes that tests start in other folders run this source tree, whichever is installed.
os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])

from runner.checkpoint import Checkpoint
from tests.model_makers import tiny


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need an accelerator where there is none, and say so."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.accelerator.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"torch {torch.__version__} sees no accelerator here"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for the checkpoints that tests write."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def qwen(cache: Path) -> Checkpoint:
    """A causal model without a tokenizer."""
    return tiny("qwen3_tiny", cache)


@pytest.fixture(scope="session")
def bert(cache: Path) -> Checkpoint:
    """A headless encoder."""
    return tiny("bert_tiny", cache)


@pytest.fixture(scope="session")
def t5(cache: Path) -> Checkpoint:
    """An encoder-decoder."""
    return tiny("t5_tiny", cache)
