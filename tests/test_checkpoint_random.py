"""Architectures at true size with random weights: described at once, written once, whole or not at all."""

import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoint import Checkpoint, inspect, materialize, tensors_bytes, write_random, writer
from runner.checkpoint.architectures import ARCHITECTURES, architecture_config, architecture_name
from runner.checkpoint.random_weights import inspect_random, only_one
from runner.checkpoint.writer import Skeleton, layout, write_folder
from runner.config import ModelConfig, Source
from runner.errors import CheckpointError, RequestError
from tests.checkpoint_makers import look

VALUES = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "initializer_range": 0.02, "eos_token_id": 2}


def skeleton(**overrides: Any) -> Skeleton:
    """A matrix, a norm, a bias and a counter; the head shares the matrix."""
    values: dict[str, Any] = {
        "tensors": (
            ("model.embed_tokens.weight", "bfloat16", (300, 100), "normal"),
            ("model.norm.weight", "bfloat16", (100,), "ones"),
            ("model.bias", "bfloat16", (7,), "zeros"),
            ("model.counter", "int64", (), "zeros"),
        ),
        "tied": (("model.embed_tokens.weight", "lm_head.weight"),),
    }
    return Skeleton(**values | overrides)


def written(path: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """A folder as it is written for that skeleton."""
    write_folder(path, VALUES, skeleton(**overrides), seed=seed, progress=None)
    return path


def values_of(path: Path, name: str) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """A bfloat16 tensor's values."""
    tensor = next(tensor for tensor in look(path).tensors if tensor.name == name)
    raw = (path / tensor.file).read_bytes()[tensor.offset : tensor.offset + tensor.num_bytes]
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


def ask(cache: Path, architecture: str | None = "qwen3_tiny") -> tuple[ModelConfig, Checkpoint]:
    config = ModelConfig(source=Source.random, architecture=architecture, cache=str(cache))
    return config, inspect(config, source=Source.random, environment=os.environ, embedded=cache)


def write_in_a_process(cache: Path) -> None:
    config, found = ask(cache)
    write_random(found, config, seed=0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that knows the tiny architecture's tensors already."""
    folder = tmp_path_factory.mktemp("cache")
    ask(folder)
    return folder


def test_an_unknown_architecture_is_answered_with_its_neighbour_and_the_list() -> None:
    with pytest.raises(RequestError, match=r"qwen3_1_8b is unknown; did you mean qwen3_1_7b\? known are .*gpt2"):
        architecture_name("qwen3_1_8b")


def test_no_architecture_is_answered_with_the_list() -> None:
    with pytest.raises(RequestError, match=r"needs model\.architecture; known are qwen3_0_6b"):
        architecture_name(None)


def test_a_name_may_be_spelled_as_its_authors_do() -> None:
    assert architecture_name("Qwen3-1.7B") == "qwen3_1_7b"
    assert architecture_name("mms-tts") == "vits"


def test_an_architecture_cannot_be_changed_by_who_asked_for_it() -> None:
    architecture_config("llama_3_1_8b")["rope_scaling"]["factor"] = 0
    assert ARCHITECTURES["llama_3_1_8b"]["rope_scaling"]["factor"] == 8.0


def test_weights_are_normal_norms_one_and_biases_zero(tmp_path: Path) -> None:
    folder = written(tmp_path / "a")
    weights = values_of(folder, "model.embed_tokens.weight")
    assert weights.std() == pytest.approx(0.02, rel=0.02)
    assert abs(weights.mean()) < 0.001
    assert 0.06 < np.abs(weights).max() < 0.09
    assert len(np.unique(weights)) > 1000
    assert set(values_of(folder, "model.norm.weight")) == {1.0}
    assert set(values_of(folder, "model.bias")) == {0.0}


def test_values_depend_on_seed_and_name_alone(tmp_path: Path) -> None:
    first, again, other = (written(tmp_path / name, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4)))
    name = "model.embed_tokens.weight"
    assert (values_of(first, name) == values_of(again, name)).all()
    assert (values_of(first, name) != values_of(other, name)).any()
    twins = (("one", "bfloat16", (50, 50), "normal"), ("two", "bfloat16", (50, 50), "normal"))
    folder = written(tmp_path / "d", tensors=twins, tied=())
    assert (values_of(folder, "one") != values_of(folder, "two")).any()


def test_the_order_of_blocks_leaves_no_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = values_of(written(tmp_path / "a"), "model.embed_tokens.weight")
    monkeypatch.setattr(writer, "_BLOCK", 64)
    assert (values_of(written(tmp_path / "b"), "model.embed_tokens.weight") == whole).all()


def test_what_was_described_is_what_is_written(tmp_path: Path) -> None:
    found = look(written(tmp_path / "a"))
    assert found.tensors == tuple(tensor for shard in layout(skeleton()) for tensor in shard.tensors)
    assert found.num_parameters == 30_000 + 100 + 7 + 1
    assert tensors_bytes(found, "float32") == 4 * 30_107 + 8
    assert json.loads((tmp_path / "a" / "generation_config.json").read_text()) == {"eos_token_id": 2}


def test_large_models_are_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SHARD", 60_100)
    folder = written(tmp_path / "a")
    found = look(folder)
    assert sorted(found.files) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert found.num_parameters == 30_108


def test_numbers_of_eight_bytes_stay_aligned(tmp_path: Path) -> None:
    counter = next(tensor for tensor in look(written(tmp_path / "a")).tensors if tensor.dtype == "int64")
    assert counter.offset % 8 == 0


def test_the_other_writer_wins_when_it_was_first(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", seed=1)
    before = (folder / "model.safetensors").read_bytes()
    written(folder, seed=2)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "a", VALUES, skeleton(), seed=0, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_progress_ends_at_the_size_of_the_files(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_folder(tmp_path / "a", VALUES, skeleton(), seed=0, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (seen[-1][1],) * 2
    assert seen[-1][1] == (tmp_path / "a" / "model.safetensors").stat().st_size


@pytest.mark.slow
def test_a_random_checkpoint_has_no_path_until_it_is_written(cache: Path) -> None:
    config, before = ask(cache)
    assert before.path is None
    assert before.num_parameters == 180_928
    after = materialize(before, config, environment=os.environ)
    assert after.path is not None
    assert after.tensors == before.tensors
    assert after.content_hash == before.content_hash
    assert ask(cache)[1] == after
    shutil.rmtree(after.path)


@pytest.mark.slow
def test_a_full_disk_is_told_beforehand(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, found = ask(cache)
    usage = shutil.disk_usage(cache)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(
        RequestError, match=r"need 3\d\d\.\d\d KiB on disk; 1000 B is free in .*short.*model\.cache=DIR"
    ):
        write_random(found, config, seed=0)


def test_a_cache_that_is_a_file_is_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"cannot be written: .*model\.cache=DIR"):
        ask(tmp_path / "file" / "cache")


@pytest.mark.slow
def test_a_damaged_cache_says_what_to_delete(cache: Path) -> None:
    config, found = ask(cache)
    path = write_random(found, config, seed=0).path
    assert path is not None
    os.truncate(path / "model.safetensors", 5000)
    with pytest.raises(CheckpointError, match=r"is truncated.*delete .*qwen3_tiny.* and run again"):
        ask(cache)
    shutil.rmtree(path)


@pytest.mark.slow
def test_each_seed_has_its_own_folder(cache: Path) -> None:
    config, found = ask(cache)
    path = write_random(found, config, seed=0).path
    assert inspect_random(config, environment=os.environ, seed=1).path is None
    assert path is not None
    shutil.rmtree(path)


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    left = tmp_path / ".a.0123.partial"
    left.mkdir()
    (left / "model.safetensors").write_text("half")
    with only_one(tmp_path / "a"):
        assert not left.exists()


@pytest.mark.slow
def test_two_processes_at_once_make_one_whole_folder(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_in_a_process, args=(cache,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    path = ask(cache)[1].path
    assert path is not None
    assert not list((cache / "random").glob("*.partial"))
    shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_tiny", "llama_tiny", "bert_tiny", "t5_tiny"])
def test_transformers_loads_what_was_written_and_computes_with_it(tmp_path: Path, name: str) -> None:
    import torch
    import transformers

    config, found = ask(tmp_path, name)
    path = write_random(found, config, seed=0).path
    model, told = getattr(transformers, found.architecture).from_pretrained(
        path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(told.values())
    assert sum(parameter.numel() for parameter in model.parameters()) == found.num_parameters
    tokens = torch.arange(16).reshape(2, 8)
    inputs = {"decoder_input_ids": tokens[:, :3]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        output = model(input_ids=tokens, **inputs)[0]
    assert torch.isfinite(output).all()
    assert output.std() > 0.01
    assert not torch.allclose(output[0], output[1])
