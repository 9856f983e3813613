"""Write a checkpoint of random weights, without torch and in a few MiB of memory.

Every weight is a draw of its own: 16 random bits pick one of 65,536 equally likely quantiles of the normal
distribution (so nothing lies beyond 4.2 standard deviations), rounded to bfloat16. That is a table look-up, several
times faster than drawing floats, and the same on every machine: the bits come from SFC64 seeded by (seed, name).
"""

import errno
import hashlib
import json
import math
import os
import shutil
import statistics
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.checkpoint.folder import INDEX, SINGLE
from runner.checkpoint.headers import TORCH_TO_HEADER
from runner.checkpoint.value import Progress, StoredTensor
from runner.errors import CheckpointError
from runner.settings import ITEMSIZE

if TYPE_CHECKING:
    import numpy as np

SHARD = 4_000_000_000
"""bytes of tensors in one file, at most, unless one tensor is larger"""
_BLOCK = 1 << 20
"""elements written at a time; a multiple of 4"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """The tensors that an architecture has."""

    tensors: tuple[tuple[str, str, tuple[int, ...], str], ...]
    """name, dtype, shape, kind of first values (normal, ones, zeros)"""
    tied: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file to be: its name, header and tensors in the order of their bytes."""

    name: str
    header: bytes
    tensors: tuple[StoredTensor, ...]
    num_bytes: int


def layout(skeleton: Skeleton) -> list[Shard]:
    """Return the files, filled in the order of the model, wide dtypes first within each so that all stay aligned."""
    groups: list[list[tuple[str, str, tuple[int, ...], int]]] = [[]]
    filled = 0
    for name, dtype, shape, _ in skeleton.tensors:
        size = math.prod(shape) * ITEMSIZE[dtype]
        if groups[-1] and filled + size > SHARD:
            groups.append([])
            filled = 0
        groups[-1].append((name, dtype, shape, size))
        filled += size
    count = len(groups)
    return [
        _shard(SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors", group)
        for number, group in enumerate(groups, start=1)
    ]


def _shard(name: str, group: Sequence[tuple[str, str, tuple[int, ...], int]]) -> Shard:
    rows = sorted(group, key=lambda row: -ITEMSIZE[row[1]])
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key, dtype, shape, size in rows:
        entries[key] = {"dtype": TORCH_TO_HEADER[dtype], "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    tensors = []
    for key, dtype, shape, size in rows:
        offset = start + entries[key]["data_offsets"][0]
        tensors.append(StoredTensor(name=key, dtype=dtype, shape=shape, num_bytes=size, file=name, offset=offset))
    return Shard(name=name, header=len(text).to_bytes(8, "little") + text, tensors=tuple(tensors), num_bytes=start + at)


def write_folder(
    folder: Path, values: Mapping[str, Any], skeleton: Skeleton, *, seed: int, progress: Progress | None
) -> None:
    """Write weights, index and configuration into `folder`, which appears whole or not at all."""
    shards = layout(skeleton)
    total, done = sum(shard.num_bytes for shard in shards), 0
    kinds = {name: kind for name, _, _, kind in skeleton.tensors}
    table = _quantiles(float(values.get("initializer_range") or values.get("init_std") or 0.02))
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        for shard in shards:
            with open(partial / shard.name, "wb", buffering=0) as file:
                file.write(shard.header)
                done += len(shard.header)
                for tensor in shard.tensors:
                    for block in _blocks(tensor, kind=kinds[tensor.name], table=table, seed=seed):
                        _write_all(file, block)
                        done += len(block)
                        if progress is not None:
                            progress(done, total)
        _write_settings(partial, values, shards)
        os.rename(partial, folder)
    except FileExistsError:
        shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if error.errno != errno.ENOTEMPTY:
            raise
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_settings(folder: Path, values: Mapping[str, Any], shards: Sequence[Shard]) -> None:
    if len(shards) > 1:
        size = sum(tensor.num_bytes for shard in shards for tensor in shard.tensors)
        weight_map = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
        _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
    _write_json(folder / "generation_config.json", {key: values[key] for key in tokens if values.get(key) is not None})
    _write_json(folder / "config.json", values)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_all(file: Any, block: memoryview) -> None:
    """Write `block` whole: an unbuffered file may take less than it is given."""
    while block:
        block = block[file.write(block) :]


def _quantiles(scale: float) -> "np.ndarray[Any, np.dtype[np.uint16]]":
    """Return 65,536 equally likely values of normal(0, `scale`) as bfloat16's bits, the mean exactly 0."""
    import numpy as np

    normal = statistics.NormalDist(0.0, scale)
    upper = np.array([normal.inv_cdf(0.5 + (index + 0.5) / 65536) for index in range(32768)], dtype=np.float32)
    bits = np.concatenate([upper, -upper]).view(np.uint32)
    # Round to nearest, ties to even: what a cast to bfloat16 does.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _blocks(tensor: StoredTensor, *, kind: str, table: Any, seed: int) -> Iterator[memoryview]:
    """Yield the tensor's bytes, a few MiB at a time."""
    import numpy as np

    if kind == "normal" and tensor.dtype == "bfloat16":
        words = hashlib.sha256(f"{seed}\0{tensor.name}".encode()).digest()
        bits = np.random.SFC64(np.random.SeedSequence(int.from_bytes(words, "little")))
        left = math.prod(tensor.shape)
        while left:
            count = min(left, _BLOCK)
            draws = bits.random_raw((count + 3) // 4).astype("<u8", copy=False).view("<u2")[:count]
            yield memoryview(table[draws]).cast("B")
            left -= count
        return
    one = {"bfloat16": b"\x80\x3f"}.get(tensor.dtype)
    if kind == "ones" and one is None:
        raise CheckpointError(f"{tensor.name} in {tensor.dtype} cannot start at one")
    pattern = one if kind == "ones" and one is not None else b"\0" * ITEMSIZE[tensor.dtype]
    count = math.prod(tensor.shape)
    while count:
        part = min(count, _BLOCK)
        yield memoryview(pattern * part)
        count -= part
