"""What is on disk, from headers only. Nothing is loaded here, and nothing downloaded until `fetch` is called."""

import os
from collections.abc import Mapping
from pathlib import Path

from runner.checkpoint.folder import inspect_folder
from runner.checkpoint.hub import fetch, inspect_hub
from runner.checkpoint.random_weights import inspect_random, write_random
from runner.checkpoint.value import Checkpoint, Progress, StoredTensor, tensors_bytes
from runner.config import ModelConfig, Source
from runner.errors import RequestError

__all__ = ["Checkpoint", "Progress", "StoredTensor", "fetch", "inspect", "materialize", "tensors_bytes", "write_random"]


def inspect(
    config: ModelConfig, *, source: Source, environment: Mapping[str, str], embedded: Path, seed: int = 0
) -> Checkpoint:
    """Return what the headers of the checkpoint say that `config` asks for.

    `embedded` is the folder of the model that comes with the package; `seed` tells random checkpoints apart. Raises
    RequestError when the request is incomplete, CheckpointError when the checkpoint is missing, broken or refused.
    """
    if source is Source.embedded:
        return inspect_folder(embedded, source=source.value, id="embedded")
    if source is Source.random:
        return inspect_random(config, environment=environment, seed=seed)
    if source is Source.hf:
        return inspect_hub(config, environment=environment)
    if config.path is None:
        raise RequestError("model=local needs the checkpoint's folder: model.path=DIR")
    return inspect_folder(Path(os.path.expanduser(config.path)), source=source.value, allow_pickle=config.allow_pickle)


def materialize(
    checkpoint: Checkpoint,
    config: ModelConfig,
    *,
    environment: Mapping[str, str],
    seed: int = 0,
    progress: Progress | None = None,
) -> Checkpoint:
    """Return `checkpoint` with its weights on disk: downloaded, or written, when they are not there yet."""
    if checkpoint.path is not None:
        return checkpoint
    if checkpoint.source == Source.hf.value:
        return fetch(checkpoint, config, progress=progress, environment=environment)
    return write_random(checkpoint, config, seed=seed, progress=progress, environment=environment)
