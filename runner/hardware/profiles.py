"""Machines that are not here, for planning: a product, its memory, and what its makers say that it computes."""

import re

from runner.config import HardwareConfig
from runner.errors import RequestError
from runner.hardware.dtypes import cpu_dtypes, cuda_dtypes
from runner.hardware.value import Figure, Hardware, settle_budget
from runner.units import parse_size

_ASSUMED_SETS = ("avx2",)


def profile(config: HardwareConfig, *, limit: int | None = None) -> Hardware:
    """Return the machine that `config` describes, with nothing else running on it.

    Free memory is the total less what driver or system keep. Raises RequestError when a figure is missing or the
    device asked for is not the profile's.
    """
    if config.product is None or config.total is None:
        raise RequestError(f"hardware={config.name}: a profile needs hardware.product and hardware.total")
    capability = _capability(config)
    device = _device(config, capability)
    total, reserved = parse_size(config.total), parse_size(config.reserved) if config.reserved is not None else 0
    if reserved >= total:
        raise RequestError(f"hardware.reserved={config.reserved} leaves nothing of hardware.total={config.total}")
    keeper = "the system" if device == "cpu" else "the driver"
    free = Figure(total - reserved, f"profile {config.name}: total less what {keeper} keeps, nothing else runs there")
    budget, notes = settle_budget([free], limit)
    native, emulated, reason = cpu_dtypes(_ASSUMED_SETS) if device == "cpu" else cuda_dtypes(capability)
    shared = device == "cpu" or config.unified
    return Hardware(
        device=device,
        device_type=device.partition(":")[0],
        name=config.product,
        total=total,
        free=free.value,
        budget=budget.value,
        budget_source=budget.source,
        dtypes=native,
        emulated_dtypes=emulated,
        capability=capability,
        backend=device.partition(":")[0],
        instruction_sets=_ASSUMED_SETS if device == "cpu" else (),
        unified=config.unified,
        host_total=total if shared else None,
        host_available=free.value if shared else None,
        is_profile=True,
        reserved=reserved,
        sources=_sources(config, device, free, reason),
        notes=(f"{config.product} is not here: hardware={config.name} describes it for planning", *notes),
    )


def _sources(config: HardwareConfig, device: str, free: Figure, reason: str) -> dict[str, str]:
    total = f"hardware.total of profile {config.name}"
    sources = {"total": total, "free": f"assumed: {free.source}", "dtypes": reason}
    if device == "cpu":
        sources["dtypes"] = f"assumed: a CPU with AVX2; {reason}"
    shared = device == "cpu" or config.unified
    nothing = "unknown: a profile says nothing about the host"
    return {
        **sources,
        "host_total": total if shared else nothing,
        "host_available": sources["free"] if shared else nothing,
    }


def _device(config: HardwareConfig, capability: tuple[int, int] | None) -> str:
    own = "cpu" if capability is None else "cuda:0"
    if config.device not in ("auto", own, own.partition(":")[0]):
        raise RequestError(f"hardware.device={config.device}: the profile {config.name} has {own} only")
    return own


def _capability(config: HardwareConfig) -> tuple[int, int] | None:
    if config.capability is None:
        return None
    match = re.fullmatch(r"(\d+)\.(\d+)", config.capability)
    if match is None:
        raise RequestError(f"hardware.capability={config.capability} is not a compute capability, such as 8.6")
    return int(match.group(1)), int(match.group(2))
