"""Build the classes of qwen-tts without values, and the two changes that are made to them. Imports torch."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from runner.checkpoint import Checkpoint, StoredTensor
from runner.errors import CheckpointError
from runner.settings import Settings
from runner.speech.package import import_package


def speech_config(checkpoint: Checkpoint) -> Any:
    """Return qwen-tts' configuration object for config.json."""
    models = import_package()
    with _told():
        return models.Qwen3TTSConfig(**_plain(checkpoint.config))


def build_talker(checkpoint: Checkpoint, settings: Settings) -> Any:
    """Return the model without codec, its parameters on meta, its computed buffers real."""
    models, config = import_package(), speech_config(checkpoint)
    with _told():
        _attention(config, settings.attention)
        with _empty():
            return models.Qwen3TTSForConditionalGeneration(config)


def build_codec(codec: Checkpoint, settings: Settings, *, encoder: bool, decoder: bool) -> Any:
    """Return the codec, its parameters on meta; a half that is not wanted is left out."""
    import_package()
    from qwen_tts.core import (  # type: ignore[import-not-found,unused-ignore]
        Qwen3TTSTokenizerV2Config,
        Qwen3TTSTokenizerV2Model,
    )

    with _told():
        config = Qwen3TTSTokenizerV2Config(**_plain(codec.config))
        _attention(config, "sdpa" if settings.attention == "flash_attention_2" else settings.attention)
        with _empty():
            model = Qwen3TTSTokenizerV2Model(config)
    if not encoder:
        model.encoder = None
    if not decoder:
        model.decoder = None
    return model


def guard_predictor(model: Any, dtype: torch.dtype) -> None:
    """Let a code predictor in float32 work inside a talker in `dtype`: cast where one hands over to the other."""

    def cast(to: torch.dtype) -> Any:
        def hook(module: nn.Module, arguments: Any, named: dict[str, Any]) -> Any:
            value = named.get("inputs_embeds")
            return arguments, {**named, "inputs_embeds": value.to(to)} if value is not None else named

        return hook

    predictor = model.talker.code_predictor
    predictor.register_forward_pre_hook(cast(torch.float32), with_kwargs=True)
    model.talker.model.register_forward_pre_hook(cast(dtype), with_kwargs=True)


class RowsFromFile(nn.Module):
    """An embedding whose rows are read from the checkpoint's file when they are looked up; it holds none of them."""

    def __init__(self, file: Path, stored: StoredTensor, settings: Settings) -> None:
        super().__init__()
        self._descriptor = os.open(file, os.O_RDONLY)
        self._stored = stored
        self._dtype, self._source = getattr(torch, settings.parameter_dtype), getattr(torch, stored.dtype)
        self.num_embeddings, self.embedding_dim = stored.shape
        self.rows_read = 0

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids` (…,) as (…, embedding_dim), on the device of `ids`."""
        flat = ids.reshape(-1).tolist()
        width = self.embedding_dim * self._source.itemsize
        rows = torch.empty(len(flat), self.embedding_dim, dtype=self._source)
        memory = rows.view(torch.uint8).view(-1).numpy().data
        for index, row in enumerate(flat):
            if not 0 <= row < self.num_embeddings:
                raise CheckpointError(f"token {row} has no row in the text embedding of {self.num_embeddings}")
            place = memory[index * width : (index + 1) * width]
            if os.preadv(self._descriptor, [place], self._stored.offset + row * width) != width:
                raise CheckpointError(f"{self._stored.file} has shrunk: row {row} of the text embedding is not there")
        self.rows_read += len(flat)
        return rows.to(self._dtype).to(ids.device).view(*ids.shape, self.embedding_dim)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._descriptor)


@contextlib.contextmanager
def _empty() -> Iterator[None]:
    """Put parameters on meta as modules are built; buffers, which are computed, stay real."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        yield


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell what qwen-tts raises for values in config.json as a CheckpointError; it prints, which is not shown."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"config.json describes no model that can be built: {error}") from error


def _attention(config: Any, implementation: str | None) -> None:
    if implementation is not None:
        config._attn_implementation = implementation


def _plain(config: Any) -> dict[str, Any]:
    import json

    return dict(json.loads(json.dumps(config)))  # the classes change what they are given
