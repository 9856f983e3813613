"""Bytes, counts and times as words, and words as bytes."""

import math
import re

KiB = 2**10
MiB = 2**20
GiB = 2**30
TiB = 2**40

_FACTORS = {
    "": 1,
    "b": 1,
    "kib": KiB,
    "mib": MiB,
    "gib": GiB,
    "tib": TiB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Return the bytes that `text` names: ``6GiB``, ``512MiB``, ``1.5GB`` or plain bytes.

    Raises ValueError that says how a size is written.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise ValueError(f"{text!r} is not a size; write 6GiB, 512MiB or plain bytes")
    match = _SIZE.fullmatch(str(text))
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write 6GiB, 512MiB or plain bytes")
    if factor == 1 and not match.group(1).isdigit():
        raise ValueError(f"{text!r} is not a whole number of bytes; write 6GiB, 512MiB or plain bytes")
    size = float(match.group(1)) * factor
    if not math.isfinite(size) or size < 1:
        raise ValueError(f"{text!r} is not a size of at least one byte")
    return int(match.group(1)) * factor if match.group(1).isdigit() else int(size)


def format_size(size: int | None) -> str:
    """Return `size` bytes with two decimals in the largest binary unit that keeps it at 1 or more."""
    if size is None:
        return "unknown"
    sign, magnitude = ("-", -size) if size < 0 else ("", size)
    for name, factor in (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if magnitude >= factor:
            return f"{sign}{magnitude / factor:.2f} {name}"
    return f"{sign}{magnitude} B"


def size_argument(size: int) -> str:
    """Return `size` rounded up so that it can be typed as a value on the command line."""
    for name, factor in (("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if size >= factor:
            return f"{math.ceil(size / factor * 100) / 100:g}{name}"
    return str(size)


def format_count(count: int) -> str:
    """Return a count with the suffix that is usual for parameters: ``134.5 M``, ``1.72 B``."""
    for suffix, factor, digits in (("B", 10**9, 3), ("M", 10**6, 1), ("K", 10**3, 1)):
        if count >= factor:
            return f"{count / factor:.{digits}f} {suffix}"
    return str(count)


def format_seconds(seconds: float) -> str:
    """Return a time with three significant digits: ``12.3 ms``, ``4.56 s``, ``2 min 03 s``."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
