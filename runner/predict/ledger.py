"""The book of live bytes: what was allocated when, what it turned out to be, and how high the sum was.

Labels may change as long as the trace runs (a tensor is known to be an activation only when the backward pass
starts), so the book keeps events and answers afterwards. Sizes are bytes.
"""

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

CATEGORIES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer_state",
    "activations",
    "kv_cache",
    "workspace",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The highest point of one stretch of a trace: the time spent in one phase and one module."""

    phase: str
    """load, forward, prefill, decode, backward or optimizer_step"""
    module: str
    """dotted path of the innermost module at work; empty outside of the model"""
    total: int
    by_category: Mapping[str, int]
    """category → live bytes; they sum up to total"""
    operation: str = ""
    """torch's name of the operation whose result made it the highest"""


@dataclass(slots=True)
class Ledger:
    """Live storages by number. `granularity` is what the allocator rounds each size up to, in bytes."""

    granularity: int = 1
    total: int = 0
    peak: int = 0
    phase: str = "load"
    module: str = ""
    operation: object = ""
    """what is being computed; its text is its name"""
    _sizes: list[int] = field(default_factory=list)
    _labels: list[str] = field(default_factory=list)
    _events: list[tuple[int, int]] = field(default_factory=list)
    """(number of the storage, change in bytes), in order"""
    _stretches: list[tuple[int, str, str]] = field(default_factory=list)
    """(number of events before it, phase, module)"""
    _operations: list[object] = field(default_factory=list)
    """what was being computed at each event"""
    _peak_event: int = 0
    """number of events up to the highest moment"""

    def born(self, num_bytes: int, label: str = "workspace") -> int:
        """Book a new storage and return its number."""
        number = len(self._sizes)
        self._sizes.append(0)
        self._labels.append(label)
        self.resized(number, num_bytes)
        return number

    def died(self, number: int) -> None:
        """Book that a storage was given back."""
        self.resized(number, 0)

    def resized(self, number: int, num_bytes: int) -> None:
        """Book the new size of a storage."""
        rounded = -(-num_bytes // self.granularity) * self.granularity
        change = rounded - self._sizes[number]
        if change == 0:
            return
        self._sizes[number] = rounded
        self._book(number, change)

    def passing(self, num_bytes: int) -> int:
        """Book a storage that is given back at once, maybe of no size yet, and return where `fill` finds it."""
        number, place = len(self._sizes), len(self._events)
        self._sizes.append(0)
        self._labels.append("workspace")
        rounded = -(-num_bytes // self.granularity) * self.granularity
        self._book(number, rounded)
        self._book(number, -rounded)
        return place

    def fill(self, sizes: Mapping[int, int]) -> None:
        """Book other sizes at places that `passing` gave, and find the highest moment again."""
        for place, num_bytes in sizes.items():
            number, _ = self._events[place]
            rounded = -(-num_bytes // self.granularity) * self.granularity
            self._events[place], self._events[place + 1] = (number, rounded), (number, -rounded)
        total = self.peak = self._peak_event = 0
        for index, (_, change) in enumerate(self._events):
            total += change
            if total > self.peak:
                self.peak, self._peak_event = total, index + 1

    def _book(self, number: int, change: int) -> None:
        if not self._stretches or self._stretches[-1][1:] != (self.phase, self.module):
            self._stretches.append((len(self._events), self.phase, self.module))
        self._events.append((number, change))
        self._operations.append(self.operation)
        self.total += change
        if self.total > self.peak:
            self.peak, self._peak_event = self.total, len(self._events)

    def relabel(self, number: int, label: str) -> None:
        """Say what a storage turned out to be, for all of its life."""
        self._labels[number] = label

    def label(self, number: int) -> str:
        """Return what a storage is taken for at present."""
        return self._labels[number]

    def size(self, number: int) -> int:
        """Return the present size of a storage; 0 when it was given back."""
        return self._sizes[number]

    def course(self) -> Iterator[tuple[int, int]]:
        """Yield (number of the storage, its size from then on) in order of time; 0 when it was given back."""
        sizes = [0] * len(self._sizes)
        for number, change in self._events:
            sizes[number] += change
            yield number, sizes[number]

    def at_peak(self) -> Moment:
        """Return the highest moment of all, by category."""
        by_category = dict.fromkeys(CATEGORIES, 0)
        for number, change in self._events[: self._peak_event]:
            by_category[self._labels[number]] += change
        if self._peak_event == 0:
            return Moment(phase="load", module="", total=0, by_category=by_category)
        last = bisect.bisect_left(self._stretches, self._peak_event, key=lambda stretch: stretch[0]) - 1
        _, phase, module = self._stretches[last]
        operation = str(self._operations[self._peak_event - 1])
        return Moment(phase=phase, module=module, total=self.peak, by_category=by_category, operation=operation)

    def timeline(self) -> tuple[Moment, ...]:
        """Return the highest moment of each stretch, in order of time."""
        moments: list[Moment] = []
        running, total = dict.fromkeys(CATEGORIES, 0), 0
        ends = [start for start, _, _ in self._stretches[1:]] + [len(self._events)]
        for (start, phase, module), end in zip(self._stretches, ends, strict=True):
            highest, at_highest = total, dict(running)
            for number, change in self._events[start:end]:
                running[self._labels[number]] += change
                total += change
                if total > highest:
                    highest, at_highest = total, dict(running)
            moments.append(Moment(phase=phase, module=module, total=highest, by_category=at_highest))
        return tuple(moments)
