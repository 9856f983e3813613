"""NVIDIA's devices as the driver's management library (NVML) shows them: no context is made, no torch is needed."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.hardware.dtypes import cuda_dtypes
from runner.hardware.sources import Sources
from runner.hardware.torch_build import TorchBuild
from runner.hardware.value import Accelerator, Figure, Survey
from runner.units import MiB, format_size

UNIFIED = re.compile(r"\b(GB10|N1X|Tegra|Jetson|Orin|Thor|Xavier|nvgpu)\b", re.IGNORECASE)
"""Products whose GPU has no memory of its own"""

WORTH_TELLING = 256 * MiB
"""What a desktop takes is told from here on"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """A whole device, or one MIG instance, before CUDA numbers it."""

    handle: Any
    uuid: str
    name: str
    capability: tuple[int, int] | None
    instances: tuple["_Card", ...] = ()


def survey_nvidia(sources: Sources, *, build: TorchBuild | None, host_total: Figure, host_free: Figure) -> Survey:
    """Return the devices that CUDA shows to this process, numbered as CUDA numbers them.

    `host_total` and `host_free` stand in where device and host share one pool.
    """
    try:
        nvml = sources.nvml()
    except ImportError:
        return Survey(problem="nvidia-ml-py is not installed" if _has_node(sources) else None)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        missing = error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return Survey(
            problem=None if missing and not _has_node(sources) else f"NVIDIA's driver does not answer: {error}"
        )
    try:
        count = _ask(nvml, nvml.nvmlDeviceGetCount) or 0
        cards = _cards(nvml, count)
        driver = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        visible, hidden_by = visible_cards(cards, sources.environment)
        devices = tuple(
            _accelerator(nvml, card, index=index, host_total=host_total, host_free=host_free)
            for index, card in enumerate(visible)
        )
    finally:
        _ask(nvml, nvml.nvmlShutdown)
    shown = {card.uuid for card in visible} | {card.uuid for card in cards if set(card.instances) & set(visible)}
    return Survey(
        devices=tuple(_judge(device, build, driver) for device in devices),
        hidden=tuple(card.name for card in cards if card.uuid not in shown),
        hidden_by=hidden_by,
        notes=_order_notes(visible, sources.environment) + _lost_notes(count, len(cards)),
    )


def visible_cards(cards: Sequence[_Card], environment: Mapping[str, str]) -> tuple[list[_Card], str]:
    """Return what CUDA_VISIBLE_DEVICES leaves, and the variable as it stands.

    CUDA's rules: numbers or UUID beginnings; the first entry that names nothing ends the list; an entry twice
    empties it; of a card that is split by MIG the first instance is taken, and only one such card is shown.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return _one_instance(cards), ""
    chosen: list[_Card] = []
    for entry in value.split(","):
        card = _named(cards, entry.strip())
        if card is None:
            break
        if card in chosen:
            return [], f"CUDA_VISIBLE_DEVICES={value}"
        chosen.append(card)
    return _one_instance(chosen), f"CUDA_VISIBLE_DEVICES={value}"


def _named(cards: Sequence[_Card], entry: str) -> _Card | None:
    number = re.match(r"\+?(\d+)", entry)
    if number:
        index = int(number.group(1))
        return cards[index] if index < len(cards) else None
    everything = [*cards, *(instance for card in cards for instance in card.instances)]
    matching = [card for card in everything if len(entry) > 4 and card.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


def _one_instance(cards: Sequence[_Card]) -> list[_Card]:
    """Return the cards with each split one replaced by its first instance; later split ones are left out."""
    shown: list[_Card] = []
    split = False
    for card in cards:
        if not card.instances:
            shown.append(card)
        elif not split:
            shown.append(card.instances[0])
            split = True
    return shown


def _cards(nvml: Any, count: int) -> list[_Card]:
    cards = []
    for index in range(count):
        handle = _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            cards.append(_card(nvml, handle, number=index))
    return cards


def _card(nvml: Any, handle: Any, *, number: int) -> _Card:
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    card = _Card(
        handle=handle,
        uuid=_text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle)) or f"GPU {number}",
        name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)) or "NVIDIA device",
        capability=tuple(capability) if capability else None,
    )
    mode = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return card
    instances = []
    for slot in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        uuid = _text(_ask(nvml, nvml.nvmlDeviceGetUUID, instance)) if instance is not None else None
        if uuid is not None:
            name = _text(_ask(nvml, nvml.nvmlDeviceGetName, instance)) or f"{card.name} MIG instance"
            instances.append(_Card(handle=instance, uuid=uuid, name=name, capability=card.capability))
    return replace(card, instances=tuple(instances))


