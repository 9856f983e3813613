"""Enforce a memory budget on this process, so that "fits in 6 GiB" can be proven on a larger machine."""

import ctypes
import errno
import os
import sys
import threading
from dataclasses import dataclass

from runner.errors import RequestError
from runner.meter import process_sizes, resident_bytes
from runner.units import MiB, format_size

THREAD_STACK = MiB
"""of Python's threads that start after the limit is set; 8 MiB would be usual, and the limit counts them untouched"""
THREAD_STACKS = 16 * MiB
"""Virtual memory for such threads, the loader's and the tokenizer's, which the limit is raised by."""
LIBRARY_PAGES = 20 * MiB
"""Resident pages of libraries' files that appear when their code first runs, 8 to 19 MiB here. No limit counts them, so
they are taken off."""

M_MMAP_THRESHOLD = -3
LARGE_BLOCK = 256 * 1024
"""From this size on a block is mapped by itself and given back when it is freed. glibc raises its threshold as the
program goes on, up to 32 MiB; smaller blocks stay in a heap that cannot shrink below its last block."""

KERNELS = 32
"""compiled kernels that oneDNN keeps where shapes change all the time; a step's own shapes are fewer"""

OUT_OF_MEMORY_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA out of memory",
    "HIP out of memory",
    "XPU out of memory",
    "MPS backend out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "Cannot allocate memory",
    "can't start new thread",
)
"""what torch and the libraries below it say; oneDNN and OpenMP raise a bare RuntimeError"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Whether the budget is enforced, and by what."""

    enforced: bool
    how: str


def enforce(limit: int, device: str) -> Enforcement:
    """Limit this process to `limit` bytes of `device` from now on; allocations beyond it fail.

    On the CPU the kernel limits private writable memory (RLIMIT_DATA) to what is there now and what the limit
    leaves above the resident size. On an accelerator torch's allocator is limited to the limit less what the
    context has taken. Raises RequestError when this process is over the limit already.
    """
    if device.startswith("cpu"):
        return _enforce_on_host(limit)
    import torch

    if not device.startswith("cuda"):
        return Enforcement(enforced=False, how=f"not enforced: torch cannot limit {device}")
    torch.zeros(1, device=device)  # the context exists from here on
    free, total = torch.cuda.mem_get_info(device)
    context = max(0, total - free - torch.cuda.memory_reserved(device))
    left = limit - min(context, 1024 * MiB)
    if left <= 0:
        raise RequestError(
            f"memory.limit={format_size(limit)} is less than the {format_size(context)} of a CUDA context"
        )
    torch.cuda.set_per_process_memory_fraction(min(1.0, left / total), device)
    return Enforcement(enforced=True, how=f"enforced by torch's allocator on {device}")


def _enforce_on_host(limit: int) -> Enforcement:
    try:
        import resource
    except ImportError:
        return Enforcement(enforced=False, how="not enforced: this system has no resource limits")
    _start_thread_pools()
    resident, data = resident_bytes(), _data_bytes()
    if resident is None or data is None:
        return Enforcement(enforced=False, how="not enforced: this system does not count private writable memory")
    if resident >= limit:
        raise RequestError(
            f"memory.limit={format_size(limit)} is less than the {format_size(resident)} that Python, torch and "
            f"transformers take before anything is loaded: {format_size(resident - limit)} short"
        )
    threading.stack_size(THREAD_STACK)
    soft = data + max(limit - resident - LIBRARY_PAGES, 0) + THREAD_STACKS
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return Enforcement(enforced=True, how="enforced by the kernel's limit on private writable memory, RLIMIT_DATA")


def can_tighten_malloc() -> bool:
    """Whether this system's malloc can be told to give large blocks back at once (glibc can)."""
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")


def tighten_malloc() -> None:
    """Make malloc give large blocks back when they are freed, for the rest of this process."""
    if can_tighten_malloc():
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def keep_few_kernels() -> None:
    """Let oneDNN keep KERNELS of its compiled kernels, for the rest of this process; before its first use.

    It makes one for each shape and keeps 1024: sentences differ in length, so a chapter would fill the cache.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether `error`, or what caused it, means that memory ran out."""
    import torch

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _start_thread_pools() -> None:
    """Start torch's threads, whose stacks count as private writable memory."""
    import torch

    square = torch.ones(256, 256)
    torch.mm(square, square)
    torch.ones(2**20).add_(1)


def _data_bytes() -> int | None:
    return process_sizes().get("VmData")
