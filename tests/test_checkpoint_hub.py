"""Against a Hub on the loopback interface, in processes of their own: the client reads its settings when imported."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import Checkpoint
from tests.checkpoint_makers import folder, header, safetensors
from tests.hub_server import COMMIT, Hub, hub

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from runner.checkpoint import inspect, materialize
from runner.config import ModelConfig, Source
from runner.errors import RunnerError
id, action, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
config = ModelConfig(source=Source.hf, id=id, **options)
try:
    found = inspect(config, source=Source.hf, environment={}, embedded=None)
    if action == "fetch":
        found = materialize(found, config, environment={})
except RunnerError as error:
    print(json.dumps({"error": type(error).__name__, "message": error.message}))
else:
    print(json.dumps({"path": found.path and str(found.path), "num_parameters": found.num_parameters,
                      "revision": found.revision, "num_bytes": found.num_bytes, "torch": "torch" in sys.modules}))
"""


@pytest.fixture
def server(tmp_path: Path, qwen: Checkpoint) -> Iterator[Hub]:
    """A Hub with a model, one that is gated, one that has only pickles, and one that is no model."""
    assert qwen.path is not None
    model = tmp_path / "model"
    shutil.copytree(qwen.path, model)
    (model / "pytorch_model.bin").write_bytes(b"never sent" * 1000)
    (model / "tokenizer_config.json").write_text("{}")
    pickled = folder(tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    broken = folder(tmp_path / "broken")
    safetensors(
        broken / "model.safetensors",
        header(("a", "F32", [2]), a={"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}),
        data=8,
    )
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    (nothing / "README.md").write_text("hello")
    repositories = {
        "org/model": model,
        "org/gated": model,
        "org/pickled": pickled,
        "org/nothing": nothing,
        "org/broken": broken,
    }
    with hub(repositories, gated=frozenset({"org/gated"})) as running:
        yield running


def ask(id: str, place: Path, *, url: str, action: str = "inspect", offline: bool = False, **options: Any) -> Any:
    """Inspect or fetch `id` in a process of its own, with its cache in `place`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": url, "HF_HOME": str(place / "hf"), "HF_HUB_DISABLE_XET": "1"}
    if offline:
        environment["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, id, action, json.dumps(options)], env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_a_model_is_inspected_before_it_is_downloaded(server: Hub, tmp_path: Path, qwen: Checkpoint) -> None:
    found = ask("org/model", tmp_path, url=server.url)
    assert found == {
        "path": None, "num_parameters": qwen.num_parameters, "revision": COMMIT, "num_bytes": qwen.num_bytes, "torch": False,
    }  # fmt: skip
    assert server.served["model.safetensors"] < qwen.num_bytes / 2  # its first 100 kB hold the header
    assert "pytorch_model.bin" not in server.served


def test_only_what_a_run_needs_is_downloaded_and_then_used_without_a_network(
    server: Hub, tmp_path: Path, qwen: Checkpoint
) -> None:
    found = ask("org/model", tmp_path, url=server.url, action="fetch")
    names = {path.name for path in Path(found["path"]).iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"}
    assert "pytorch_model.bin" not in server.served
    again = ask("org/model", tmp_path, url="http://127.0.0.1:9", offline=True)
    assert again["path"] == found["path"]
    assert again["num_parameters"] == qwen.num_parameters
    unreachable = ask("org/model", tmp_path, url="http://127.0.0.1:9")
    assert unreachable["path"] == found["path"]


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("org/absent", {}, "is not on the Hub, or it is private"),
        ("org/gated", {}, "is gated: accept its terms"),
        ("org/model", {"revision": "v9"}, "has no revision 'v9'"),
        ("org/pickled", {}, "has only pickled weights (pytorch_model.bin)"),
        ("org/nothing", {}, "has no config.json"),
        ("org/broken", {}, "cannot be 8 bytes"),
        ("org/model/extra", {}, "is not a Hub id; write ORG/NAME"),
    ],
)
def test_what_cannot_be_had_is_told_with_what_to_do(
    id: str, options: dict[str, str], message: str, server: Hub, tmp_path: Path
) -> None:
    assert message in ask(id, tmp_path, url=server.url, **options)["message"]


def test_pickled_weights_can_be_asked_for(server: Hub, tmp_path: Path) -> None:
    found = ask("org/pickled", tmp_path, url=server.url, action="fetch", allow_pickle=True)
    assert (Path(found["path"]) / "pytorch_model.bin").exists()


@pytest.mark.parametrize(("offline", "reason"), [(True, "HF_HUB_OFFLINE is set"), (False, "cannot be reached")])
def test_without_a_network_and_a_cache_it_is_told(offline: bool, reason: str, tmp_path: Path) -> None:
    found = ask("org/model", tmp_path, url="http://127.0.0.1:9", offline=offline)
    assert found["error"] == "CheckpointError"
    assert reason in found["message"]
