"""Measure memory, phase by phase."""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SAMPLE_SECONDS = 0.01
"""between two looks at the resident size where the system keeps no peak that can be reset"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStats:
    """Measured bytes of one phase (load, work or unload). None is unknown, never 0.

    allocated and peak_allocated: live tensors. peak_reserved: held by the device's allocator. resident and
    peak_resident: the process's memory on the host, files that it maps counted in. process_device: what the
    driver charges this process. resident_base: resident before the first phase began.
    """

    allocated: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    resident: int | None = None
    peak_resident: int | None = None
    process_device: int | None = None
    resident_base: int | None = None


@dataclass(slots=True)
class Measurement:
    """What a phase was measured to take; `stats` is there when the phase is over."""

    stats: MemoryStats = field(default_factory=MemoryStats)


class Meter:
    """Measures the phases of one process on one device.

    `exact` counts live CPU tensors with torch's profiler, which sees every allocation and slows them down. Its
    figures are there when `finish` is called: the profiler tells what it saw when it stops.
    """

    def __init__(self, device: str, *, exact: bool = False) -> None:
        self._device = device
        self._on_host = device.startswith("cpu")
        self._base = resident_bytes()
        self._notes: list[str] = []
        self._spans: dict[str, tuple[int, int]] = {}
        self._ledger = _AllocationLedger() if exact and self._on_host else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be measured, and why; each once."""
        return tuple(dict.fromkeys(self._notes))

    @contextmanager
    def phase(self, name: str) -> Iterator[Measurement]:
        """Measure what happens inside; the result stands in `stats` afterwards, also after an error."""
        measurement = Measurement()
        if not self._on_host:
            _synchronize()
            _device_memory().reset_peak_memory_stats(self._device)
        with _PeakResident() as peak:
            began = time.time_ns()
            try:
                yield measurement
            finally:
                if not self._on_host:
                    _synchronize()
                self._spans[name] = (began, time.time_ns())
                self._notes += peak.notes
                measurement.stats = self._stats(peak.read())

    def finish(self, memory: Mapping[str, MemoryStats]) -> dict[str, MemoryStats]:
        """Return the phases' statistics with the exact counts of live tensors, where those were asked for."""
        if self._ledger is None:
            return dict(memory)
        changes = self._ledger.stop()
        self._ledger = None
        return {name: replace(stats, **_live(changes, *self._spans[name])) for name, stats in memory.items()}

    def now(self) -> MemoryStats:
        """Return what the process takes now, and took at most since it began."""
        return self._stats(_high_water())

    def _stats(self, peak_resident: int | None) -> MemoryStats:
        resident = resident_bytes()
        values: dict[str, int | None] = {"resident": resident, "resident_base": self._base}
        if peak_resident is not None and resident is not None:
            values["peak_resident"] = max(peak_resident, resident)
        if not self._on_host:
            memory = _device_memory()
            values |= {
                "allocated": memory.memory_allocated(self._device),
                "peak_allocated": memory.max_memory_allocated(self._device),
                "peak_reserved": memory.max_memory_reserved(self._device),
                "process_device": self._process_device(),
            }
        return MemoryStats(**values)

    def _process_device(self) -> int | None:
        """Return what the driver charges this process, from NVML; None where it does not say."""
        if not self._device.startswith("cuda"):
            return None
        try:
            import pynvml
        except ImportError as error:
            self._notes.append(f"process_device is unknown: {error}")
            return None
        import torch

        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(self._device).uuid}")
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except (AttributeError, pynvml.NVMLError) as error:
            self._notes.append(f"process_device is unknown: {error}")
            return None
        for process in processes:
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        self._notes.append("process_device is unknown: the driver lists no process with this id (a container?)")
        return None


class _AllocationLedger:
    """Follows the CPU allocator through torch's profiler.

    It is started once and stopped once: a release is only reported of what was allocated while it ran. The events
    stay in memory until then, some hundred bytes for each operation. Only this thread is seen (with
    profile_all_threads torch 2.13 reports no memory at all), so transformers is told to load in it.
    """

    def __init__(self) -> None:
        import torch

        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        profiler: Any = torch.autograd.profiler.profile(profile_memory=True, use_kineto=True)
        self._profiler = profiler
        with quiet_stderr():
            profiler.__enter__()

    def stop(self) -> list[tuple[int, int]]:
        """Return (time in ns, bytes allocated, or released if negative) of every change, in order."""
        with quiet_stderr():
            self._profiler.__exit__(None, None, None)
        events = self._profiler.kineto_results.events()
        return sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keep what the profiler's C++ says on its start and end off the terminal."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _live(changes: Sequence[tuple[int, int]], began: int, ended: int) -> dict[str, int]:
    """Return the live bytes at the end of a span of time, and the most within it."""
    live = peak = 0
    for when, change in changes:
        if when > ended:
            break
        live += change
        peak = max(peak, live) if when >= began else live
    return {"allocated": live, "peak_allocated": max(peak, live)}


class _PeakResident:
    """The highest resident size while it is entered: the kernel's own mark, or samples where it cannot be reset."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._sampled: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "_PeakResident":
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError as error:
            self.notes.append(
                f"peak_resident was sampled every {SAMPLE_SECONDS} s: the kernel's mark cannot be reset ({error})"
            )
            self._sampled = resident_bytes()
            self._thread = threading.Thread(target=self._sample, daemon=True, name="sample-resident")
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def read(self) -> int | None:
        """Return the peak so far."""
        return _high_water() if self._thread is None else self._sampled

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            now = resident_bytes()
            if now is not None:
                self._sampled = max(self._sampled or 0, now)


def resident_bytes() -> int | None:
    """Return this process's memory on the host; anonymous, file-backed and shared pages all count."""
    status = process_sizes()
    if "VmRSS" in status:
        return status["VmRSS"]
    import psutil

    return int(psutil.Process().memory_info().rss)


def _high_water() -> int | None:
    """Return the kernel's mark of the highest resident size; None where there is none."""
    return process_sizes().get("VmHWM")


def process_sizes() -> dict[str, int]:
    """Return the sizes in /proc/self/status, in bytes; nothing where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def _device_memory() -> Any:
    import torch

    return torch.accelerator.memory


def _synchronize() -> None:
    import torch

    torch.accelerator.synchronize()
