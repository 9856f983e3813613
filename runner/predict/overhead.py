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
LIBRARIES = 300 * MiB
"""Resident size of Python with torch, transformers and one model's module imported: 290 to 296 MiB with torch 2.13
and transformers 5.24 on Linux, 320 to 350 with transformers 4.57."""
LOADING = 12 * MiB
"""Resident growth beyond tensors and imports while a model is loaded on a CPU: 8 to 15 MiB, measured with models of
0.2 to 2300 MiB."""
FIRST_USE = {"forward": 25 * MiB, "generate": 25 * MiB, "train": 40 * MiB}
KEPT = {"forward": 0.10, "generate": 0.10, "train": 0.25}
KEPT_AT_MOST = {"forward": 40 * MiB, "generate": 40 * MiB}
"""Resident growth beyond tensors and imports once a workload runs on a CPU: thread pools, packing buffers of MKL and
oneDNN, and what malloc keeps when blocks of many sizes come and go: a constant, and a share of the tensors. Measured in
whole runs on two threads, fp32 and bf16, in MiB. Forward and generate: 18 to 27 (0.2 M parameters), 30 to 68 (109 and
124 M), 41 to 60 (596 M). Train: 25 to 41 (0.2 M); beside 1.8 and 2.1 GiB of tensors 9 % (all layers checkpointed) to
25 % (384 tokens, none checkpointed)."""
KEPT_CHECKPOINTED, KEPT_CHECKPOINTED_AT_MOST = 1.6, 512 * MiB
"""The same share in training with checkpointed layers, whose blocks come and go between those that stay: 84 to 156 % of
the tensors beside 60 to 161 MiB of them, yet 9 % beside 1.8 GiB, since glibc maps blocks above 32 MiB one by one."""
TIGHT = 48 * MiB
"""The same in training when malloc gives large blocks back at once: 38 to 45 MiB in all of those cases."""
PACKAGES = {"lora": 20 * MiB, "adamw_8bit": 45 * MiB}
"""Resident size of what these bring, peft 0.21 and bitsandbytes 0.50, imported after transformers."""

SPEAK, SPEAK_KEPT, SPEAK_KEPT_AT_MOST = 115 * MiB, 0.01, 60 * MiB
"""The same in speaking: 65 MiB for one sentence with the tiny Qwen3-TTS, 115 over a chapter, whose sentences have many
lengths; 150 beside 3.4 and 4.0 GiB of tensors."""


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
        return LIBRARIES, ("overhead is a constant: Python, torch and transformers, 300 MiB",)
    return 0, (f"the context of {hardware.device_type} is not counted: its size is not known here",)


def first_use(settings: Settings, hardware: Hardware, tensors: int) -> int:
    """Return what shows up on a CPU besides `tensors` bytes of tensors once the workload runs."""
    if hardware.device_type != "cpu":
        return 0
    workload = settings.workload
    if workload == "speak":
        return SPEAK + min(int(SPEAK_KEPT * tensors), SPEAK_KEPT_AT_MOST)
    imported = PACKAGES["lora"] * (settings.adapter == "lora") + PACKAGES["adamw_8bit"] * (
        settings.optimizer == "adamw_8bit"
    )
    if settings.host_allocator == "tight":
        return TIGHT + imported
    kept = min(int(KEPT.get(workload, 0.0) * tensors), KEPT_AT_MOST.get(workload, tensors))
    if workload == "train" and settings.checkpointed_layers:
        kept = max(kept, min(int(KEPT_CHECKPOINTED * tensors), KEPT_CHECKPOINTED_AT_MOST))
    return LOADING if workload == "load" else FIRST_USE.get(workload, 0) + kept + imported


def while_loading(hardware: Hardware) -> int:
    """Return what shows up on a CPU besides tensors while a model is loaded."""
    return LOADING if hardware.device_type == "cpu" else 0
