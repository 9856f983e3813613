"""Read what pictures need from a record, whatever state it is in: what is not as it should be is unknown."""

from collections.abc import Mapping
from typing import Any

from runner.compare import clean


def below(record: Any, *names: str) -> Mapping[str, Any]:
    """Return the mapping at a path into a record, empty where there is none."""
    for name in names:
        record = record.get(name) if isinstance(record, Mapping) else None
    return record if isinstance(record, Mapping) else {}


def size(value: Any) -> int | None:
    """Return a number of bytes, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def samples(record: Mapping[str, Any]) -> list[tuple[float, str, int]]:
    """Return the record's timeline (seconds, phase, resident bytes) in the order of time; broken samples left out."""
    found = record.get("timeline")
    whole = [
        (float(item[0]), clean(str(item[1])), item[2])
        for item in (found if isinstance(found, list) else [])
        if isinstance(item, list) and len(item) == 3
        and isinstance(item[0], (int, float)) and size(item[2]) is not None
    ]  # fmt: skip
    return sorted(whole, key=lambda sample: sample[0])
