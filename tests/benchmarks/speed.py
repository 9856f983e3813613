"""How long a prediction takes: traces after imports, and whole processes that answer from headers. It prints figures.

Run it from the repository's root: python tests/benchmarks/speed.py
"""

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

REPEATS = 3
SHARDS, TENSORS = 163, 90_000


def traces() -> None:
    """Time traces at full depth, after imports and one warm-up."""
    from runner import checkpoint as checkpoints
    from runner import embedded
    from runner.config import ModelConfig, Source
    from runner.predict import trace
    from runner.settings import Settings

    for name, workload in (("qwen3_1_7b", "forward"), ("qwen3_1_7b", "generate"), ("qwen3_1_7b", "train"),
                           ("llama_3_1_8b", "train"), ("llama_3_3_70b", "generate"), ("llama_3_3_70b", "train")):  # fmt: skip
        found = checkpoints.inspect(
            ModelConfig(source=Source.random, architecture=name), source=Source.random, environment=os.environ,
            embedded=embedded.FOLDER,
        )  # fmt: skip
        plan = Settings(
            workload=workload, device="cpu", precision="bf16", parameter_dtype="bfloat16", compute_dtype="bfloat16",
            num_layers=28, sequence_length=512,
        )  # fmt: skip
        seconds = []
        for _ in range(REPEATS + 1):
            began = time.monotonic()
            traced = trace(found, plan)
            seconds.append(time.monotonic() - began)
        print(
            f"trace {name:14} {workload:8} {statistics.median(seconds[1:]):6.2f} s  peak {traced.peak.total / 2**30:.2f} GiB"
        )


def whole_processes() -> None:
    """Time `workload=plan` of a load as a whole process: the embedded model, and 163 shards of sparse files."""
    with tempfile.TemporaryDirectory() as place:
        large = _sparse_checkpoint(Path(place) / "large", SHARDS, TENSORS)
        half = _sparse_checkpoint(Path(place) / "half", SHARDS, TENSORS // 2)
        for name, more in (
            ("embedded", []),
            (f"{TENSORS} tensors", [f"model.path={large}"]),
            (f"{TENSORS // 2} tensors", [f"model.path={half}"]),
        ):
            seconds = []
            for _ in range(REPEATS):
                began = time.monotonic()
                done = subprocess.run(
                    [sys.executable, "-m", "runner", "workload=plan", "workload.of=load", "memory.limit=99TiB", *more],
                    cwd=place, capture_output=True, text=True, check=False,
                )  # fmt: skip
                seconds.append(time.monotonic() - began)
            print(
                f"process plan of load, {name:14} {statistics.median(seconds):6.2f} s  exit {done.returncode} {done.stderr.strip()[:100]}"
            )


def _sparse_checkpoint(folder: Path, shards: int, tensors: int) -> Path:
    """Write a checkpoint of 671 B parameters whose files are all holes but for their headers."""
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    size = 671_000_000_000 // tensors
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        entries, position = {}, 0
        for number in range(shard, tensors, shards):
            key = f"model.layers.{number // 1500}.mlp.experts.{number % 256}.w{number}.weight"
            entries[key] = {"dtype": "BF16", "shape": [size], "data_offsets": [position, position + 2 * size]}
            position += 2 * size
            weight_map[key] = name
        text = json.dumps(entries).encode()
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + position)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    traces()
    whole_processes()
