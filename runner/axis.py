"""Round values for axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.units import GiB, KiB, MiB, TiB

UNITS = (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB), ("B", 1))


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value lies between the two ends of an axis, and which values are written at it."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    """value and label"""
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return 0 at the low end and 1 at the high end; below a logarithmic axis' low end, such as zero, 0."""
        if not self.is_log:
            return (value - self.low) / (self.high - self.low)
        if value <= self.low:
            return 0.0
        return math.log(value / self.low) / math.log(self.high / self.low)


def byte_scale(values: Sequence[float], *, from_zero: bool = False) -> Scale:
    """Return an axis in one binary unit over `values` in bytes; from zero unless they lie far from it."""
    low, high = _ends(values, from_zero=from_zero)
    name, unit = next((name, unit) for name, unit in UNITS if high >= unit or unit == 1)
    low, high, ticks = _linear(low / unit, high / unit)
    return Scale(
        low * unit, high * unit, tuple((value * unit, f"{value:g} {name}" if value else "0") for value in ticks)
    )


def number_scale(values: Sequence[float], *, from_zero: bool = False) -> Scale:
    """Return a plain axis over `values`."""
    low, high, ticks = _linear(*_ends(values, from_zero=from_zero))
    return Scale(low, high, tuple((value, f"{value:g}") for value in ticks))


def log_scale(values: Sequence[float]) -> Scale:
    """Return a logarithmic axis over the positive ones of `values`, with a place for zero at its low end."""
    positive = [value for value in values if value > 0] or [1.0]
    first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    first, last = max(first, -300), max(last, first + 1)
    zero = [first - 1] if min(values, default=1.0) <= 0 else []
    step = max(1, (last - first) // 5)
    ticks = [(10.0**power, _power(power)) for power in range(first, last + 1, step)]
    low = 10.0 ** (zero[0] if zero else first)
    return Scale(low, 10.0**last, tuple(([(low, "0")] if zero else []) + ticks), is_log=True)


def _power(power: int) -> str:
    """Return a power of ten as a number, a small or large one with an exponent."""
    if -3 <= power <= 4:
        return f"{10.0**power:g}"
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _ends(values: Sequence[float], *, from_zero: bool) -> tuple[float, float]:
    high = max([*values, 0]) or 1.0
    low = min([*values, high])
    if from_zero or low < 0.5 * high:
        return 0.0, high
    room = (high - low) * 0.15 or 0.05 * high
    return low - room, high + room


def _linear(low: float, high: float) -> tuple[float, float, list[float]]:
    """Return ends on round values and the round values between them, three to six."""
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [float(f"{number * step:.10g}") for number in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks
