"""Devices that only torch can describe, from its answer in a process of its own."""

from collections.abc import Mapping
from typing import Any

from runner.hardware.dtypes import Dtypes, cuda_dtypes, gfx_target, mps_dtypes, rocm_dtypes, xpu_dtypes
from runner.hardware.sources import Sources
from runner.hardware.value import Accelerator, Figure, Host, Survey, least

_SOURCE = "torch, asked in a process of its own"


def survey_torch(sources: Sources, *, host: Host) -> Survey:
    """Return the devices that torch sees: Intel GPUs, Apple's, and any whose driver tells us nothing."""
    probe = sources.probe(sources.environment)
    devices = tuple(_accelerator(sources, facts, host) for facts in probe.devices)
    return Survey(devices=devices, problem=probe.problem)


def _accelerator(sources: Sources, facts: Mapping[str, Any], host: Host) -> Accelerator:
    device_type = facts["device_type"]
    capability = tuple(facts["capability"]) if facts.get("capability") and not facts["hip"] else None
    unified = device_type == "mps" or bool(facts.get("unified"))
    total, free = Figure(facts.get("total"), _SOURCE), Figure(facts.get("free"), f"{_SOURCE}: what no program uses now")
    if unified:
        total = Figure(host.total.value, f"one pool with the host: {host.total.source}")
        free = Figure(host.available.value, f"one pool with the host: {host.available.source}")
    if facts.get("recommended"):
        free = least([free, Figure(facts["recommended"], "Metal's recommended working set")]) or free
    dtypes, emulated, reason = _dtypes(sources, facts, capability)
    name = "mps" if device_type == "mps" else f"{device_type}:{facts['index']}"
    return Accelerator(
        device=name,
        name=host.name if device_type == "mps" else facts.get("name") or f"{device_type} device",
        backend="rocm" if facts["hip"] else device_type,
        total=total,
        free=free,
        capability=(capability[0], capability[1]) if capability else None,
        uuid=facts.get("uuid"),
        unified=unified,
        dtypes=dtypes,
        emulated_dtypes=emulated,
        dtypes_source=reason,
        notes=() if free.value is not None else (f"{name}: torch does not tell how much of its memory is free",),
    )


def _dtypes(sources: Sources, facts: Mapping[str, Any], capability: Any) -> Dtypes:
    if facts["device_type"] == "mps":
        return mps_dtypes(sources.release)
    if facts["device_type"] == "xpu":
        return xpu_dtypes(facts.get("bfloat16"))
    return rocm_dtypes(gfx_target(facts.get("architecture"))) if facts["hip"] else cuda_dtypes(capability)
