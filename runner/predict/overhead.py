"""What a process takes besides tensors."""

from pathlib import Path

from runner.hardware import Hardware
from runner.settings import Settings
from runner.units import KiB, MiB

CUDA_CONTEXT = 512 * MiB
"""Context and kernels of one process: 300 to 600 MiB by card and driver, with lazy loading of kernels."""
CUBLAS_WORKSPACE = {True: 32 * MiB, False: 8 * MiB + 128 * KiB}
"""By whether the card is Hopper or later: torch's defaults, :4096:8 and :4096:2:16:8 KiB
(getChosenWorkspaceSize in aten/src/ATen/cuda/CUDABlas.cpp), one for a handle and stream."""
HOPPER = (9, 0)
FIRST_USE = {"forward": 56 * MiB, "generate": 56 * MiB, "train": 160 * MiB}
"""Resident growth beyond tensors on a CPU, measured in whole runs of a Qwen3 of 16.8 M parameters on two threads:
58 MiB (forward, fp32), 49 and 48 (generate, fp32 and bf16), 157 and 162 (train, fp32 and bf16). It is the model's own
module, thread pools, packing buffers of MKL and oneDNN, and memory that malloc does not give back; with a model of
0.1 M parameters it is 14 to 19 MiB without the module."""


def measure_base() -> int:
    """Return the resident bytes of this process now, from /proc/self/status or, where there is none, psutil."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * KiB
    import psutil  # type: ignore[import-untyped,unused-ignore]

    return int(psutil.Process().memory_info().rss)


def of_device(hardware: Hardware) -> tuple[int, tuple[str, ...]]:
    """Return the overhead that is known without measuring, and notes that say what it is."""
    if hardware.device_type == "cuda":
        hopper = hardware.capability is not None and hardware.capability >= HOPPER
        note = "overhead is a constant: CUDA context 512 MiB and a cuBLAS workspace; it varies with card and driver"
        return CUDA_CONTEXT + CUBLAS_WORKSPACE[hopper], (note,)
    if hardware.device_type == "cpu":
        return 0, ("the interpreter and its libraries are not counted: no measured overhead was given",)
    return 0, (f"the context of {hardware.device_type} is not counted: its size is not known here",)


def first_use(settings: Settings, hardware: Hardware) -> int:
    """Return what shows up on a CPU when the workload runs for the first time: thread pools, library scratch."""
    return FIRST_USE.get(settings.workload, 0) if hardware.device_type == "cpu" else 0
