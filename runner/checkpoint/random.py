"""Architectures at true size with seeded random weights, written once as a checkpoint like any other."""

import hashlib
import json
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from runner.checkpoint.architectures import ARCHITECTURES
from runner.checkpoint.folder import CONFIG, INDEX, WEIGHTS, describe, inspect_folder
from runner.checkpoint.headers import DTYPES
from runner.checkpoint.layout import tensor_layout
from runner.checkpoint.value import Checkpoint, StoredTensor
from runner.config import ModelConfig, cache_folder
from runner.errors import RequestError
from runner.settings import ITEMSIZE
from runner.units import format_size

LARGEST_SHARD = 4 * 2**30
BLOCK = 2**22
"""numbers drawn at a time"""
STANDARD_DEVIATION = 0.02
"""of matrices, when the configuration does not name an initializer_range"""

Progress = Callable[[int, int], None]
Layout = list[tuple[str, str, list[int]]]


def inspect_random(config: ModelConfig, *, environment: Mapping[str, str]) -> Checkpoint:
    """Return the named architecture as a checkpoint; its path is None until its weights are written.

    Raises RequestError for a name that is not known, with the nearest ones.
    """
    name = config.architecture
    if name is None:
        raise RequestError(f"model=random needs model.architecture=NAME; there are {', '.join(ARCHITECTURES)}")
    if name not in ARCHITECTURES:
        near = get_close_matches(name, ARCHITECTURES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RequestError(f"model.architecture={name} is not known; {hint}there are {', '.join(ARCHITECTURES)}")
    values = ARCHITECTURES[name] | {"torch_dtype": "bfloat16"}
    layout = _layout(values, cache_folder(config, environment=dict(environment)))
    tensors, position = [], 0
    for tensor_name, dtype, shape in layout:
        size = ITEMSIZE[dtype]
        for length in shape:
            size *= length
        tensors.append(
            StoredTensor(
                name=tensor_name, dtype=dtype, shape=tuple(shape), num_bytes=size, file=WEIGHTS, offset=position
            )
        )
        position += size
    planned = describe(values, tensors, source="random", id=name, revision=None, path=None, has_tokenizer=False)
    folder = _folder(planned, config, environment)
    if (folder / CONFIG).exists():
        return inspect_folder(folder, source="random", id=name)
    return planned


def write_random(
    checkpoint: Checkpoint,
    config: ModelConfig,
    *,
    environment: Mapping[str, str],
    progress: Progress | None = None,
) -> Checkpoint:
    """Write the checkpoint's weights, a block at a time, and return it with its folder.

    Matrices are normal with the configuration's initializer_range, norms one, biases zero; each tensor is drawn
    from a seed that its own name gives, so that every machine writes the same bytes. The folder appears when it is
    complete. Raises RequestError when the disk has no room.
    """
    folder = _folder(checkpoint, config, environment)
    if (folder / CONFIG).exists():
        return inspect_folder(folder, source="random", id=checkpoint.id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if checkpoint.num_bytes > free:
        raise RequestError(
            f"model.architecture={checkpoint.id} takes {format_size(checkpoint.num_bytes)}, {format_size(free)} is "
            f"free in {folder.parent}: {format_size(checkpoint.num_bytes - free)} short. "
            f"model.cache=DIR is another place"
        )
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _write_shards(checkpoint, part, progress)
        (part / "generation_config.json").write_text(json.dumps(_generation(checkpoint.config), indent=2) + "\n")
        (part / CONFIG).write_text(json.dumps(dict(checkpoint.config), indent=2) + "\n")
        part.chmod(0o755)
        try:
            os.rename(part, folder)
        except OSError:  # another process was faster, and wrote the same bytes
            if not (folder / CONFIG).exists():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return inspect_folder(folder, source="random", id=checkpoint.id)


def _folder(checkpoint: Checkpoint, config: ModelConfig, environment: Mapping[str, str]) -> Path:
    layout = json.dumps([[t.name, t.dtype, t.shape] for t in checkpoint.tensors])
    digest = hashlib.sha256((json.dumps(dict(checkpoint.config), sort_keys=True) + layout).encode()).hexdigest()[:12]
    return cache_folder(config, environment=dict(environment)) / "random" / f"{checkpoint.id}-{digest}"


def _layout(values: Mapping[str, Any], cache: Path) -> Layout:
    """Return the tensors of an architecture, from the cache where this transformers has listed them before."""
    key = json.dumps([values, metadata.version("transformers")], sort_keys=True)
    path = cache / "layouts" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        return [(name, dtype, shape) for name, dtype, shape in json.loads(path.read_text())]
    except (OSError, ValueError):
        layout = tensor_layout(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(layout, file)
    os.replace(file.name, path)
    return layout


def _write_shards(checkpoint: Checkpoint, folder: Path, progress: Progress | None) -> None:
    shards = _shards(checkpoint.tensors)
    names = [WEIGHTS] if len(shards) == 1 else [
        f"model-{index:05d}-of-{len(shards):05d}.safetensors" for index in range(1, len(shards) + 1)
    ]  # fmt: skip
    deviation = float(checkpoint.config.get("initializer_range") or STANDARD_DEVIATION)
    done = 0
    for name, tensors in zip(names, shards, strict=True):
        with (folder / name).open("wb") as file:
            file.write(_header(tensors))
            for tensor in tensors:
                for block in _blocks(tensor, deviation):
                    file.write(block)
                    done += len(block)
                    if progress is not None:
                        progress(done, checkpoint.num_bytes)
    if len(shards) > 1:
        weight_map = {t.name: name for name, tensors in zip(names, shards, strict=True) for t in tensors}
        index = {"metadata": {"total_size": checkpoint.num_bytes}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shards(tensors: tuple[StoredTensor, ...]) -> list[list[StoredTensor]]:
    shards: list[list[StoredTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.num_bytes > LARGEST_SHARD:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.num_bytes
    return shards


def _header(tensors: list[StoredTensor]) -> bytes:
    """Return the header, padded so that the data begins at a multiple of 8 bytes."""
    stored = {dtype: code for code, dtype in DTYPES.items()}
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in tensors:
        offsets = [position, position + tensor.num_bytes]
        entries[tensor.name] = {"dtype": stored[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _blocks(tensor: StoredTensor, deviation: float) -> Iterator[memoryview]:
    """Yield the tensor's bytes, BLOCK numbers at a time."""
    left = tensor.num_bytes // ITEMSIZE[tensor.dtype]
    generator = np.random.Generator(np.random.SFC64(zlib.crc32(tensor.name.encode())))
    drawn = tensor.dtype == "bfloat16" and len(tensor.shape) > 1
    one = tensor.name.endswith(("weight", "scale", "gamma", "running_var")) and not drawn
    while left:
        count = min(left, BLOCK)
        left -= count
        if drawn:
            values = generator.standard_normal(count, dtype=np.float32)
            values *= deviation
            yield _as_bfloat16(values).data.cast("B")
        elif tensor.dtype == "bfloat16":
            yield _as_bfloat16(np.full(count, float(one), np.float32)).data.cast("B")
        else:
            yield memoryview(bytes(count * ITEMSIZE[tensor.dtype]))


def _as_bfloat16(values: "np.ndarray[Any, np.dtype[np.float32]]") -> "np.ndarray[Any, np.dtype[np.uint16]]":
    """Return the bits of `values` rounded to bfloat16, to nearest and ties to even."""
    bits = values.view(np.uint32)
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits >> np.uint32(16)).astype(np.uint16)


def _generation(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    return {name: config[name] for name in names if config.get(name) is not None}
