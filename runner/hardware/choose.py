"""Which of the visible devices to use."""

import re

from runner.errors import RequestError
from runner.hardware.value import Accelerator, Survey
from runner.units import format_size

_FORMS = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d+)?")


def choose(asked: str, survey: Survey) -> tuple[Accelerator | None, tuple[str, ...]]:
    """Return the device to use, None for the CPU, and what to say about it.

    auto, and a type without a number, take the usable device with the most free memory. Raises RequestError for
    a device that is not here, cannot be used, or is no device's name.
    """
    if not _FORMS.fullmatch(asked):
        raise RequestError(f"hardware.device={asked} is not a device; give auto, cpu, cuda, cuda:N, xpu, xpu:N or mps")
    if asked == "cpu":
        idle = [f"{device.device} {device.name} stays unused: hardware.device=cpu" for device in survey.devices]
        return None, tuple(idle)
    usable = [device for device in survey.devices if device.unusable is None]
    if asked == "auto":
        return _of_any(usable, survey)
    if ":" in asked:
        return _numbered(asked, survey), ()
    candidates = [device for device in usable if device.device_type == asked]
    if not candidates:
        raise RequestError(_absent(asked, survey))
    return _freest(candidates)


def _of_any(usable: list[Accelerator], survey: Survey) -> tuple[Accelerator | None, tuple[str, ...]]:
    notes = [f"{device.device} {device.name}: {device.unusable}" for device in survey.devices if device.unusable]
    if usable:
        device, reason = _freest(usable)
        return device, (*reason, *notes)
    return None, tuple(notes + _reasons(survey))


def _freest(devices: list[Accelerator]) -> tuple[Accelerator, tuple[str, ...]]:
    """Return the device with the most free memory, the first of equals; unknown counts as least."""
    best = max(devices, key=lambda device: -1 if device.free.value is None else device.free.value)
    if len(devices) == 1:
        return best, ()
    rest = ", ".join(_spelled(device) for device in devices if device is not best)
    return best, (f"{best.device} has the most free memory: {format_size(best.free.value)}; also here: {rest}",)


def _numbered(asked: str, survey: Survey) -> Accelerator:
    for device in survey.devices:
        if device.device == asked:
            if device.unusable is not None:
                raise RequestError(f"hardware.device={asked}: {device.name}: {device.unusable}; or give cpu")
            return device
    raise RequestError(_absent(asked, survey))


def _absent(asked: str, survey: Survey) -> str:
    """Return the wish, what there is, why there is no more, and what to give instead."""
    kind = asked.partition(":")[0]
    same = [device for device in survey.devices if device.device_type == kind]
    if same:
        count = f"{len(same)} {kind} device" + ("s" if len(same) > 1 else "")
        fact = f"this machine has {count} ({', '.join(_spelled(device) for device in same)})"
    else:
        fact = f"this machine has no {kind} device that PyTorch can use"
    broken = [f"{device.device}: {device.unusable}" for device in same if device.unusable]
    reasons = broken + _reasons(survey)
    if not same and not reasons and survey.build:
        reasons = [survey.build]
    names = [device.device for device in survey.devices if device.unusable is None]
    return f"hardware.device={asked}: {'; '.join([fact, *reasons])}. Give {', '.join([*names, 'cpu'])} or auto"


def _reasons(survey: Survey) -> list[str]:
    hidden = f"{survey.hidden_by} hides {', '.join(survey.hidden)}" if survey.hidden and survey.hidden_by else None
    return [reason for reason in (survey.problem, hidden) if reason]


def _spelled(device: Accelerator) -> str:
    return f"{device.device} {device.name}, {format_size(device.free.value)} free"
