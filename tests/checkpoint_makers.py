"""Checkpoint folders made byte by byte, each right unless a test breaks it."""

import json
import struct
from pathlib import Path
from typing import Any

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": False}
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "F8_E4M3": 1}


def header(*tensors: tuple[str, str, list[int]], **changes: Any) -> dict[str, Any]:
    """A safetensors header for tensors (name, dtype, shape) laid out one after another; `changes` replace entries."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in tensors:
        size = SIZES[dtype]
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    return entries | changes


def safetensors(
    path: Path, entries: dict[str, Any] | bytes, *, data: int | None = None, length: int | None = None
) -> Path:
    """Write a file with this header, or these header bytes, and `data` bytes (those that the header says)."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    if data is None:
        ends = (
            [e["data_offsets"][1] for e in entries.values() if "data_offsets" in e] if isinstance(entries, dict) else []
        )
        data = max(ends, default=0)
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))
    return path


def folder(path: Path, *tensors: tuple[str, str, list[int]], config: dict[str, Any] | None = None) -> Path:
    """A checkpoint folder with one file; two tensors unless others are given."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    safetensors(path / "model.safetensors", header(*(tensors or (("a", "F32", [2, 3]), ("b", "BF16", [4])))))
    return path


def sharded(path: Path, shards: dict[str, list[tuple[str, str, list[int]]]], weight_map: dict[str, str]) -> Path:
    """A checkpoint folder with shards and an index."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    for name, tensors in shards.items():
        safetensors(path / name, header(*tensors))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path
