"""Checkpoints on the Hub: described before they are downloaded, found in the cache, fetched. The Hub is a loopback."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import Checkpoint, fetch, inspect
from runner.config import ModelConfig, Source
from runner.errors import CheckpointError, RequestError
from tests.checkpoint_makers import QWEN3, entries, safetensors
from tests.hub_server import COMMIT, Hub, serve
from tests.qwen3_tts_makers import headers_only

LARGE = 300_000
WHOLE = safetensors(entries({"model.embed_tokens.weight": (LARGE, 2), "model.norm.weight": (2,)}))
FILES = {
    "config.json": json.dumps(QWEN3).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": WHOLE,
    "pytorch_model.bin": b"pickle" * 1000,
    "onnx/model.onnx": b"x" * 1000,
    "README.md": b"# tiny",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve(Hub(files=dict(FILES))) as served:
        yield served


def ask(environment: dict[str, str], **options: Any) -> Checkpoint:
    config = ModelConfig(**{"source": Source.hf, "id": "org/tiny"} | options)
    return inspect(config, source=Source.hf, environment=environment, embedded=Path())


def get(found: Checkpoint, environment: dict[str, str], **options: Any) -> Checkpoint:
    return fetch(found, ModelConfig(source=Source.hf, id="org/tiny", **options), environment=environment)


def shards() -> dict[str, bytes]:
    """The same repository in two files with an index."""
    parts = {"a.safetensors": entries({"x": (5,)}), "b.safetensors": entries({"y": (7,)})}
    weight_map = {name: file for file, header in parts.items() for name in header}
    index = {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}
    whole = {"config.json": FILES["config.json"]} | index
    return whole | {file: safetensors(header) for file, header in parts.items()}


def test_headers_are_read_before_the_weights_come(hub: Hub, tmp_path: Path) -> None:
    found = ask(hub.environment(tmp_path))
    assert found.path is None
    assert (found.id, found.revision, found.architecture) == ("org/tiny", COMMIT, "Qwen3ForCausalLM")
    assert found.num_parameters == 2 * LARGE + 2
    assert found.num_bytes == 2 * (2 * LARGE + 2)
    assert found.has_tokenizer
    assert found.tokenizer_path is not None
    assert (found.tokenizer_path / "tokenizer.json").is_file()
    assert hub.sent("model.safetensors") <= 100_001 < len(WHOLE)


def test_what_was_fetched_is_what_was_described(hub: Hub, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path)
    before = ask(environment)
    after = get(before, environment)
    assert after.path is not None
    assert after.tensors == before.tensors
    assert (after.content_hash, after.revision, after.source) == (before.content_hash, COMMIT, "hf")
    assert sorted(file.name for file in after.path.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_what_is_in_the_cache_is_inspected_there(hub: Hub, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path)
    fetched = get(ask(environment), environment)
    hub.requests.clear()
    assert ask(environment) == fetched
    assert hub.sent("model.safetensors") == 0


def test_the_cache_serves_offline(hub: Hub, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path)
    fetched = get(ask(environment), environment)
    hub.requests.clear()
    found = ask(environment | {"HF_HUB_OFFLINE": "1"})
    assert (found.path, found.tensors) == (fetched.path, fetched.tensors)
    assert found.notes == ("taken from the cache as it is: HF_HUB_OFFLINE is set",)
    assert ask(environment | {"HF_HUB_OFFLINE": "1"}, revision=COMMIT).path == fetched.path
    assert hub.requests == []


def test_the_cache_serves_when_the_hub_is_out_of_order(hub: Hub, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path)
    fetched = get(ask(environment), environment)
    hub.broken = True
    found = ask(environment)
    assert found.path == fetched.path
    assert "cannot be reached" in found.notes[0]


def test_offline_and_absent_says_what_to_type(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"org/tiny at main is not in .*HF_HUB_OFFLINE is set.*hf download org/tiny"
    ):
        ask(hub.environment(tmp_path, HF_HUB_OFFLINE="1"))
    assert hub.requests == []


def test_offline_with_no_more_than_the_config_is_not_whole(hub: Hub, tmp_path: Path) -> None:
    ask(hub.environment(tmp_path))
    with pytest.raises(CheckpointError, match=r"is not whole in .*holds no weights"):
        ask(hub.environment(tmp_path, HF_HUB_OFFLINE="1"), revision=COMMIT)


def test_no_network_names_the_endpoint(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    environment = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(tmp_path)}
    with pytest.raises(CheckpointError, match=rf"http://127\.0\.0\.1:{port} cannot be reached.*model\.path=DIR"):
        ask(environment)


def test_an_unknown_id_says_where_it_was_looked_for(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"org/tinny is not on {hub.url}: check the spelling of model\.id"):
        ask(hub.environment(tmp_path), id="org/tinny")


def test_an_unknown_revision_is_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"org/tiny has no revision v9; .* as model\.revision"):
        ask(hub.environment(tmp_path), revision="v9")


def test_a_gated_model_says_where_to_ask(hub: Hub, tmp_path: Path) -> None:
    hub.gated = True
    with pytest.raises(
        CheckpointError, match=rf"org/tiny is gated \(HF_TOKEN is not set\): ask for access at {hub.url}"
    ):
        ask(hub.environment(tmp_path))


def test_a_wrong_token_is_told_apart_from_none(hub: Hub, tmp_path: Path) -> None:
    hub.gated = True
    with pytest.raises(CheckpointError, match="HF_TOKEN is set but does not open it"):
        ask(hub.environment(tmp_path, HF_TOKEN="hf_wrong"))


def test_the_token_opens_a_private_model(hub: Hub, tmp_path: Path) -> None:
    hub.private = True
    environment = hub.environment(tmp_path, HF_TOKEN=hub.token)
    assert get(ask(environment), environment).num_parameters == 2 * LARGE + 2
    with pytest.raises(CheckpointError, match="if private, set HF_TOKEN"):
        ask(hub.environment(tmp_path / "other"))


def test_shards_are_compared_with_their_index(hub: Hub, tmp_path: Path) -> None:
    hub.files = shards()
    environment = hub.environment(tmp_path)
    found = ask(environment)
    assert (found.num_parameters, len(found.files)) == (12, 2)
    assert get(found, environment).tensors == found.tensors


def test_an_index_beyond_its_shards_is_refused_before_anything_comes(hub: Hub, tmp_path: Path) -> None:
    hub.files = shards()
    weight_map = {"x": "a.safetensors", "y": "b.safetensors", "gone": "b.safetensors"}
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    with pytest.raises(CheckpointError, match=r"names 3 tensors, of which gone \(b\.safetensors\) is not in the files"):
        ask(hub.environment(tmp_path))


def test_a_shard_that_the_hub_lacks_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.files = shards()
    del hub.files["b.safetensors"]
    with pytest.raises(CheckpointError, match=r"names 2 files, but b\.safetensors is not there"):
        ask(hub.environment(tmp_path))


def test_a_header_that_is_larger_than_the_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.files["model.safetensors"] = WHOLE[: LARGE * 4]
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated"):
        ask(hub.environment(tmp_path))


def test_pickle_only_is_refused_before_anything_comes(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(CheckpointError, match=r"only as pickle .*model\.allow_pickle=true"):
        ask(hub.environment(tmp_path))
    found = ask(hub.environment(tmp_path), allow_pickle=True)
    assert (found.weights_format, found.num_bytes) == ("pickle", 6000)
    assert get(found, hub.environment(tmp_path), allow_pickle=True).pickle_files == {"pytorch_model.bin": 6000}


def test_without_config_it_is_no_transformers_checkpoint(hub: Hub, tmp_path: Path) -> None:
    del hub.files["config.json"]
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        ask(hub.environment(tmp_path))


def test_progress_is_told_in_bytes(hub: Hub, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    environment = hub.environment(tmp_path)
    fetch(
        ask(environment), ModelConfig(source=Source.hf, id="org/tiny"),
        progress=lambda done, total: seen.append((done, total)), environment=environment,
    )  # fmt: skip
    assert seen[-1] == (len(WHOLE), len(WHOLE))


def test_a_full_disk_is_told_beforehand(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    environment = hub.environment(tmp_path)
    found = ask(environment)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(RequestError, match=r"needs 1\.14 MiB on disk; 1000 B is free"):
        get(found, environment)


def test_no_id_asks_for_one() -> None:
    with pytest.raises(RequestError, match=r"model=hf needs model\.id=ORG/NAME"):
        ask({}, id=None)


@pytest.mark.parametrize("id", ["a/b/c", "/etc", "org/..", "org name/x", "https://hub/org/x", "x" * 97, "org/a--b"])
def test_what_is_no_hub_id_is_refused_unasked(id: str) -> None:
    with pytest.raises(RequestError, match="is no Hub id: write ORG/NAME"):
        ask({}, id=id)


@pytest.mark.parametrize("revision", ["", "../main"])
def test_what_is_no_revision_is_refused_unasked(revision: str) -> None:
    with pytest.raises(RequestError, match="is no revision; give a branch, a tag or a commit"):
        ask({}, revision=revision)


def test_a_broken_download_says_what_to_delete(hub: Hub, tmp_path: Path) -> None:
    environment = hub.environment(tmp_path)
    found = ask(environment)
    path = get(found, environment).path
    assert path is not None
    with open((path / "model.safetensors").resolve(), "r+b") as blob:
        blob.truncate(1000)
    with pytest.raises(
        CheckpointError, match=r"truncated: it ends at byte 1000 .*delete .*models--org--tiny to download"
    ):
        get(ask(environment), environment)


def test_a_long_header_is_read_whole(hub: Hub, tmp_path: Path) -> None:
    hub.files["model.safetensors"] = safetensors(
        entries({f"layer.{number:04d}.weight": (1,) for number in range(2000)})
    )
    assert ask(hub.environment(tmp_path)).num_parameters == 2000


def test_a_folder_given_as_an_id_is_answered_with_model_path(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"for a local folder give model\.path={tmp_path}"):
        ask({}, id=str(tmp_path))


def speech_files(folder: Path) -> dict[str, bytes]:
    """The files of a Qwen3-TTS repository, the codec's in their folder."""
    root = headers_only(folder)
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def test_a_codec_in_its_folder_is_counted_before_it_comes_and_fetched_with_the_rest(tmp_path: Path) -> None:
    files = speech_files(tmp_path / "model") | {"speech_tokenizer/README.md": b"# a codec"}
    weights = {name: len(raw) for name, raw in files.items() if name.endswith(".safetensors")}
    with serve(Hub(files=files)) as hub:
        environment = hub.environment(tmp_path / "cache")
        before = ask(environment)
        assert before.codec is not None
        assert (before.path, before.codec.path) == (None, None)
        assert before.files == weights
        assert set(weights) == {"model.safetensors", "speech_tokenizer/model.safetensors"}
        after = get(before, environment)
    assert after.path is not None
    assert after.codec is not None
    assert after.codec.path == after.path / "speech_tokenizer"
    assert after.codec.tensors == before.codec.tensors
    assert sorted(file.name for file in after.codec.path.iterdir()) == ["config.json", "model.safetensors"]
    assert (after.codec.path / "model.safetensors").stat().st_size == weights["speech_tokenizer/model.safetensors"]


@pytest.mark.parametrize("absent", ["model.safetensors", "config.json"])
def test_a_speech_repository_without_its_codec_is_named(absent: str, tmp_path: Path) -> None:
    files = speech_files(tmp_path / "model")
    del files[f"speech_tokenizer/{absent}"]
    with serve(Hub(files=files)) as hub, pytest.raises(CheckpointError, match="has no speech_tokenizer/model"):
        ask(hub.environment(tmp_path / "cache"))
