"""What is asked for and needs a package that is not there."""

import importlib.util
from pathlib import Path

import pytest

from runner.config import Adapter, AdapterConfig, Optimizer, OptimizerConfig, RunConfig, Tracker, TrackerConfig
from runner.errors import RequestError
from runner.extras import PACKAGES, check_installed, is_installed

ASKED = {
    "mlflow": RunConfig(tracker=TrackerConfig(name=Tracker.mlflow)),
    "tensorboard": RunConfig(tracker=TrackerConfig(name=Tracker.tensorboard)),
    "peft": RunConfig(adapter=AdapterConfig(name=Adapter.lora)),
    "bitsandbytes": RunConfig(optimizer=OptimizerConfig(name=Optimizer.adamw_8bit)),
}


@pytest.mark.parametrize("package", ASKED)
def test_a_missing_package_is_told_before_anything_is_loaded(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_installed(RunConfig())
    with pytest.raises(RequestError, match=f"pip install {package}"):
        check_installed(ASKED[package])


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_such_package").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(PACKAGES, "adapter=lora", "no_such_package")
    assert not is_installed("adapter=lora")
