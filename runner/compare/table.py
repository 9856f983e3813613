"""Rows as a table of text, as wide as there is room for."""

import io
import math
import sys
from collections.abc import Sequence
from typing import Any

from runner.compare.rows import Row
from runner.units import format_seconds, format_size

UNKNOWN = "–"
WIDTH = 100
"""columns of text where no terminal says how many it has"""
COLUMNS = {
    "job": "job", "model": "model", "workload": "workload", "precision": "precision", "checkpointing": "ckpt",
    "device": "device", "predicted": "predicted", "measured": "measured", "basis": "basis", "error": "error",
    "load_error": "load error", "seconds": "work", "total_seconds": "total", "tokens_per_second": "tokens/s",
    "loss": "loss", "kl": "KL", "top1_agreement": "top-1", "cosine": "cosine", "loss_difference": "Δ loss",
    "status": "status",
}  # fmt: skip
"""field of a row → title of its column"""
SHORT_TITLES = {"precision": "prec"}
WORDS = ("job", "model", "workload", "precision", "checkpointing", "device", "basis", "status")
DISTANCES = {"kl": "logits", "top1_agreement": "logits", "cosine": "embedding", "loss_difference": "losses"}
"""field → outputs that it is the distance of"""
SAID_BY_ONE = ("model", "workload", "device", "checkpointing", "basis")
"""columns that say nothing when all rows that know it have the same"""
FIDELITY = "fidelity"
"""the column that stands for those of DISTANCES where room is short"""
LEFT_OUT_FIRST = (
    "load_error", "total_seconds", "top1_agreement", "basis", "device", "seconds", "loss", "model", "workload", "error",
    "tokens_per_second", FIDELITY,
)  # fmt: skip
"""columns to do without where room is short; the others stay"""
SHORTENED = {"model": 16, "device": 12, "job": 24}
"""most letters of a cell where room is short; the end of a job's name tells more than its begin"""
GAP = 2
"""spaces between two columns"""
STYLES = {"completed": "green", "planned": "dim", "running": "dim", "interrupted": "yellow", "refused": "yellow"}


def table(rows: Sequence[Row], *, width: int = WIDTH) -> str:
    """Return the rows as plain text at most `width` wide, where that is possible, and below it what went wrong.

    Columns that no row knows, or that say the same in all, are left out; where room is short, long names are
    shortened and then columns left out, which a line tells.
    """
    stream = io.StringIO()
    _print(rows, stream, width=width, styled=False)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows: in colours and as wide as the terminal where standard output is one, else as `table` has it."""
    from rich.console import Console

    if sys.stdout.isatty():
        _print(rows, sys.stdout, width=Console().width, styled=True)
    else:
        print(table(rows))


def cell(name: str, row: Row) -> str:
    """Return a field of a row in words, unknown as a dash and a comparison with itself as such."""
    value = getattr(row, name)
    if value is None:
        return (
            "ref."
            if row.reference == row.job and row.compared is not None and DISTANCES.get(name) == row.compared
            else UNKNOWN
        )
    if isinstance(value, float) and not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞"
    if name in ("predicted", "measured", "budget"):
        return format_size(value)
    if name in ("error", "load_error"):
        return f"{100 * value:+.2f} %"
    if name in ("seconds", "total_seconds"):
        return format_seconds(value)
    if name == "tokens_per_second":
        return f"{value:.1f}"
    if name == "loss":
        return f"{value:.4f}"
    if name in ("kl", "loss_difference"):
        return f"{value:.2e}" if value else "0"
    if name in ("top1_agreement", "cosine"):
        return f"{value:.5f}"
    return clean(str(value))


def clean(text: str) -> str:
    """Return `text` on one line and without control characters, which could act on a terminal."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def shown_columns(rows: Sequence[Row]) -> list[str]:
    """Return the fields worth a column: known to a row, and telling some rows from others where they must."""
    return [
        name
        for name in COLUMNS
        if any(getattr(row, name) is not None for row in rows)
        and (name not in SAID_BY_ONE or len({getattr(row, name) for row in rows} - {None}) > 1)
    ]


def _print(rows: Sequence[Row], stream: Any, *, width: int, styled: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    titles, cells, left_out = _fitted(rows, width)
    grid = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold" if styled else "")
    for name, title in titles.items():
        grid.add_column(Text(title), justify="left" if name in WORDS else "right", no_wrap=True)
    for row, line in zip(rows, cells, strict=True):
        style = STYLES.get(row.status, "red")
        texts = [Text(line[name], style=style if name == "status" and styled else "") for name in titles]
        grid.add_row(*texts)
    needed = sum(_width(name, title, cells) + GAP for name, title in titles.items())
    console = Console(
        file=stream, width=max(width, needed), no_color=not styled, force_terminal=styled or None,
        highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    console.print(grid)
    for said in _below(rows, left_out):
        print(said, file=stream)


def _fitted(rows: Sequence[Row], width: int) -> tuple[dict[str, str], list[dict[str, str]], list[str]]:
    """Return field → title of what to show, each row's cells, and the titles that there was no room for.

    Columns go one by one until the rest fits; before that, names are shortened, and distances of several kinds
    share a column.
    """
    titles = {name: COLUMNS[name] for name in shown_columns(rows)}
    cells = [{name: cell(name, row) for name in titles} for row in rows]
    if _fits(titles, cells, width):
        return titles, cells, []
    titles |= {name: short for name, short in SHORT_TITLES.items() if name in titles}
    for line in cells:
        line.update({name: _short(name, line[name]) for name in SHORTENED if name in line})
    if len({DISTANCES[name] for name in titles if name in DISTANCES}) > 1 and not _fits(titles, cells, width):
        titles = _with_one_distance(titles, rows, cells)
    left_out: list[str] = []
    for name in LEFT_OUT_FIRST:
        if _fits(titles, cells, width):
            break
        if name in titles:
            left_out.append(titles.pop(name))
    return titles, cells, left_out


def _with_one_distance(titles: dict[str, str], rows: Sequence[Row], cells: Sequence[dict[str, str]]) -> dict[str, str]:
    """Put the distances of several kinds into one column, before the status, and return the titles."""
    for row, line in zip(rows, cells, strict=True):
        known = [f"{COLUMNS[name]} {line[name]}" for name in DISTANCES if getattr(row, name) is not None]
        line[FIDELITY] = known[0] if known else "ref." if row.reference == row.job else UNKNOWN
    kept = {name: title for name, title in titles.items() if name not in DISTANCES and name != "status"}
    return {**kept, FIDELITY: FIDELITY, "status": titles["status"]}


def _fits(titles: dict[str, str], cells: Sequence[dict[str, str]], width: int) -> bool:
    return sum(_width(name, title, cells) + GAP for name, title in titles.items()) - GAP <= width


def _width(name: str, title: str, cells: Sequence[dict[str, str]]) -> int:
    from rich.cells import cell_len

    return max(cell_len(text) for text in (title, *(line[name] for line in cells)))


def _short(name: str, text: str) -> str:
    most = SHORTENED[name]
    if len(text) <= most:
        return text
    return f"…{text[1 - most :]}" if name == "job" else f"{text[: most - 1]}…"


def _below(rows: Sequence[Row], left_out: Sequence[str]) -> list[str]:
    """Return the lines under the table: what there was no room for, and what went wrong."""
    lines = []
    if left_out:
        lines.append(f"no room for {', '.join(left_out)}; --csv FILE and --html FILE have them")
    return lines + [f"job {clean(row.job)} {clean(row.status)}: {clean(row.message)}" for row in rows if row.message]