def _accelerator(nvml: Any, card: _Card, *, index: int, host_total: Figure, host_free: Figure) -> Accelerator:
    total, free, reserved, notes = _memory(nvml, card, device=f"cuda:{index}")
    unified = UNIFIED.search(card.name) is not None
    if unified:
        total, reserved = Figure(host_total.value, f"one pool with the host: {host_total.source}"), None
        free, notes = Figure(host_free.value, f"one pool with the host: {host_free.source}"), ()
    dtypes, emulated, reason = cuda_dtypes(card.capability)
    return Accelerator(
        device=f"cuda:{index}",
        name=card.name,
        backend="cuda",
        total=total,
        free=free,
        reserved=reserved,
        capability=card.capability,
        uuid=card.uuid,
        unified=unified,
        dtypes=dtypes,
        emulated_dtypes=emulated,
        dtypes_source=reason,
        notes=notes,
    )


def _memory(nvml: Any, card: _Card, *, device: str) -> tuple[Figure, Figure, int | None, tuple[str, ...]]:
    """Return total, free, what the driver keeps, and notes. Version 2 tells the driver's part from others' use."""
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, card.handle, version=nvml.nvmlMemory_v2)
    reserved = None if memory is None else int(memory.reserved)
    source = "NVML memory info v2"
    if memory is None:
        memory, source = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, card.handle), "NVML memory info v1"
    if memory is None or not memory.total:
        unknown = Figure(None, "NVML does not tell this device's memory")
        return unknown, unknown, None, (f"{device} {card.name}: its memory is unknown, NVML does not tell it",)
    total, used = int(memory.total), int(memory.used)
    notes = []
    if used > total:
        notes.append(
            f"{device}: {format_size(used)} is used of {format_size(total)}; the rest lies in host memory and is slow"
        )
    elif used >= WORTH_TELLING and reserved is not None:
        notes.append(f"{device}: other programs use {format_size(used)} of {format_size(total)}")
    free = 0 if used >= total else max(int(memory.free), 0)
    return Figure(total, source), Figure(free, f"{source}, what no program uses now"), reserved, tuple(notes)


def _judge(device: Accelerator, build: TorchBuild | None, driver: int | None) -> Accelerator:
    """Return the device with the reason why this build of torch cannot compute on it, if there is one.

    NVML spells the driver's CUDA version 12040 for 12.4; a build runs on any driver of its major version or later.
    CUDA 13 has no code for devices before 7.5 (its release notes).
    """
    if build is None or build.cuda is None:
        return device
    major = int(build.cuda.partition(".")[0])
    if driver is not None and driver // 1000 < major:
        spelled = f"{driver // 1000}.{driver % 1000 // 10}"
        why = f"the driver knows CUDA {spelled}, PyTorch was built for {build.cuda}: update the driver"
        return replace(device, unusable=why)
    if major >= 13 and device.capability is not None and device.capability < (7, 5):
        number = f"{device.capability[0]}.{device.capability[1]}"
        why = (
            f"PyTorch for CUDA {build.cuda} has no code for compute capability {number}: install a build for CUDA 12.6"
        )
        return replace(device, unusable=why)
    return device


def _order_notes(visible: Sequence[_Card], environment: Mapping[str, str]) -> tuple[str, ...]:
    if len({card.name for card in visible}) < 2 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ()
    return ("devices are numbered by bus here, fastest first by CUDA: CUDA_DEVICE_ORDER=PCI_BUS_ID makes both agree",)


def _lost_notes(count: int, answering: int) -> tuple[str, ...]:
    if answering == count:
        return ()
    lost = count - answering
    return (f"of {count} NVIDIA devices {lost} does not answer; CUDA may number the others differently",)


def _has_node(sources: Sources) -> bool:
    return any(sources.path(node).exists() for node in ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu"))


def _ask(nvml: Any, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Return the answer, None when the driver has none: what it does not support is unknown, never 0."""
    try:
        return call(*arguments, **keywords)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
