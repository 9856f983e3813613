"""Read safetensors headers: eight bytes of length, then JSON. Nothing else of a file is read.

The format: https://github.com/huggingface/safetensors#format. Tensors lie back to back behind the header, without
holes, and the file ends where the last one does.
"""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from runner.checkpoint.value import StoredTensor
from runner.errors import CheckpointError
from runner.units import format_size

MAX_HEADER = 100_000_000
"""bytes; the limit of the reference implementation"""
_SHORTEST = 10
"""bytes before the first tensor, at least: the length and an empty object"""
_LFS_POINTER = b"version https://git-lfs"

DTYPES: Mapping[str, tuple[str, int]] = {
    "F64": ("float64", 64), "F32": ("float32", 32), "F16": ("float16", 16), "BF16": ("bfloat16", 16),
    "I64": ("int64", 64), "I32": ("int32", 32), "I16": ("int16", 16), "I8": ("int8", 8),
    "U64": ("uint64", 64), "U32": ("uint32", 32), "U16": ("uint16", 16), "U8": ("uint8", 8), "BOOL": ("bool", 8),
    "F8_E4M3": ("float8_e4m3fn", 8), "F8_E5M2": ("float8_e5m2", 8), "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8), "C64": ("complex64", 64),
    "F4": ("float4_e2m1fn_x2", 4),
}  # fmt: skip
"""name in a header → (torch's name, bits of one element)"""
TORCH_TO_HEADER = {torch_name: name for name, (torch_name, _) in DTYPES.items()}


def read_header(path: str, *, name: str) -> list[StoredTensor]:
    """Return the tensors that the safetensors file at `path` declares, in the order of their bytes.

    `name` is the file's name in its folder, for messages and for `StoredTensor.file`. Raises CheckpointError with the
    file and the byte when the header is broken or disagrees with the file's size.
    """
    _require_regular(path, name=name)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = _header_length(file.read(8), name=name, size=size)
            if size < 8 + length:
                raise CheckpointError(
                    f"{name} is truncated: it ends at byte {size}, inside its header, which ends at byte {8 + length};"
                    " copy or download the file again"
                )
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror or error}") from error
    return check_entries(_parse(raw, name=name), name=name, data_start=8 + length, size=size)


def _require_regular(path: str, *, name: str) -> None:
    """Raise CheckpointError for a pipe or a device, which reading could wait for without end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise CheckpointError(f"{name} is not a regular file")


def check_entries(entries: Mapping[str, Any], *, name: str, data_start: int | None, size: int) -> list[StoredTensor]:
    """Return the header's `entries` as tensors, once they are known to fill a file of `size` bytes exactly.

    `data_start` is the byte at which tensors begin; None (only the parsed header is known) takes it from the size.
    """
    rows = sorted((_row(key, entry, name=name) for key, entry in entries.items()), key=lambda row: row[3:])
    if not rows:
        raise CheckpointError(f"{name} declares no tensors; give a checkpoint that holds weights")
    start = max(size - rows[-1][4], _SHORTEST) if data_start is None else data_start
    tensors, at = [], 0
    for key, dtype, shape, begin, end in rows:
        if begin != at:
            kind = "overlaps the tensor before it" if begin < at else "leaves a hole before it"
            raise CheckpointError(
                f"{name}: {key} {kind}: it starts at byte {start + begin} of the file instead of {start + at}"
            )
        tensors.append(
            StoredTensor(name=key, dtype=dtype, shape=shape, num_bytes=end - begin, file=name, offset=start + begin)
        )
        at = end
    if size != start + at:
        found, wanted = size, start + at
        fault = "is truncated: it" if found < wanted else "has bytes that no tensor claims: it"
        raise CheckpointError(
            f"{name} {fault} ends at byte {found} and should end at byte {wanted}"
            f" ({format_size(abs(found - wanted))} {'missing' if found < wanted else 'too many'});"
            " copy or download the file again"
        )
    return tensors


def read_json(path: str, *, name: str) -> dict[str, Any]:
    """Return the JSON object in the file at `path`. Raises CheckpointError with line and column."""
    _require_regular(path, name=name)
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror or error}") from error
    if raw.startswith(_LFS_POINTER):
        raise _lfs_pointer(name)
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{name} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno} (byte {error.pos})"
        ) from None
    except RecursionError:
        raise CheckpointError(f"{name} is nested too deeply to be a checkpoint's") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} holds a JSON {type(value).__name__} where an object is expected")
    return value


def _header_length(raw: bytes, *, name: str, size: int) -> int:
    if len(raw) < 8:
        fault = "is empty (0 bytes)" if size == 0 else f"is truncated: it ends at byte {size}, inside the length"
        raise CheckpointError(f"{name} {fault}; a safetensors file starts with 8 bytes of header length")
    if _LFS_POINTER.startswith(raw):
        raise _lfs_pointer(name)
    length = int.from_bytes(raw, "little")
    if not 2 <= length <= MAX_HEADER:
        raise CheckpointError(
            f"{name} is not a safetensors file: its first 8 bytes give a header of {length} bytes,"
            f" where 2 to {MAX_HEADER} are allowed"
        )
    return length


def _parse(raw: bytes, *, name: str) -> dict[str, Any]:
    try:
        entries = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{name}: the header is not UTF-8 at byte {8 + error.start} of the file") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{name}: the header is not JSON: {error.msg} at byte {8 + error.pos}") from None
    except RecursionError:
        raise CheckpointError(f"{name}: the header is nested too deeply") from None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{name}: the header is a JSON {type(entries).__name__}, not an object")
    entries.pop("__metadata__", None)
    # A repeated key would vanish in the dict; a quoted word inside a string has its quotes escaped.
    if raw.count(b'"data_offsets"') > len(entries):
        raise CheckpointError(f"{name}: the header declares a tensor twice")
    return entries


def _row(key: str, entry: Any, *, name: str) -> tuple[str, str, tuple[int, ...], int, int]:
    try:
        code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        known = DTYPES.get(code)
        sane = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{name}: {key} lacks a proper dtype, shape or data_offsets in the header") from None
    if known is None:
        raise CheckpointError(f"{name}: {key} has the unknown dtype {code}; known are {', '.join(DTYPES)}")
    if not sane:
        raise CheckpointError(f"{name}: {key} has a shape or an offset that is no whole number of 0 or more")
    dtype, bits = known
    wanted = (math.prod(shape) * bits + 7) // 8
    if end - begin != wanted:
        raise CheckpointError(
            f"{name}: {key} of shape {list(shape)} in {dtype} takes {wanted} bytes, but its offsets"
            f" {begin} to {end} span {end - begin}"
        )
    return key, dtype, shape, begin, end


def _lfs_pointer(name: str) -> CheckpointError:
    return CheckpointError(f"{name} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder")
