"""Read stored tensors a block at a time into memory of their own, converted on the way.

transformers' loader is handed a state dict of these in place of tensors. The file is read, not mapped: a private
map of the file would count against a memory limit, and its pages against the resident size.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.checkpoint import Checkpoint, StoredTensor
from runner.errors import CheckpointError

BLOCK = 2**20
"""bytes that are read and converted at a time; they stay in the cache between the two"""

LARGEST_READ = 64 * 2**20
"""bytes that are read at a time where nothing is converted"""

_scratch = threading.local()


class Progress:
    """Counts the bytes that are done, from any thread."""

    def __init__(self, total: int, tell: Callable[[int, int], None] | None) -> None:
        self._total, self._tell = total, tell
        self._done = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Count `size` more bytes."""
        with self._lock:
            self._done += size
            if self._tell is not None:
                self._tell(self._done, self._total)


class SourceTensor:
    """A tensor in a file: dtype and shape at once, its values when it is indexed with `[...]`.

    It has the part of a tensor's interface, and of a safetensors slice's, that transformers' loaders use.
    """

    def __init__(self, stored: StoredTensor, descriptor: int, target: torch.dtype, progress: Progress) -> None:
        self._stored, self._descriptor, self._progress = stored, descriptor, progress
        self.dtype: torch.dtype = getattr(torch, stored.dtype)
        self.shape = torch.Size(stored.shape)
        self.device = torch.device("cpu")
        self._target = target if self.dtype.is_floating_point else self.dtype

    def __getitem__(self, index: Any) -> Tensor:
        whole = self._read()
        return whole if index is Ellipsis else whole[index]

    def to(self, *arguments: Any, **options: Any) -> "SourceTensor | Tensor":
        """Stay in the file for a move to the CPU; anything else reads the values."""
        wanted = (*arguments, *options.values())
        if all(item in (None, "cpu", torch.device("cpu"), False, True) for item in wanted):
            return self
        return self._read().to(*arguments, **options)

    def as_dtype(self, dtype: torch.dtype) -> "SourceTensor":
        """Return the same source, to be read in `dtype`; integers stay what they are."""
        return SourceTensor(self._stored, self._descriptor, dtype, self._progress)

    def is_floating_point(self) -> bool:
        """Whether the stored dtype is a floating-point one."""
        return self.dtype.is_floating_point

    def is_contiguous(self) -> bool:
        """Stored tensors always are."""
        return True

    def numel(self) -> int:
        """Return the number of values."""
        return self.shape.numel()

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def get_shape(self) -> list[int]:
        """Return the shape as a safetensors slice does."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """Return torch's name of the dtype."""
        return self._stored.dtype

    def _read(self) -> Tensor:
        result = torch.empty(self.shape, dtype=self._target)
        if not self._stored.num_bytes:
            return result
        if self._target == self.dtype:
            self._fill(_bytes_of(result), self._stored.offset)
            return result
        flat, itemsize = result.view(-1), self.dtype.itemsize
        scratch = _scratch_block().view(self.dtype)
        for start in range(0, flat.numel(), scratch.numel()):
            count = min(scratch.numel(), flat.numel() - start)
            self._fill(_bytes_of(scratch[:count]), self._stored.offset + start * itemsize)
            flat[start : start + count].copy_(scratch[:count])
        return result

    def _fill(self, memory: memoryview, offset: int) -> None:
        """Read `len(memory)` bytes from `offset`; raises CheckpointError when the file has shrunk."""
        position = 0
        while position < len(memory):
            count = os.preadv(self._descriptor, [memory[position : position + LARGEST_READ]], offset + position)
            if count == 0:
                raise CheckpointError(
                    f"{self._stored.file} ends at byte {offset + position}, inside {self._stored.name!r}"
                )
            position += count
            self._progress.add(count)


@contextmanager
def open_sources(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    dtype: torch.dtype,
    kept_in_fp32: Iterable[str],
    progress: Callable[[int, int], None] | None,
) -> Iterator[dict[str, SourceTensor]]:
    """Give the checkpoint's tensors as a state dict that is read when it is used.

    Floating-point tensors come in `dtype`; those of modules named in `kept_in_fp32` in float32.
    """
    files = sorted({tensor.file for tensor in checkpoint.tensors})
    descriptors = {name: os.open(folder / name, os.O_RDONLY) for name in files}
    counter = Progress(checkpoint.num_bytes, progress)
    kept = [re.compile(rf"(^|\.){name}($|\.)") for name in kept_in_fp32]
    try:
        yield {
            tensor.name: SourceTensor(
                tensor,
                descriptors[tensor.file],
                torch.float32 if any(pattern.search(tensor.name) for pattern in kept) else dtype,
                counter,
            )
            for tensor in checkpoint.tensors
        }
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _scratch_block() -> Tensor:
    """Return this thread's block of BLOCK bytes; one for all tensors, so that the heap does not fragment."""
    if not hasattr(_scratch, "block"):
        _scratch.block = torch.from_numpy(np.empty(BLOCK, dtype=np.uint8))
    block: Tensor = _scratch.block
    return block


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data
