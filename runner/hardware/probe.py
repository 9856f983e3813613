"""What torch says about its accelerators, printed as one line of JSON. Run in a process of its own."""

import json
import sys
from typing import Any


def devices() -> list[dict[str, Any]]:
    """Return one mapping of plain values for each device of torch's current accelerator; unknown is None."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return []
    return [_facts(torch, accelerator.type, index) for index in range(torch.accelerator.device_count())]


def _facts(torch: Any, device_type: str, index: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"device_type": device_type, "index": index, "hip": torch.version.hip is not None}
    if device_type == "mps":
        facts["recommended"] = _ask(torch.mps.recommended_max_memory)
        return facts
    module = getattr(torch, device_type)
    free, total = _ask(module.mem_get_info, index) or (None, None)
    properties = _ask(module.get_device_properties, index)
    facts |= {"free": free, "total": total}
    facts["name"] = _text(getattr(properties, "name", None))
    facts["unified"] = bool(getattr(properties, "is_integrated", False))
    facts["uuid"] = _text(getattr(properties, "uuid", None))
    facts["architecture"] = _text(getattr(properties, "gcnArchName", None))
    facts["bfloat16"] = getattr(properties, "has_bfloat16_conversions", None)
    if device_type == "cuda" and properties is not None:
        facts["capability"] = [properties.major, properties.minor]
    return facts


def _ask(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (RuntimeError, AttributeError, NotImplementedError, AssertionError):
        return None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"devices": devices()}) + "\n")
