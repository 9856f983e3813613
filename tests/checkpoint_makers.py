"""Checkpoint folders for tests, byte by byte, each a default with overrides."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.checkpoint import Checkpoint, inspect
from runner.config import ModelConfig, Source

BITS = {"F32": 32, "BF16": 16, "F16": 16, "I64": 64, "I8": 8, "U8": 8, "F8_E4M3": 8, "BOOL": 8}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True}
EMBEDDING = "model.embed_tokens.weight"
SHAPES = {EMBEDDING: (8, 4), "model.layers.0.mlp.up_proj.weight": (6, 4), "model.norm.weight": (4,)}


def entries(shapes: Mapping[str, tuple[int, ...]], *, dtype: str = "BF16") -> dict[str, Any]:
    """A header in which the tensors lie back to back."""
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    return header


def safetensors(header: Mapping[str, Any] | bytes, *, data: bytes | None = None, length: int | None = None) -> bytes:
    """A file with that header; data as many zeros as the offsets ask for, length the header's, if not given."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    if data is None:
        data = bytes(max((entry["data_offsets"][1] for entry in header.values()), default=0))
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def folder(
    path: Path, *, config: Mapping[str, Any] | str | None = QWEN3, files: Mapping[str, bytes | str] | None = None
) -> Path:
    """A folder with config.json and, unless `files` says otherwise, one whole model.safetensors."""
    path.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in ({"model.safetensors": safetensors(entries(SHAPES))} if files is None else files).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def sharded(path: Path, *, weight_map: Mapping[str, Any] | None = None, **shards: Mapping[str, Any]) -> Path:
    """A folder of shards, ``a={…}`` being a.safetensors, with an index that agrees unless it is given."""
    files: dict[str, bytes | str] = {f"{name}.safetensors": safetensors(header) for name, header in shards.items()}
    if weight_map is None:
        weight_map = {key: f"{name}.safetensors" for name, header in shards.items() for key in header}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map})
    return folder(path, files=files)


def look(path: Path, **options: Any) -> Checkpoint:
    """Inspect a local folder."""
    return inspect(ModelConfig(path=str(path), **options), source=Source.local, environment={}, embedded=path)
