"""One self-contained page: the table, what went wrong, and pictures. It loads nothing and runs one small script."""

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from runner.axis import byte_scale, log_scale, number_scale
from runner.compare import COLUMNS, UNKNOWN, WORDS, Row, cell, clean, shown_columns, write_asked
from runner.picture import COLOURS, STACK
from runner.report.bars import bar_of, bars, name_of, parts_legend
from runner.report.scatter import SHAPES, Point, mark, scatter
from runner.report.timelines import timeline, timeline_legend, timeline_of

HERE = Path(__file__).parent
MOST_TIMELINES = 60
MEMORY = "peak of the work, measured (predicted where it was not)"
DISTANCES = (
    ("kl", "KL from the reference, nats", "next-token distributions"),
    ("cosine", "1 − cosine with the reference", "embeddings"),
    ("loss_difference", "largest difference of losses", "training losses"),
)  # fmt: skip
"""field of a row, title of its axis, what is compared"""


def write_html(
    rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]], path: Path, *, title: str = "Runs side by side"
) -> None:
    """Write the page over `rows`, whole or not at all; `records` has their records by Row.record.

    A row without a record is in the table and in no picture. Raises RequestError when the file cannot be written.
    """
    write_asked(path, page(rows, records, title=title))


def page(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]], *, title: str) -> str:
    """Return the page's HTML. All that comes from records is escaped, and only the page's own script may run."""
    style = (HERE / "page.css").read_text(encoding="utf-8").replace("/* parts */", _part_colours())
    script = (HERE / "page.js").read_text(encoding="utf-8")
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hashed}'"
    name = escape(clean(title))
    body = [
        _header(rows, name), _troubles(rows), _table(rows), *_speeds(rows), *_fidelity(rows), _bars(rows, records),
        _timelines(rows, records), _commands(rows, records),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{name}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _part_colours() -> str:
    return "".join(f".part.{name}{{fill:{colour}}}" for name, colour in zip(STACK, COLOURS, strict=True))


def _header(rows: Sequence[Row], name: str) -> str:
    counts = Counter(clean(row.status) for row in rows)
    said = [f"{len(rows)} run{'' if len(rows) == 1 else 's'}"]
    said += [f"{number} {status.replace('_', ' ')}" for status, number in counts.most_common()]
    facts = [
        (title, sorted({clean(value) for row in rows if (value := getattr(row, field)) is not None}))
        for title, field in (("model", "model"), ("workload", "workload"), ("device", "device"))
    ]
    told = "".join(
        f"<div><dt>{title}{'' if len(values) == 1 else 's'}</dt><dd>{escape(', '.join(values))}</dd></div>"
        for title, values in facts
        if values
    )
    return f"<header><h1>{name}</h1><p>{escape(' · '.join(said))}</p><dl>{told}</dl></header>"


def _troubles(rows: Sequence[Row]) -> str:
    items = "".join(
        f'<li><span class="status {escape(_kind(row))}">{escape(clean(row.status).replace("_", " "))}</span> '
        f"<b>job {escape(clean(row.job))}</b> {escape(clean(row.message or 'no reason recorded'))}</li>"
        for row in rows
        if row.exit_code != 0
    )
    return f'<section><h2>What went wrong</h2><ul class="troubles">{items}</ul></section>' if items else ""


def _kind(row: Row) -> str:
    if row.status == "completed":
        return "good"
    return "warned" if row.status in ("refused", "interrupted", "planned", "running") else "bad"


def _table(rows: Sequence[Row]) -> str:
    """Return the table; cells carry their plain value to sort by. What all runs share is in the header."""
    names = ["job", "status", *(name for name in shown_columns(rows) if name not in ("job", "status"))]
    heads = "".join(
        f'<th scope="col" class="{"words" if name in WORDS else "number"}">{escape(COLUMNS[name])}</th>'
        for name in names
    )
    lines = "".join(f"<tr>{''.join(_cell(name, row) for name in names)}</tr>\n" for row in rows)
    return (
        '<section><h2>Runs</h2><div class="scroll" role="region" aria-label="table of runs" tabindex="0">'
        f'<table class="sortable"><thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}</tbody></table></div>'
        f'<p class="note">{UNKNOWN} is unknown. predicted and measured: the peak of the work, of the whole process '
        "(peak_resident) or, where they are counted, of live tensors (peak_allocated). error: (predicted − measured) / "
        "measured. KL, top-1, cosine, Δ loss: how far outputs are from those of the reference (ref.), the run of the "
        "highest precision on the same inputs and seed.</p></section>"
    )


def _cell(name: str, row: Row) -> str:
    value = getattr(row, name)
    said = escape(cell(name, row))
    if name == "job":
        return f'<th scope="row" data-value="{said}">{said}</th>'
    if name == "status":
        said = f'<span class="status {_kind(row)}">{said.replace("_", " ")}</span>'
    plain = "" if value is None else str(value) if isinstance(value, (int, float)) else clean(str(value))
    kind = "words" if name in WORDS else "number"
    return f'<td class="{kind}{" unknown" if value is None else ""}" data-value="{escape(plain)}">{said}</td>'


def _speeds(rows: Sequence[Row]) -> list[str]:
    """Return a figure for each workload, since a token costs another amount of work in each."""
    workloads = dict.fromkeys(row.workload for row in rows if row.workload is not None)
    figures = (_speed(workload, [row for row in rows if row.workload == workload]) for workload in workloads)
    return [figure for figure in figures if figure]


def _speed(workload: str, rows: Sequence[Row]) -> str:
    """Return memory against tokens per second, or against the work's seconds where no run counts tokens."""
    field = "tokens_per_second" if any(row.tokens_per_second for row in rows) else "seconds"
    title = "tokens per second" if field == "tokens_per_second" else "seconds of work, fewer are better"
    completed = [row for row in rows if row.status == "completed"]
    points = _points([(row, value) for row in completed if (value := getattr(row, field)) is not None])
    if len(points) < 2:
        return ""
    values = [point.y for point in points]
    wide = min(values) > 0 and max(values) > 50 * min(values)
    return _figure(
        f"Memory against speed: {clean(workload)}",
        scatter(
            points,
            across=byte_scale([point.x for point in points]),
            up=log_scale(values) if wide else number_scale(values),
            x_title=MEMORY,
            y_title=title,
            title=f"memory against {title}, {len(points)} runs of {workload}",
        ),
        _shapes_legend(points),
    )


def _fidelity(rows: Sequence[Row]) -> list[str]:
    """Return a figure for each kind of outputs that was compared."""
    figures = []
    for field, axis, what in DISTANCES:
        known = [(row, value) for row in rows if (value := _distance(field, row)) is not None]
        points = _points(known)
        if len(points) < 2:
            continue
        figures.append(
            _figure(
                f"Memory against fidelity of {what}",
                scatter(
                    points,
                    across=byte_scale([point.x for point in points]),
                    up=log_scale([point.y for point in points]),
                    x_title=MEMORY,
                    y_title=axis,
                    title=f"memory against {axis}, {len(points)} runs",
                ),
                _shapes_legend(points) + '<p class="note">Lower is closer to the reference, which is at 0.</p>',
            )
        )
    return figures


def _distance(field: str, row: Row) -> float | None:
    """Return how far a run is from its reference, 0 for the reference itself."""
    kinds = {"kl": "logits", "cosine": "embedding", "loss_difference": "losses"}
    if row.compared != kinds[field]:
        return None
    if row.reference == row.job:
        return 0.0
    value: float | None = getattr(row, field)
    if value is not None and field == "cosine":
        return max(0.0, 1 - value) if not math.isnan(value) else value
    return value


def _points(values: Sequence[tuple[Row, float]]) -> list[Point]:
    """Return a point for each value whose run's memory is known."""
    found = []
    for row, value in values:
        memory = row.measured if row.measured is not None else row.predicted
        if memory is not None and math.isfinite(value):
            said = ", ".join(
                f"{COLUMNS[name]} {cell(name, row)}"
                for name in ("model", "measured", "predicted", "tokens_per_second", "seconds", "kl", "cosine")
                if getattr(row, name) is not None
            )
            found.append(
                Point(
                    x=memory, y=value, label=clean(row.job)[-18:], title=f"{name_of(row)}: {said}",
                    precision=row.precision, hollow=row.checkpointing not in (None, "off"),
                )
            )  # fmt: skip
    return found


def _shapes_legend(points: Sequence[Point]) -> str:
    """Return what shape and filling mean, those that are drawn."""
    there = {point.precision or "unknown" for point in points}
    kinds = [kind for kind in (*SHAPES, "unknown") if kind in there]
    shown = [(Point(x=0, y=0, label="", title=kind, precision=kind), kind) for kind in kinds]
    if any(point.hollow for point in points):
        shown.append((Point(x=0, y=0, label="", title="hollow", hollow=True), "hollow: activation checkpointing"))
    items = "".join(
        f'<li><svg width="16" height="16" aria-hidden="true">{mark(point, 8, 8)}</svg>{escape(words)}</li>'
        for point, words in shown
    )
    return f'<ul class="legend">{items}</ul>'


def _figure(title: str, picture: str, below: str) -> str:
    drawn = f"<figure>{picture}<figcaption>{below}</figcaption></figure>"
    return f'<section class="half"><h2>{escape(title)}</h2>{drawn}</section>'


def _bars(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> str:
    found = [bar for row in rows if (bar := bar_of(row, records.get(row.record, {}))) is not None]
    if not found:
        return ""
    return (
        f"<section><h2>Predicted parts beside the measured peak</h2>{parts_legend(found)}{bars(found)}"
        '<p class="note">The upper bar is the prediction at its highest moment. Live tensors compare with what comes '
        "before the overhead, the process with all of it. A run that did not complete was measured as far as it came."
        "</p></section>"
    )


def _timelines(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> str:
    found = [line for row in rows if (line := timeline_of(row, records.get(row.record, {}))) is not None]
    if not found:
        return ""
    drawn = found[:MOST_TIMELINES]
    left = len(found) - len(drawn)
    note = f'<p class="note">{left} more runs are not drawn; each has its memory.svg.</p>' if left else ""
    return (
        f"<section><h2>Memory over time</h2>{timeline_legend(drawn)}"
        f'<div class="cards">{"".join(timeline(line) for line in drawn)}</div>{note}'
        '<p class="note">Resident bytes of the worker process, sampled. On an accelerator that is the host’s side, '
        "of which nothing was predicted.</p></section>"
    )


def _commands(rows: Sequence[Row], records: Mapping[str, Mapping[str, Any]]) -> str:
    items = "".join(
        f"<dt>{escape(name_of(row))}</dt><dd><code>{escape(clean(str(command)))}</code></dd>"
        for row in rows
        if (command := records.get(row.record, {}).get("reproduce"))
    )
    return f"<details><summary>Commands that repeat these runs</summary><dl>{items}</dl></details>" if items else ""
