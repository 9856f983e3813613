"""Measure memory, phase by phase."""

from dataclasses import dataclass


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
