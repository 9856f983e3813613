import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runner.errors import RequestError
from runner.limit import can_tighten_malloc, enforce, is_out_of_memory
from runner.meter import MemoryStats, Meter, _live, _PeakResident, resident_bytes
from runner.units import MiB


def in_a_process(code: str) -> str:
    """Run `code` in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_phases_peak_does_not_remember_an_earlier_one() -> None:
    meter = Meter("cpu")
    with meter.phase("load") as large:
        held = torch.ones(100 * MiB, dtype=torch.uint8)
        del held
    with meter.phase("work") as small:
        pass
    assert large.stats.peak_resident is not None
    assert small.stats.peak_resident is not None
    assert large.stats.peak_resident - small.stats.peak_resident > 90 * MiB


def test_what_is_unknown_is_none() -> None:
    with Meter("cpu").phase("load") as measured:
        pass
    stats = measured.stats
    assert (stats.allocated, stats.peak_allocated, stats.peak_reserved, stats.process_device) == (None,) * 4
    assert stats.resident == pytest.approx(resident_bytes(), rel=0.05)


def test_a_phase_that_fails_is_measured_too() -> None:
    with pytest.raises(ValueError, match="boom"), Meter("cpu").phase("work") as measured:
        raise ValueError("boom")
    assert measured.stats.peak_resident is not None


def test_exact_counts_follow_tensors_across_phases() -> None:
    meter = Meter("cpu", exact=True)
    with meter.phase("load") as load:
        weights = torch.ones(1000, 1000)
    with meter.phase("work") as work:
        twice = weights + weights
        del twice
    with meter.phase("unload") as unload:
        del weights
    found = meter.finish({"load": load.stats, "work": work.stats, "unload": unload.stats})
    assert (found["load"].allocated, found["load"].peak_allocated) == (4_000_000, 4_000_000)
    assert (found["work"].allocated, found["work"].peak_allocated) == (4_000_000, 8_000_000)
    assert found["unload"].allocated == 0


def test_without_exact_counts_finishing_changes_nothing() -> None:
    assert Meter("cpu").finish({"load": MemoryStats(resident=1)}) == {"load": MemoryStats(resident=1)}


def test_a_span_begins_with_what_was_there() -> None:
    changes = [(1, 100), (2, -50), (5, 30), (6, -30), (9, 1000)]
    assert _live(changes, 4, 7) == {"allocated": 50, "peak_allocated": 80}
    assert _live(changes, 7, 8) == {"allocated": 50, "peak_allocated": 50}


def test_where_the_kernels_mark_cannot_be_reset_samples_are_taken_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path, text: str) -> None:
        raise PermissionError(13, "not permitted")

    monkeypatch.setattr(Path, "write_text", refuse)
    with _PeakResident() as peak:
        held = bytearray(b"x" * 50 * MiB)
        del held
    assert peak.read() is not None
    assert "sampled" in peak.notes[0]


class NvmlError(Exception):
    """What NVML raises."""


def nvml(*processes: tuple[int, int | None], error: Exception | None = None) -> Any:
    """A stand-in for NVML's module that knows these (process id, bytes)."""

    def running(handle: object) -> list[SimpleNamespace]:
        if error is not None:
            raise error
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in processes]

    return SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeRunningProcesses=running,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("module", "size", "note"),
    [
        (nvml((os.getpid(), 7), (1, 9)), 7, None),
        (nvml((1, 9)), None, "lists no process with this id"),
        (nvml((os.getpid(), None)), None, "lists no process with this id"),
        (nvml(error=NvmlError("not supported")), None, "not supported"),
        (None, None, "process_device is unknown"),
    ],
)
def test_what_the_driver_charges_this_process_is_its_own_or_unknown_with_the_reason(
    module: Any, size: int | None, note: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1"))
    meter = Meter("cuda:0")
    assert meter._process_device() == size
    assert (note is None) == (meter.notes == ())
    assert note is None or note in meter.notes[0]


@pytest.mark.gpu
def test_an_accelerators_peaks_are_its_allocators() -> None:
    device = str(torch.accelerator.current_accelerator()) + ":0"
    meter = Meter(device)
    with meter.phase("work") as measured:
        held = torch.ones(16 * MiB, dtype=torch.uint8, device=device)
        del held
    assert measured.stats.peak_allocated is not None
    assert measured.stats.peak_reserved is not None
    assert 16 * MiB <= measured.stats.peak_allocated <= measured.stats.peak_reserved


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts memory on Linux only")
def test_an_enforced_limit_lets_a_little_less_through_and_stops_a_little_more() -> None:
    output = in_a_process(
        """
        import torch
        from runner.limit import can_tighten_malloc, enforce, is_out_of_memory
        from runner.meter import resident_bytes
        before = resident_bytes()
        limit = before + 600 * 2**20
        print(enforce(limit, "cpu").enforced)
        fits = torch.ones(540 * 2**20, dtype=torch.uint8)
        print(resident_bytes() <= limit)
        try:
            torch.ones(120 * 2**20, dtype=torch.uint8)
        except RuntimeError as error:
            print(is_out_of_memory(error))
        """
    )
    assert output.split() == ["True", "True", "True"]


@pytest.mark.slow
@pytest.mark.skipif(not can_tighten_malloc(), reason="this system's malloc cannot be told")
def test_a_tight_malloc_gives_back_what_another_keeps() -> None:
    code = """
        import torch
        from runner.limit import tighten_malloc
        from runner.meter import resident_bytes
        if {tight}: tighten_malloc()
        torch.ones(30 * 2**20, dtype=torch.uint8)  # freed: glibc's own threshold rises above it
        before = resident_bytes()
        blocks = [torch.ones(2**20, dtype=torch.uint8) for _ in range(200)]
        held = blocks[-1]
        del blocks
        print((resident_bytes() - before) // 2**20)
    """
    kept, given_back = (int(in_a_process(code.format(tight=tight))) for tight in (False, True))
    assert kept > 150
    assert given_back < 20


def test_a_limit_below_what_python_takes_is_refused_with_numbers() -> None:
    with pytest.raises(RequestError, match=r"memory\.limit=10\.00 MiB is less than the .* short"):
        enforce(10 * MiB, "cpu")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_running_out_of_memory_is_recognised(error: BaseException) -> None:
    assert is_out_of_memory(error)


def test_running_out_of_memory_is_recognised_below_another_error() -> None:
    outer = ValueError("while generating")
    outer.__cause__ = MemoryError()
    assert is_out_of_memory(outer)


@pytest.mark.parametrize("error", [ValueError("CUDA out of memory"), RuntimeError("shape mismatch"), OSError(2, "no")])
def test_other_errors_are_not_taken_for_it(error: BaseException) -> None:
    assert not is_out_of_memory(error)
