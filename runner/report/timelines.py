"""The memory of each run over time, one small chart a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from runner.axis import Scale, byte_scale, number_scale
from runner.compare import Row
from runner.report.bars import name_of
from runner.report.values import below, samples, size
from runner.units import format_seconds, format_size

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 60, 10, 8, 36
MOST_POINTS = 150
"""drawn of a run; of neighbours the one with the largest memory"""
PHASES = ("load", "work", "unload")

Samples = Sequence[tuple[float, str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One run's resident bytes over its seconds; the prediction only where it is of the same memory."""

    row: Row
    samples: tuple[tuple[float, str, int], ...]
    predicted: int | None
    budget: int | None
    on_host: bool

    @property
    def lines(self) -> list[tuple[str, int]]:
        """Levels to draw, by name; a budget far above the run is left out."""
        highest = max([self.predicted or 0, *(amount for _, _, amount in self.samples)])
        near = self.budget is not None and self.budget <= 1.6 * highest
        known = (("predicted", self.predicted), ("budget", self.budget if near else None))
        return [(name, amount) for name, amount in known if amount is not None]


def timeline_of(row: Row, record: Mapping[str, Any]) -> Timeline | None:
    """Return a run's timeline; None where it has less than two samples."""
    found = samples(record)
    on_host = below(record, "hardware").get("device_type") == "cpu"
    if len(found) < 2:
        return None
    return Timeline(
        row=row,
        samples=tuple(_thin(found)),
        predicted=size(below(record, "plan", "footprint").get("peak")) if on_host else None,
        budget=row.budget if on_host else None,
        on_host=on_host,
    )


def timeline(found: Timeline) -> str:
    """Return a figure with the run's resident bytes over time, phases shaded, prediction and budget as lines."""
    highest = max(size for _, _, size in found.samples)
    up = byte_scale([highest, *(amount for _, amount in found.lines)], from_zero=True)
    across = number_scale([found.samples[-1][0]], from_zero=True)
    across = Scale(0.0, max(found.samples[-1][0], 1e-3), across.ticks)
    points = " ".join(f"{_x(across, seconds):.1f},{_y(up, size):.1f}" for seconds, _, size in found.samples)
    where = "" if found.on_host else " (on the host)"
    said = f"{name_of(found.row)}: resident{where} at most {format_size(highest)} in {format_seconds(across.high)}"
    return (
        f'<figure class="small"><figcaption>{escape(name_of(found.row))}{escape(where)}</figcaption>'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">'
        f"<title>{escape(said)}</title>{''.join(_phases(found.samples, across))}{''.join(_axes(across, up))}"
        f'<polyline class="resident" points="{points}"/>{"".join(_lines(found.lines, up))}</svg></figure>'
    )


def timeline_legend(found: Sequence[Timeline]) -> str:
    """Return what the lines and shades mean."""

    def line(name: str) -> str:
        return (
            f'<svg width="22" height="14" aria-hidden="true"><line class="{name}" x1="0" x2="22" y1="7" y2="7"/></svg>'
        )

    there = {phase for item in found for _, phase, _ in item.samples}
    shades = "".join(
        f'<li><svg width="14" height="14" aria-hidden="true"><rect class="phase {phase}" width="14" height="14"/></svg>'
        f"{phase}</li>"
        for phase in PHASES
        if phase in there
    )
    levels = {name for item in found for name, _ in item.lines}
    drawn = [("resident", "resident"), ("predicted", "predicted peak"), ("budget", "budget")]
    lines = "".join(f"<li>{line(name)}{words}</li>" for name, words in drawn if name == "resident" or name in levels)
    return f'<ul class="legend">{lines}{shades}</ul>'


def _thin(found: Samples) -> list[tuple[float, str, int]]:
    """Keep first, last, and of each group of neighbours in one phase the largest."""
    if len(found) <= MOST_POINTS:
        return list(found)
    width = -(-len(found) // MOST_POINTS)
    kept = [found[0]]
    for _, phase in groupby(found[1:-1], key=lambda sample: sample[1]):
        inside = list(phase)
        groups = (inside[start : start + width] for start in range(0, len(inside), width))
        kept += [max(group, key=lambda sample: sample[2]) for group in groups]
    return [*kept, found[-1]]


def _phases(found: Samples, across: Scale) -> list[str]:
    """Return a shade for each phase, from its first sample to the next phase's, named where there is room."""
    starts = [(name, next(iter(group))[0]) for name, group in groupby(found, key=lambda sample: sample[1])]
    ends = [start for _, start in starts[1:]] + [across.high]
    shapes = []
    for (name, start), end in zip(starts, ends, strict=True):
        left, right = _x(across, start), _x(across, end)
        kind = f"phase {name}" if name in PHASES else "phase"
        shapes.append(
            f'<rect class="{kind}" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(name)}, {format_seconds(end - start)}</title></rect>'
        )
        if right - left > 7 * len(name) + 6:
            x, y = left + 4, HEIGHT - BOTTOM - 5
            shapes.append(f'<text class="quiet" x="{x:.1f}" y="{y}">{escape(name)}</text>')
    return shapes


def _axes(across: Scale, up: Scale) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    shapes = []
    step = 2 if len(up.ticks) > 5 else 1
    for value, label in up.ticks[::step]:
        y = _y(up, value)
        shapes.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
    inside = [(value, label) for value, label in across.ticks if value <= across.high]
    for value, label in inside:
        shapes.append(
            f'<text x="{_x(across, value):.1f}" y="{bottom + 15}" text-anchor="middle">{escape(label)}</text>'
        )
    shapes.append(f'<text class="quiet" x="{right}" y="{HEIGHT - 4}" text-anchor="end">seconds</text>')
    shapes.append(f'<path class="axis" d="M{LEFT},{TOP} V{bottom} H{right}"/>')
    return shapes


def _lines(drawn: Sequence[tuple[str, int]], up: Scale) -> list[str]:
    return [
        f'<line class="{name}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(up, value):.1f}" y2="{_y(up, value):.1f}">'
        f"<title>{name} {format_size(value)}</title></line>"
        for name, value in drawn
    ]


def _x(across: Scale, value: float) -> float:
    return LEFT + across.place(value) * (WIDTH - LEFT - RIGHT)


def _y(up: Scale, value: float) -> float:
    return TOP + (1 - up.place(value)) * (HEIGHT - TOP - BOTTOM)
