"""List the tensors of a model from its configuration. Run as a program, so that torch stays out of the caller.

python -m runner.checkpoint.layout < config.json   prints [[name, dtype, shape], …]
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from runner.errors import CheckpointError

TIMEOUT = 300.0
"""seconds for importing torch and building the model without storage"""


def tensor_layout(config: Mapping[str, Any]) -> list[tuple[str, str, list[int]]]:
    """Return (name, dtype, shape) of what a checkpoint of this configuration stores, tied tensors once.

    Raises CheckpointError when the model cannot be built.
    """
    command = [sys.executable, "-m", "runner.checkpoint.layout"]
    done = subprocess.run(
        command, input=json.dumps(config), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        raise CheckpointError(f"{config['architectures'][0]} cannot be built from its configuration: {reason}")
    return [(name, dtype, shape) for name, dtype, shape in json.loads(done.stdout)]


def main() -> None:
    """Read config.json, build the model on the meta device, and print its layout."""
    import torch

    from runner import steps
    from runner.checkpoint.value import Checkpoint
    from runner.settings import Settings

    config = json.load(sys.stdin)
    checkpoint = Checkpoint(
        source="random", id=None, revision=None, path=None, architecture=config["architectures"][0],
        model_type=config["model_type"], config=config, tensors=(),
    )  # fmt: skip
    settings = Settings(
        workload="load", device="cpu", precision="bf16", parameter_dtype="bfloat16", compute_dtype="bfloat16"
    )
    with torch.device("meta"):
        model = steps.build(checkpoint, settings)
    persistent = set(model.state_dict())
    found = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n in persistent)]
    json.dump([[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in found], sys.stdout)


if __name__ == "__main__":
    main()
