"""Draw a run's memory: what was predicted, by category, and what was measured over it."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from runner.axis import Scale, byte_scale
from runner.record import Record
from runner.units import format_size

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 60, 96
STACK = ("overhead", "parameters", "buffers", "optimizer_state", "gradients", "kv_cache", "activations", "workspace")
"""from the bottom up"""
COLOURS = ("#8c8c8c", "#0072b2", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#e69f00", "#d55e00")
"""of Okabe and Ito (2008), which colour-blind readers tell apart"""
STYLE = """
svg{font:12px system-ui,sans-serif;background:#fff;color:#1a1a1a}
text{fill:currentColor} .quiet{fill:#666} .phase{fill:#000;fill-opacity:.05} .axis{stroke:#999;stroke-width:1;fill:none}
.measured{fill:none;stroke:#000;stroke-width:2} .dot{fill:#000}
.budget{stroke:#c00;stroke-width:1.5;stroke-dasharray:6 4}
@media (prefers-color-scheme:dark){svg{background:#161616;color:#eee} .quiet{fill:#aaa} .axis{stroke:#777}
.phase{fill:#fff;fill-opacity:.08} .measured{stroke:#fff} .dot{fill:#fff} .budget{stroke:#ff6b6b}}
"""
PHASES = ("load", "work", "unload")

Point = tuple[float, float]


def memory_picture(record: Record) -> str:
    """Return an SVG of the run's memory over its phases.

    The stacked areas are the predicted live bytes by category, the line is the process's resident size (on an
    accelerator only the prediction is drawn), the dashed line the budget. Phases are drawn equally wide, since the
    prediction knows order and not time.
    """
    predicted = _predicted(record)
    measured = _measured(record)
    budget = record.plan.budget if record.plan else None
    highest = max([1, *(sum(parts.values()) for _, parts in predicted), *(size for _, size in measured)])
    if budget is not None and budget < 2 * highest:
        highest = max(highest, budget)
    scale = byte_scale([highest], from_zero=True)

    def place(x: float, size: float) -> Point:
        return (
            LEFT + x / len(PHASES) * (WIDTH - LEFT - RIGHT),
            TOP + (1 - scale.place(size)) * (HEIGHT - TOP - BOTTOM),
        )

    shapes = [*_shades(scale, place), *_areas(predicted, place), *_line(measured, place)]
    if budget is not None and budget <= scale.high:
        (x0, y), (x1, _) = place(0, budget), place(len(PHASES), budget)
        shapes.append(f'<line class="budget" x1="{x0:.1f}" x2="{x1:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{x1 - 4:.1f}" y="{y - 5:.1f}" text-anchor="end">budget {format_size(budget)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
            f'aria-label="{_title(record)}">',
            f"<title>{_title(record)}</title><style>{STYLE}</style>",
            f'<text x="{LEFT}" y="22" font-size="14">{_title(record)}</text>',
            f'<text class="quiet" x="{LEFT}" y="40">{_subtitle(record, measured)}</text>',
            *shapes,
            *_axes(scale, place),
            *_legend(predicted, bool(measured)),
            "</svg>\n",
        ]
    )


def _title(record: Record) -> str:
    if record.plan is None:
        return escape(f"run {record.run_id}")
    model = record.checkpoint.id or record.checkpoint.path if record.checkpoint else None
    settings = record.plan.settings
    return escape(f"{model}: {settings.workload} in {settings.precision} on {settings.device}", quote=True)


def _subtitle(record: Record, measured: Sequence[tuple[float, int]]) -> str:
    parts = [f"predicted peak {format_size(record.plan.footprint.peak)}"] if record.plan else []
    if measured:
        parts.append(f"measured peak, sampled, {format_size(max(size for _, size in measured))}")
    return escape(" · ".join([*parts, record.status]))


def _predicted(record: Record) -> list[tuple[float, Mapping[str, int]]]:
    """Return (x, category → bytes), x from 0 at the start of load to 2 at the end of work."""
    if record.plan is None:
        return []
    footprint = record.plan.footprint
    timeline = list(footprint.timeline) or [
        (phase, {"parameters": footprint.load_peak}) for phase in (["load"] if footprint.moment == "load" else [])
    ]
    points: list[tuple[float, Mapping[str, int]]] = []
    for number, (_, group) in enumerate(groupby(timeline, key=lambda point: point[0] == "load")):
        moments = list(group)
        besides = footprint.load_overhead if number == 0 else footprint.overhead
        step = 1 / max(1, len(moments))
        for index, (_, parts) in enumerate(moments):
            points.append((number + index * step, {**parts, "overhead": besides}))
        points.append((number + 1.0, points[-1][1]))
    return points


def _measured(record: Record) -> list[tuple[float, int]]:
    """Return (x, resident bytes) on a CPU, each phase's samples spread over its width."""
    if record.plan is None or record.plan.settings.device != "cpu":
        return []
    points: list[tuple[float, int]] = []
    for phase in PHASES:
        samples = [(seconds, size) for seconds, name, size in record.timeline if name == phase]
        if samples:
            begin, length = samples[0][0], max(samples[-1][0] - samples[0][0], 1e-9)
            width = 0.999 if len(samples) > 1 else 0.5
            points += [
                (PHASES.index(phase) + (width if len(samples) == 1 else width * (seconds - begin) / length), size)
                for seconds, size in samples
            ]
    return points


def _areas(points: Sequence[tuple[float, Mapping[str, int]]], place: Any) -> list[str]:
    shapes = []
    below = [0.0] * len(points)
    for name, colour in zip(STACK, COLOURS, strict=True):
        above = [low + parts.get(name, 0) for low, (_, parts) in zip(below, points, strict=True)]
        if above != below:
            outline = [place(x, size) for (x, _), size in zip(points, above, strict=True)]
            outline += [place(x, size) for (x, _), size in reversed(list(zip(points, below, strict=True)))]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline)
            shapes.append(f'<polygon fill="{colour}" fill-opacity="0.85" points="{path}"/>')
        below = above
    return shapes


def _line(points: Sequence[tuple[float, int]], place: Any) -> list[str]:
    placed = [place(x, size) for x, size in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    dots = [f'<circle class="dot" r="2" cx="{x:.1f}" cy="{y:.1f}"/>' for x, y in placed] if len(placed) < 40 else []
    return [f'<polyline class="measured" points="{path}"/>', *dots] if placed else []


def _shades(scale: Scale, place: Any) -> list[str]:
    """Return a shade for every second phase, so that phases are told apart also where nothing was predicted."""
    (x0, y0), (x1, y1) = place(1, scale.high), place(2, 0)
    return [f'<rect class="phase" x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}" height="{y1 - y0:.1f}"/>']


def _axes(scale: Scale, place: Any) -> list[str]:
    (x0, y0), (x1, y1) = place(0, 0), place(len(PHASES), scale.high)
    shapes = [f'<path class="axis" d="M{x0:.1f},{y1:.1f} V{y0:.1f} H{x1:.1f}"/>']
    for value, label in scale.ticks:
        x, y = place(0, value)
        shapes.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        shapes.append(f'<line class="axis" x1="{x - 4:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for number, phase in enumerate(PHASES):
        x, y = place(number + 0.5, 0)
        shapes.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{phase}</text>')
        edge, _ = place(number, 0)
        shapes.append(f'<line class="axis" x1="{edge:.1f}" x2="{edge:.1f}" y1="{y:.1f}" y2="{y + 6:.1f}"/>')
    return shapes


def _legend(points: Sequence[tuple[float, Mapping[str, int]]], measured: bool) -> list[str]:
    drawn = {name for _, parts in points for name, size in parts.items() if size}
    shown = [(name, colour) for name, colour in zip(STACK, COLOURS, strict=True) if name in drawn]
    shapes, x, y = [], LEFT, HEIGHT - 44
    for name, colour in [*shown, *([("measured (resident)", "")] if measured else [])]:
        width = 26 + 7 * len(name)
        if x + width > WIDTH - RIGHT:
            x, y = LEFT, y + 20
        mark = (
            f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
            if colour
            else f'<line class="measured" x1="{x}" x2="{x + 12}" y1="{y - 4}" y2="{y - 4}"/>'
        )
        shapes.append(f'{mark}<text x="{x + 17}" y="{y}">{name.replace("_", " ")}</text>')
        x += width
    return shapes
