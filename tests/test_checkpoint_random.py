import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from runner.checkpoint import Checkpoint, inspect, materialize
from runner.checkpoint.architectures import ARCHITECTURES
from runner.checkpoint.random import _as_bfloat16, _shards
from runner.checkpoint.value import StoredTensor
from runner.config import ModelConfig, Source
from runner.errors import RequestError

MILLIONS = {
    "qwen3_0_6b": 596.0, "qwen3_1_7b": 1720.6, "llama_3_2_1b": 1235.8, "llama_3_1_8b": 8030.3, "mistral_7b": 7241.7,
    "gemma_7b": 8537.7, "gpt2": 124.4, "bert_base": 109.5, "modernbert_base": 149.7, "t5_small": 60.5,
    "whisper_tiny": 37.8, "llama_3_3_70b": 70553.7, "qwen3_8b": 8190.7, "bart_large": 406.3, "vit_base": 86.4,
}  # fmt: skip
"""published sizes, and those of transformers' defaults; buffers that are stored are counted in"""


def planned(name: str, cache: Path) -> tuple[ModelConfig, Checkpoint]:
    config = ModelConfig(source=Source.random, architecture=name, cache=str(cache))
    return config, inspect(config, source=Source.random, environment={}, embedded=cache)


def test_an_unknown_architecture_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"qwen3_17b is not known; did you mean qwen3_1_7b\? there are qwen3_0_6b,"):
        planned("qwen3_17b", tmp_path)


def test_planning_writes_no_weights_and_writing_makes_the_same_checkpoint(tmp_path: Path) -> None:
    config, before = planned("qwen3_tiny", tmp_path)
    assert before.path is None
    assert not (tmp_path / "random").exists()
    written = materialize(before, config, environment={})
    assert written.path is not None
    assert (written.num_parameters, written.num_bytes) == (before.num_parameters, before.num_bytes)
    assert {t.name: t.shape for t in written.tensors} == {t.name: t.shape for t in before.tensors}
    assert planned("qwen3_tiny", tmp_path)[1] == written


def test_every_machine_writes_the_same_bytes(tmp_path: Path, qwen: Checkpoint) -> None:
    assert qwen.path is not None
    config, found = planned("qwen3_tiny", tmp_path)
    again = materialize(found, config, environment={})
    assert again.path is not None
    assert (again.path / "model.safetensors").read_bytes() == (qwen.path / "model.safetensors").read_bytes()


def test_matrices_are_normal_and_norms_are_one(qwen: Checkpoint) -> None:
    assert qwen.path is not None
    tensors = load_file(qwen.path / "model.safetensors")
    matrix = tensors["model.layers.0.mlp.up_proj.weight"].float()
    assert abs(float(matrix.std()) - 0.02) < 0.001
    assert abs(float(matrix.mean())) < 0.001
    assert bool((tensors["model.norm.weight"] == 1).all())
    assert not torch.equal(matrix, tensors["model.layers.1.mlp.up_proj.weight"].float())


def test_rounding_is_torchs() -> None:
    values = np.concatenate([
        np.random.default_rng(0).standard_normal(10_000).astype(np.float32),
        np.array([0.0, -0.0, 1.00390625, 1.01171875, 3.3e38], np.float32),
    ])  # fmt: skip
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(_as_bfloat16(values), expected)


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, found = planned("qwen3_tiny", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    with pytest.raises(RequestError, match=r"takes 353\.38 KiB, 1 B is free in .*short\. model\.cache=DIR"):
        materialize(found, config, environment={})
    assert list((tmp_path / "random").iterdir()) == []


def test_a_writing_that_fails_leaves_nothing(tmp_path: Path) -> None:
    config, found = planned("qwen3_tiny", tmp_path)

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        materialize(found, config, environment={}, progress=fail)
    assert list((tmp_path / "random").iterdir()) == []


def test_shards_hold_whole_tensors_and_stay_below_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.checkpoint.random.LARGEST_SHARD", 100)
    tensors: Any = tuple(
        StoredTensor(name=str(i), dtype="bfloat16", shape=(size // 2,), num_bytes=size, file="", offset=0)
        for i, size in enumerate((60, 40, 2, 300, 50))
    )
    assert [[t.num_bytes for t in shard] for shard in _shards(tensors)] == [[60, 40], [2], [300], [50]]


def test_large_architectures_are_sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.checkpoint.random.LARGEST_SHARD", 100_000)
    config, found = planned("bert_tiny", tmp_path)
    written = materialize(found, config, environment={})
    assert written.path is not None
    assert len(list(written.path.glob("model-*.safetensors"))) > 1
    assert written.num_parameters == found.num_parameters


@pytest.mark.slow
def test_parameter_counts_are_the_published_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In one process: the layouts are what a process of its own would print."""
    from runner import steps
    from runner.settings import Settings

    plan = Settings(
        workload="load", device="cpu", precision="bf16", parameter_dtype="bfloat16", compute_dtype="bfloat16"
    )
    for name, millions in MILLIONS.items():
        values = ARCHITECTURES[name]
        made = Checkpoint(
            source="random", id=name, revision=None, path=None, architecture=values["architectures"][0],
            model_type=values["model_type"], config=values, tensors=(),
        )  # fmt: skip
        with torch.device("meta"):
            model = steps.build(made, plan)
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=2e-3), name
