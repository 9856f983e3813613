"""The predicted parts of each run's peak beside what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeGuard

from runner.axis import Scale, byte_scale
from runner.compare import UNKNOWN, Row, cell, clean
from runner.report.values import below, size
from runner.units import format_size

PARTS = ("parameters", "buffers", "gradients", "optimizer_state", "activations", "kv_cache", "workspace", "overhead")
"""from the left; overhead last, so that live tensors compare with what comes before it"""
MEASURED = (
    ("peak_allocated", "live tensors", "allocated"),
    ("peak_reserved", "held by the allocator", "reserved"),
    ("process_device", "the process on the device", "process"),
    ("peak_resident", "the process, resident", "process"),
)
"""of a phase's memory: name, words, class"""
KINDS = {"allocated": "live tensors", "reserved": "held by the allocator", "process": "the whole process"}
"""class → words of the legend"""
HIGH, LOW, GAP = 18, 9, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One run's predicted parts and measured peaks, in bytes."""

    row: Row
    parts: tuple[tuple[str, int], ...]
    measured: tuple[tuple[str, str, int], ...]
    """words, class, bytes"""

    @property
    def peak(self) -> int:
        """Sum of the predicted parts."""
        return sum(amount for _, amount in self.parts)


def bar_of(row: Row, record: Mapping[str, Any]) -> Bar | None:
    """Return a run's bar; None where nothing was predicted or measured."""
    footprint = below(record, "plan", "footprint")
    parts = [(name, amount) for name in PARTS if (amount := size(footprint.get(name)))]
    on_host = below(record, "hardware").get("device_type") == "cpu"
    measured = []
    for name, words, kind in MEASURED:
        if name in ("process_device", "peak_resident") and (name == "peak_resident") != on_host:
            continue  # the host's memory says nothing of a prediction for another device
        found = [amount for phase in ("load", "work") if (amount := size(below(record, "memory", phase).get(name)))]
        if found:
            measured.append((words, kind, max(found)))
    return Bar(row=row, parts=tuple(parts), measured=tuple(measured)) if parts or measured else None


def bars(found: Sequence[Bar]) -> str:
    """Return the bars of all runs, drawn to one scale, with each figure in words below its bar."""
    scale = _scale(found)
    return f'<div class="bars">{"".join(_bar(bar, scale) for bar in found)}{_axis(scale)}</div>'


def parts_legend(found: Sequence[Bar]) -> str:
    """Return what the colours of the parts and of the measured bars mean, those that are drawn."""
    drawn = {name for bar in found for name, _ in bar.parts}
    kinds = {kind for bar in found for _, kind, _ in bar.measured}
    marks = [(f"part {name}", name.replace("_", " ")) for name in PARTS if name in drawn]
    marks += [(f"measured {kind}", f"measured: {words}") for kind, words in KINDS.items() if kind in kinds]
    boxes = "".join(
        f'<li><svg width="14" height="14" aria-hidden="true"><rect class="{name}" width="14" height="14"/></svg>'
        f"{escape(words)}</li>"
        for name, words in marks
    )
    line = '<svg width="14" height="14" aria-hidden="true"><line class="budget" x1="7" x2="7" y1="0" y2="14"/></svg>'
    scale = _scale(found)
    budget = f"<li>{line}budget</li>" if any(_is_drawn(bar.row.budget, scale) for bar in found) else ""
    return f'<ul class="legend">{boxes}{budget}</ul>'


def _scale(found: Sequence[Bar]) -> Scale:
    """Return the axis of all bars; a budget far above them is only told in words."""
    highest = max([1, *(bar.peak for bar in found), *(amount for bar in found for _, _, amount in bar.measured)])
    budgets = [bar.row.budget for bar in found if bar.row.budget is not None and bar.row.budget <= 1.6 * highest]
    return byte_scale([highest, *budgets], from_zero=True)


def _is_drawn(budget: int | None, scale: Scale) -> TypeGuard[int]:
    return budget is not None and budget <= scale.high


def _bar(bar: Bar, scale: Scale) -> str:
    height = HIGH + sum(GAP + LOW for _ in bar.measured)
    shapes, at = [], 0
    for name, amount in bar.parts:
        said = f"{name.replace('_', ' ')} {format_size(amount)}"
        shapes.append(_rect(f"part {name}", at, amount, 0, HIGH, scale, f"predicted {said}"))
        at += amount
    shapes.append(f'<rect class="outline" y="0" width="{100 * at / (scale.high - scale.low):.3f}%" height="{HIGH}"/>')
    top = HIGH
    for words, kind, amount in bar.measured:
        top += GAP
        shapes.append(
            _rect(f"measured {kind}", 0, amount, top, LOW, scale, f"measured, {words}: {format_size(amount)}")
        )
        top += LOW
    budget = bar.row.budget
    if _is_drawn(budget, scale):
        x = f"{100 * scale.place(budget):.2f}%"
        shapes += [
            f'<line class="{name}" x1="{x}" x2="{x}" y1="0" y2="{height}"><title>budget</title></line>'
            for name in ("halo", "budget")
        ]
    said = escape(_figures(bar))
    return (
        f'<div class="bar"><p class="name">{escape(name_of(bar.row))}</p>'
        f'<svg width="100%" height="{height}" role="img" aria-label="{escape(name_of(bar.row))}: {said}">'
        f'{"".join(shapes)}</svg><p class="figures">{said}</p></div>'
    )


def name_of(row: Row) -> str:
    """Return the job with what tells it from others."""
    checkpointed = row.checkpointing not in (None, "off")
    words = [row.job, row.precision, f"checkpointing {row.checkpointing}" if checkpointed else None]
    if row.status != "completed":
        words.append(row.status.replace("_", " "))
    return " · ".join(clean(word) for word in words if word)


def _figures(bar: Bar) -> str:
    said = [f"predicted {format_size(bar.peak)}" if bar.parts else "nothing predicted"]
    said += [f"measured {format_size(amount)} ({words})" for words, _, amount in bar.measured]
    if not bar.measured:
        said.append(f"measured {UNKNOWN}")
    if bar.row.error is not None:
        compared = "live tensors" if bar.row.basis == "peak_allocated" else "the process"
        said.append(f"prediction of {compared} in the work {cell('error', bar.row)}".replace(" %", "\u00a0%"))
    if bar.row.budget is not None:
        said.append(f"budget {format_size(bar.row.budget)}")
    return " · ".join(said)


def _rect(name: str, start: int, amount: int, top: int, height: int, scale: Scale, title: str) -> str:
    x, width = 100 * scale.place(start), 100 * amount / (scale.high - scale.low)
    return (
        f'<rect class="{name}" x="{x:.3f}%" y="{top}" width="{width:.3f}%" height="{height}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _axis(scale: Scale) -> str:
    """Return the scale below the bars; every second label may be hidden where room is short."""
    texts = []
    for number, (value, label) in enumerate(scale.ticks):
        x = 100 * scale.place(value)
        anchor = "start" if x < 1 else "end" if x > 99 else "middle"
        often = ' class="often"' if number % 2 else ""
        texts.append(f'<line class="axis" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="5"/>')
        texts.append(f'<text{often} x="{x:.2f}%" y="18" text-anchor="{anchor}">{escape(label)}</text>')
    line = '<line class="axis" x1="0" x2="100%" y1="0.5" y2="0.5"/>'
    return f'<svg class="scale" width="100%" height="22" aria-hidden="true">{line}{"".join(texts)}</svg>'
