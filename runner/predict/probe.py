"""Ask kernels what they take besides their outputs, by running them once on zeros of the same shapes.

oneDNN chooses its scratch by processor, threads and shapes, in ways that no formula here follows; on the machine that
the run will be on, the answer can be measured. This module imports torch; import it inside functions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from runner.meter import quiet_stderr
from runner.predict.scratch import CONVOLUTIONS, PRODUCTS, is_onednn_product

_aten = torch.ops.aten
MOST_BYTES = 64 * 2**20
"""of operands together; beyond, scratch no longer matters beside them"""
MOST_PRODUCTS = 2**28
"""multiplications of one probe: about 10 ms"""
MOST_PROBES = 48
MARK = "runner-probe-"


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor without its values."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """An operation and what it was called with: Shape in the place of a tensor."""

    function: Any
    arguments: tuple[Any, ...]

    @property
    def shapes(self) -> list[Shape]:
        """Those of the operands, in order."""
        return [item for item in self.arguments if isinstance(item, Shape)]


def call_of(function: Any, arguments: tuple[Any, ...]) -> Call | None:
    """Return the call if its scratch is of the kind that has to be measured and can be, cheaply; None otherwise."""
    if function in PRODUCTS:
        if not is_onednn_product(function, arguments):
            return None
    elif function not in CONVOLUTIONS:
        return None
    call = Call(function, tuple(_without_values(item) for item in arguments))
    if sum(_num_bytes(shape) for shape in call.shapes) > MOST_BYTES or _products(call) > MOST_PRODUCTS:
        return None
    return call


_found: dict[tuple[Call, int], int] = {}
"""call, threads → bytes: several settings are predicted in one process, and most calls are the same"""


def measure_scratch(calls: Sequence[Call]) -> dict[Call, int]:
    """Return for each call the bytes that its kernel takes and gives back, counted by torch's profiler."""
    threads = torch.get_num_threads()
    unknown = [call for call in calls if (call, threads) not in _found]
    for call, taken in zip(unknown, _measure(unknown), strict=True):
        _found[call, threads] = taken
    return {call: _found[call, threads] for call in calls}


def _measure(calls: Sequence[Call]) -> list[int]:
    if not calls:
        return []
    profiler: Any = torch.autograd.profiler.profile(profile_memory=True, use_kineto=True)
    with torch.no_grad():
        with quiet_stderr():
            profiler.__enter__()
        for number, call in enumerate(calls):
            arguments = [_zeros(item) if isinstance(item, Shape) else _thawed(item) for item in call.arguments]
            with torch.profiler.record_function(f"{MARK}{number}"):
                result = call.function(*arguments)
            del result
        with quiet_stderr():
            profiler.__exit__(None, None, None)
    return _beyond_results(profiler.kineto_results.events(), len(calls))


def _beyond_results(events: Any, count: int) -> list[int]:
    """Return, for each marked stretch, how far its highest sum of allocations was above its last."""
    ordered = sorted(events, key=lambda event: event.start_ns())
    spans = {
        int(event.name().removeprefix(MARK)): (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in ordered
        if event.name().startswith(MARK)
    }
    changes = [(event.start_ns(), event.nbytes()) for event in ordered if event.name() == "[memory]"]
    found = []
    for number in range(count):
        start, end = spans[number]
        running = highest = 0
        for _, change in (item for item in changes if start <= item[0] <= end):
            running += change
            highest = max(highest, running)
        found.append(highest - running)
    return found


def _without_values(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return Shape(tuple(item.shape), tuple(item.stride()), item.dtype)
    return tuple(item) if isinstance(item, list) else item


def _thawed(item: Any) -> Any:
    return list(item) if isinstance(item, tuple) else item


def _zeros(shape: Shape) -> torch.Tensor:
    last = sum((size - 1) * stride for size, stride in zip(shape.sizes, shape.strides, strict=True))
    return torch.zeros(max(last, 0) + 1, dtype=shape.dtype).as_strided(shape.sizes, shape.strides)


def _num_bytes(shape: Shape) -> int:
    return math.prod(shape.sizes) * shape.dtype.itemsize


def _products(call: Call) -> int:
    """Return the multiplications of a product, or an upper bound of a convolution's: input × kernel × channels out."""
    shapes = call.shapes
    if call.function in PRODUCTS:
        return math.prod(shapes[-2].sizes) * shapes[-1].sizes[-1]
    weight = shapes[1 if call.function is _aten.convolution.default else 2]
    return math.prod(shapes[0].sizes) * math.prod(weight.sizes[2:]) * weight.sizes[0]
