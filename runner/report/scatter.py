"""Runs as points: memory across, something else up."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from runner.axis import Scale

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 66, 24, 14, 56
MOST_LABELS = 40
"""with more points their names are only in their titles"""
LETTER = 6.4
"""width of a letter of a label"""
SHAPES = {"fp32": "circle", "bf16": "square", "fp16": "triangle"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run."""

    x: float
    y: float
    label: str
    title: str
    """all of it in words"""
    precision: str | None = None
    hollow: bool = False


def scatter(points: Sequence[Point], *, across: Scale, up: Scale, x_title: str, y_title: str, title: str) -> str:
    """Return an SVG of the points; the shape and the colour tell the precision, hollow tells `hollow`."""
    placed = [(point, _x(across.place(point.x)), _y(up.place(point.y))) for point in points]
    return "".join(
        [
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            *_axes(across, up),
            f'<text class="quiet" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{escape(x_title)}</text>",
            f'<text class="quiet" transform="translate(13,{(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
            f'text-anchor="middle">{escape(y_title)}</text>',
            *(mark(point, x, y) for point, x, y in placed),
            *(_labels(placed) if len(placed) <= MOST_LABELS else []),
            "</svg>",
        ]
    )


def mark(point: Point, x: float, y: float) -> str:
    """Return a point's shape with its title."""
    name = f"p-{point.precision}" if point.precision in SHAPES else "p-other"
    shape = SHAPES.get(point.precision or "", "circle")
    if shape == "circle":
        drawn = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5">'
    elif shape == "square":
        drawn = f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10">'
    else:
        drawn = f'<path d="M{x:.1f},{y - 6.5:.1f} l6.2,11 h-12.4 z">'
    tag = drawn[1:].split()[0]
    return (
        f'<g class="{name}{" hollow" if point.hollow else ""}">{drawn}<title>{escape(point.title)}</title></{tag}></g>'
    )


def _axes(across: Scale, up: Scale) -> list[str]:
    left, right, top, bottom = _x(0), _x(1), _y(1), _y(0)
    shapes = []
    for value, label in up.ticks:
        y = _y(up.place(value))
        shapes.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        baseline = y if y == bottom else y + 4  # the lowest clear of the labels below
        shapes.append(f'<text x="{left - 6}" y="{baseline:.1f}" text-anchor="end">{escape(label)}</text>')
    for value, label in across.ticks:
        x = _x(across.place(value))
        shapes.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        shapes.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{escape(label)}</text>')
    shapes.append(f'<path class="axis" d="M{left},{top} V{bottom} H{right}"/>')
    return shapes


def _labels(placed: Sequence[tuple[Point, float, float]]) -> list[str]:
    """Return each point's name beside it, where it covers no other point and no other name; else none."""
    taken = [(x - 7, y - 7, x + 7, y + 7) for _, x, y in placed]
    texts = []
    for point, x, y in placed:
        width = LETTER * len(point.label)
        for left, baseline in (
            (x + 9, y + 4), (x - 9 - width, y + 4), (x - width / 2, y - 11), (x - width / 2, y + 19),
            (x + 7, y - 8), (x + 7, y + 16), (x - 7 - width, y - 8), (x - 7 - width, y + 16),
        ):  # fmt: skip
            box = (left, baseline - 9, left + width, baseline + 2)
            inside = left >= LEFT and left + width <= WIDTH and baseline - 9 >= 0 and baseline <= HEIGHT - BOTTOM
            if inside and not any(_meet(box, other) for other in taken):
                taken.append(box)
                texts.append(f'<text class="label" x="{left:.1f}" y="{baseline:.1f}">{escape(point.label)}</text>')
                break
    return texts


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _x(part: float) -> float:
    return LEFT + part * (WIDTH - LEFT - RIGHT)


def _y(part: float) -> float:
    return TOP + (1 - part) * (HEIGHT - TOP - BOTTOM)
