"""Tiny checkpoints on disk, made by the program's own writer, and settings to run them with."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.checkpoint import Checkpoint, inspect, materialize
from runner.config import ModelConfig, Source
from runner.settings import DTYPES, Settings


def tiny(architecture: str, cache: Path) -> Checkpoint:
    """A random checkpoint of a few hundred thousand parameters, in bf16: qwen3_tiny, bert_tiny, t5_tiny, …"""
    config = ModelConfig(source=Source.random, architecture=architecture, cache=str(cache))
    found = inspect(config, source=Source.random, environment={}, embedded=cache)
    return materialize(found, config, environment={})


def settings(workload: str, precision: str = "fp32", **overrides: Any) -> Settings:
    """Settings for the CPU, the weights cast to the precision."""
    dtype = DTYPES[precision]
    values: dict[str, Any] = {
        "workload": workload, "device": "cpu", "precision": precision, "parameter_dtype": dtype,
        "compute_dtype": dtype, "sequence_length": 16, "max_new_tokens": 4, "steps": 2,
    }  # fmt: skip
    return Settings(**values | overrides)


def changed(checkpoint: Checkpoint, folder: Path, **config: Any) -> Checkpoint:
    """The same weights under a changed config.json, in a folder of their own."""
    assert checkpoint.path is not None
    folder.mkdir()
    for item in checkpoint.path.iterdir():
        (folder / item.name).write_bytes(item.read_bytes())
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    return replace(checkpoint, path=folder, config=values)
