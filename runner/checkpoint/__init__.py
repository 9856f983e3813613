"""What is on disk, on the Hub, or could be written: described from headers, without torch and without loading."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from runner.checkpoint.folder import inspect_folder
from runner.checkpoint.value import Checkpoint, StoredTensor
from runner.config import ModelConfig, Source
from runner.errors import RequestError

__all__ = ["Checkpoint", "StoredTensor", "inspect", "materialize"]


def inspect(config: ModelConfig, *, source: Source, environment: Mapping[str, str], embedded: Path) -> Checkpoint:
    """Return what `config` names, from headers alone; nothing is downloaded, written or loaded.

    `embedded` is the folder of the model that comes with the package. Raises RequestError or CheckpointError.
    """
    if source is Source.embedded:
        return replace(inspect_folder(embedded, source="embedded"), id="embedded")
    if source is Source.local:
        if config.path is None:
            raise RequestError("model=local needs a folder: model.path=DIR")
        return inspect_folder(Path(config.path).expanduser(), source="local", allow_pickle=config.allow_pickle)
    if source is Source.hf:
        from runner.checkpoint.hub import inspect_hub

        return inspect_hub(config)
    from runner.checkpoint.random import inspect_random

    return inspect_random(config, environment=environment)


def materialize(
    checkpoint: Checkpoint,
    config: ModelConfig,
    *,
    environment: Mapping[str, str],
    progress: Callable[[int, int], None] | None = None,
) -> Checkpoint:
    """Return `checkpoint` with its weights on disk: downloaded, or written, when they are not there yet."""
    if checkpoint.path is not None:
        return checkpoint
    if checkpoint.source == "hf":
        from runner.checkpoint.hub import fetch

        return fetch(checkpoint, config)
    from runner.checkpoint.random import write_random

    return write_random(checkpoint, config, environment=environment, progress=progress)
