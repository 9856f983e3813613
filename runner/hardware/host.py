"""The CPU and the memory that this process may use of it."""

import re

from runner.hardware.cgroup import cgroup_limits
from runner.hardware.dtypes import RELEVANT_SETS, cpu_dtypes
from runner.hardware.sources import Sources
from runner.hardware.value import Figure, Host, least
from runner.units import KiB, format_size

_LIMITS = (
    ("RLIMIT_AS", "Max address space", "VmSize"),
    ("RLIMIT_DATA", "Max data size", "VmData"),
)
"""name, its line in /proc/self/limits, what counts against it in /proc/self/status"""

_NEVER_OVERCOMMIT = 2
"""vm.overcommit_memory: the kernel promises no more than CommitLimit, whatever is free"""


def inspect_host(sources: Sources) -> Host:
    """Return the CPU, its memory and every limit on it."""
    name, sets = _processor(sources)
    dtypes, emulated, reason = cpu_dtypes(sets)
    physical, available = _memory(sources)
    groups = cgroup_limits(sources)
    total = least([physical, *(group.limit for group in groups)]) or physical
    free = least([available, *(group.headroom for group in groups)]) or available
    notes = []
    if total is not physical and physical.value is not None:
        notes.append(
            f"{format_size(total.value)} of the machine's {format_size(physical.value)} may be used: {total.source}"
        )
    if physical.value is None:
        notes.append(f"the host's memory is unknown: {physical.source}")
    limits = _resource_limits(sources)
    if any(limit.source.startswith("RLIMIT_AS") for limit in limits):
        notes.append("RLIMIT_AS counts address space, of which a process takes more than memory; RLIMIT_DATA is closer")
    return Host(
        name=name,
        total=total,
        available=free,
        limits=limits,
        instruction_sets=sets,
        dtypes=dtypes,
        emulated_dtypes=emulated,
        dtypes_source=reason,
        notes=tuple(notes),
    )


def _memory(sources: Sources) -> tuple[Figure, Figure]:
    """Return the machine's total and available memory. Swap counts as neither."""
    if sources.system != "linux":
        total, unused = sources.psutil_memory()
        return Figure(total, "psutil"), Figure(unused, "psutil")
    sizes = _kilobytes(sources.read("/proc/meminfo"))
    physical = Figure(sizes.get("MemTotal"), "MemTotal in /proc/meminfo")
    if "MemAvailable" in sizes:
        return physical, Figure(sizes["MemAvailable"], "MemAvailable in /proc/meminfo")
    if "MemFree" not in sizes:
        return physical, Figure(None, "/proc/meminfo could not be read")
    cache = sizes.get("Buffers", 0) + sizes.get("Cached", 0) - sizes.get("Shmem", 0)
    return physical, Figure(sizes["MemFree"] + max(cache, 0), "MemFree + Buffers + Cached - Shmem in /proc/meminfo")


def _resource_limits(sources: Sources) -> tuple[Figure, ...]:
    """Return what the soft limits leave, which a worker inherits, and what a strict kernel still promises."""
    table = sources.read("/proc/self/limits") or ""
    status = _kilobytes(sources.read("/proc/self/status"))
    found = []
    for name, line, counted in _LIMITS:
        match = re.search(rf"^{line}\s+(\d+)\s", table, re.MULTILINE)
        if match:
            found.append(Figure(max(int(match.group(1)) - status.get(counted, 0), 0), f"{name} less {counted}"))
    sizes = _kilobytes(sources.read("/proc/meminfo"))
    if sources.read_int("/proc/sys/vm/overcommit_memory") == _NEVER_OVERCOMMIT and "CommitLimit" in sizes:
        left = max(sizes["CommitLimit"] - sizes.get("Committed_AS", 0), 0)
        found.append(Figure(left, "CommitLimit less Committed_AS in /proc/meminfo: vm.overcommit_memory=2"))
    return tuple(found)


def _processor(sources: Sources) -> tuple[str, tuple[str, ...]]:
    """Return the CPU's name and those of its instruction sets that matter for precision."""
    if sources.system == "darwin":
        has = {"bf16": "hw.optional.arm.FEAT_BF16", "asimdhp": "hw.optional.arm.FEAT_FP16"}
        name = sources.sysctl("machdep.cpu.brand_string") or sources.machine
        return name, tuple(flag for flag, key in has.items() if sources.sysctl(key) == "1")
    text = sources.read("/proc/cpuinfo") or ""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    present = set(flags.group(1).split()) if flags else set()
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return model.group(1).strip() if model else sources.machine, tuple(s for s in RELEVANT_SETS if s in present)


def _kilobytes(text: str | None) -> dict[str, int]:
    """Return the lines `Name:  123 kB` as bytes."""
    return {
        name: int(number) * KiB for name, number in re.findall(r"^(\w[\w()]*):\s+(\d+) kB$", text or "", re.MULTILINE)
    }
