"""Read the headers of safetensors files, and check that each file is what its header says.

The format (safetensors' README): 8 bytes, the header's length as a little-endian integer; the header, JSON from
name to dtype, shape and the [begin, end) of its bytes in the data that follows.
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from runner.checkpoint.value import StoredTensor
from runner.errors import CheckpointError
from runner.settings import ITEMSIZE

LONGEST_HEADER = 100_000_000
"""bytes; safetensors itself refuses longer ones"""

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64",
}  # fmt: skip


def read_header(path: Path) -> tuple[StoredTensor, ...]:
    """Return the tensors that the safetensors file `path` declares, in the order of their bytes.

    Raises CheckpointError that names the file and the byte where it is wrong.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            text, data_start = _header_text(file, path.name, size)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    return parse_header(text, file=path.name, data_start=data_start, file_size=size)


def parse_header(text: bytes, *, file: str, data_start: int, file_size: int | None) -> tuple[StoredTensor, ...]:
    """Return the tensors that a header's JSON declares; `file_size` None is not checked."""
    try:
        values = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        position = getattr(error, "pos", getattr(error, "start", 0))
        raise CheckpointError(f"{file}: the header is not JSON at byte {8 + position}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: the header at byte 8 is not a mapping of names to tensors")
    tensors = [_tensor(name, entry, file, data_start) for name, entry in values.items() if name != "__metadata__"]
    tensors.sort(key=lambda tensor: tensor.offset)
    _check_layout(tensors, file, data_start, file_size)
    return tuple(tensors)


def _header_text(file: BinaryIO, name: str, size: int) -> tuple[bytes, int]:
    prefix = file.read(8)
    if len(prefix) < 8:
        raise CheckpointError(f"{name} ends at byte {size}, before the 8 bytes of its header's length")
    (length,) = struct.unpack("<Q", prefix)
    if length > LONGEST_HEADER:
        raise CheckpointError(f"{name}: the header at byte 0 claims {length} bytes; it is no safetensors file")
    text = file.read(length)
    if len(text) < length:
        raise CheckpointError(f"{name} ends at byte {size}, inside its header, which should end at byte {8 + length}")
    return text, 8 + length


def _tensor(name: str, entry: Any, file: str, data_start: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        well_formed = begin >= 0 and all(type(n) is int and n >= 0 for n in (begin, end, *shape))
    except (KeyError, TypeError, ValueError):
        well_formed = False
    if not well_formed:
        raise CheckpointError(f"{file}: the header's entry for {name!r} lacks a dtype, a shape or its offsets")
    if dtype not in DTYPES:
        raise CheckpointError(f"{file}: {name!r} has dtype {dtype!r}; known are {', '.join(DTYPES)}")
    needed = math.prod(shape) * ITEMSIZE[DTYPES[dtype]]
    if end - begin != needed:
        raise CheckpointError(
            f"{file}: {name!r} of shape {list(shape)} in {dtype} takes {needed} bytes, but bytes "
            f"{data_start + begin} to {data_start + end} are {end - begin}"
        )
    return StoredTensor(
        name=name, dtype=DTYPES[dtype], shape=shape, num_bytes=needed, file=file, offset=data_start + begin
    )


def _check_layout(tensors: Iterable[StoredTensor], file: str, data_start: int, file_size: int | None) -> None:
    position, before = data_start, "the header"
    for tensor in tensors:
        if tensor.offset != position:
            what = "overlap" if tensor.offset < position else "leave a gap"
            raise CheckpointError(
                f"{file}: {before} and {tensor.name!r} {what}: byte {tensor.offset} where byte {position} was due"
            )
        position, before = tensor.offset + tensor.num_bytes, repr(tensor.name)
    if file_size is not None and file_size != position:
        what = "is truncated: it ends" if file_size < position else "has bytes that belong to no tensor: it ends"
        raise CheckpointError(f"{file} {what} at byte {file_size}, its header says byte {position}")


def read_index(path: Path) -> dict[str, str]:
    """Return the index's map of tensor names to shard names.

    Raises CheckpointError for broken JSON, and for a shard that is not beside the index.
    """
    values = read_json(path)
    names = values.get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(shard, str) for shard in names.values()):
        raise CheckpointError(f"{path.name} has no weight_map of tensor names to file names")
    outside = sorted({shard for shard in names.values() if Path(shard).name != shard or shard in ("", ".", "..")})
    if outside:
        raise CheckpointError(f"{path.name} names {outside[0]!r}, which is not a file beside it")
    return names


def check_index(weight_map: Mapping[str, str], shards: Mapping[str, Iterable[StoredTensor]], index: str) -> None:
    """Compare the index with the shards' headers.

    Raises CheckpointError that names what one has and the other lacks, up to three names.
    """
    found = {tensor.name: shard for shard, tensors in shards.items() for tensor in tensors}
    missing = [name for name, shard in weight_map.items() if found.get(name) != shard]
    if missing:
        lost = [f"{name!r} in {weight_map[name]}" for name in missing[:3]]
        raise CheckpointError(f"{index} names {len(missing)} tensors that its shards lack: {', '.join(lost)}")
    extra = [name for name in found if name not in weight_map]
    if extra:
        lost = [f"{name!r} in {found[name]}" for name in extra[:3]]
        raise CheckpointError(f"the shards hold {len(extra)} tensors that {index} does not name: {', '.join(lost)}")
    num_tensors = sum(1 for tensors in shards.values() for _ in tensors)
    if num_tensors != len(found):
        raise CheckpointError(f"{num_tensors - len(found)} tensors stand in more than one shard of {index}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON mapping in `path`; raises CheckpointError that names the line and the column."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is JSON, but not a mapping")
    return values
