"""Read records and set them side by side: a table, CSV and JSON. It needs nothing but the records.

python -m runner.compare DIR… [--csv FILE] [--json FILE]
"""

import argparse
import csv
import dataclasses
import io
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import RequestError, RunnerError
from runner.fidelity import fidelities
from runner.record import RECORD, read_record
from runner.units import format_seconds, format_size

UNKNOWN = "–"
EXIT_CODES = {"completed": 0, "refused": 3, "out_of_memory": 4, "failed": 5, "killed": 5, "interrupted": 130}
REQUEST_ERRORS = ("RequestError", "CheckpointError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run in the table. Sizes are bytes, times seconds; None is unknown."""

    job: str
    """the run's folder below the one that was asked for"""
    status: str
    model: str | None = None
    workload: str | None = None
    precision: str | None = None
    checkpointing: str | None = None
    """off, all, or how many layers of how many"""
    device: str | None = None
    predicted: int | None = None
    """peak of the work as it compares with `measured`"""
    measured: int | None = None
    basis: str | None = None
    """what was measured: peak_allocated or peak_resident"""
    error: float | None = None
    """of the prediction, relative and signed"""
    seconds: float | None = None
    """of the work"""
    tokens_per_second: float | None = None
    loss: float | None = None
    """of the last step, or the prompt's negative log likelihood"""
    kl: float | None = None
    """of the next-token distributions from the highest precision's on the same inputs, in nats"""
    top1_agreement: float | None = None
    cosine: float | None = None
    """of the embedding with the highest precision's"""
    loss_difference: float | None = None
    """largest of the steps, from the highest precision's"""
    message: str | None = None
    """why it did not complete"""
    exit_code: int = 0
    record: str = ""
    """path of record.json"""


def collect(folders: Sequence[Path]) -> list[Row]:
    """Return a row for each record below `folders`, in the order of their names.

    A record that cannot be read is a row too. Raises RequestError for a folder that is missing or holds no record.
    """
    rows: list[Row] = []
    for folder in folders:
        if not folder.exists():
            raise RequestError(f"{folder} does not exist; give a folder with runs, such as outputs")
        found = [folder] if folder.is_file() else sorted(folder.rglob(RECORD), key=_natural)
        if not found:
            raise RequestError(f"there is no {RECORD} below {folder}; give a folder with runs, such as outputs")
        rows += [_row(path, folder) for path in found]
    return _with_fidelity(rows)


def _with_fidelity(rows: list[Row]) -> list[Row]:
    """Add how far each run's outputs are from those of the highest precision among the rows."""
    readable = [
        (row.record, Path(row.record), read_record(Path(row.record))) for row in rows if row.status == "completed"
    ]
    found = fidelities(readable)
    names = ("kl", "top1_agreement", "cosine", "loss_difference")
    return [
        dataclasses.replace(row, **{name: getattr(found[row.record], name) for name in names})
        if row.record in found
        else row
        for row in rows
    ]


def _natural(path: Path) -> list[Any]:
    """Order job 10 after job 9."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in path.parts]


def _row(path: Path, folder: Path) -> Row:
    job = str(path.parent.relative_to(folder)) if path != folder else path.parent.name
    job = folder.name if job == "." else job
    try:
        values = read_record(path)
        return _from_record(values, job=job, path=path)
    except (RunnerError, KeyError, TypeError, AttributeError) as error:
        return Row(job=job, status="unreadable", message=str(error), exit_code=5, record=str(path))


def _from_record(values: dict[str, Any], *, job: str, path: Path) -> Row:
    plan, outcome = values["plan"] or {}, values["outcome"] or {}
    checkpoint, hardware = values["checkpoint"] or {}, values["hardware"] or {}
    error = values["error"] or {}
    basis = values["prediction_error"]["basis"]
    predicted, measured = _peaks(values, basis)
    losses = outcome.get("losses") or []
    likelihood = (outcome.get("details") or {}).get("negative_log_likelihood")
    return Row(
        job=job,
        status=values["status"],
        model=checkpoint.get("id") or (Path(checkpoint["path"]).name if checkpoint.get("path") else None),
        workload=(plan.get("settings") or {}).get("workload"),
        precision=plan.get("precision"),
        checkpointing=_checkpointing(plan),
        device=hardware.get("name"),
        predicted=predicted,
        measured=measured,
        basis=basis,
        error=values["prediction_error"]["work"],
        seconds=values["timing"].get("work"),
        tokens_per_second=outcome.get("tokens_per_second"),
        loss=losses[-1] if losses else likelihood,
        message=error.get("message"),
        exit_code=2 if error.get("type") in REQUEST_ERRORS else EXIT_CODES.get(values["status"], 5),
        record=str(path),
    )


def _peaks(values: dict[str, Any], basis: str | None) -> tuple[int | None, int | None]:
    """Return the predicted and the measured peak of the work; without a measurement the plan's whole peak."""
    footprint = (values["plan"] or {}).get("footprint") or {}
    work = (values["memory"] or {}).get("work") or {}
    if basis == "peak_allocated":
        return footprint.get("work_peak"), work.get(basis)
    return footprint.get("peak"), work.get("peak_resident")


def _checkpointing(plan: dict[str, Any]) -> str | None:
    found = plan.get("activation_checkpointing")
    if found is None:
        return None
    if not found["value"]:
        return "off"
    return "all" if found["num_layers"] == found["of"] else f"{found['num_layers']}/{found['of']}"


COLUMNS: tuple[tuple[str, str], ...] = (
    ("job", "job"), ("model", "model"), ("workload", "workload"), ("precision", "precision"),
    ("checkpointing", "ckpt"), ("device", "device"), ("predicted", "predicted"), ("measured", "measured"),
    ("error", "error"), ("seconds", "work"), ("tokens_per_second", "tokens/s"), ("loss", "loss"),
    ("kl", "KL"), ("top1_agreement", "top-1"), ("cosine", "cosine"), ("loss_difference", "Δ loss"),
    ("status", "status"),
)  # fmt: skip
SHOWN_WHEN_DIFFERENT = (
    "model", "workload", "device", "checkpointing", "kl", "top1_agreement", "cosine", "loss_difference",
)  # fmt: skip
"""columns that say nothing when all rows have the same; those that no row knows are left out too"""


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, columns that are the same everywhere left out, and below it what went wrong."""
    from rich.console import Console
    from rich.table import Table

    columns = [
        (name, title) for name, title in COLUMNS
        if (name not in SHOWN_WHEN_DIFFERENT or len({getattr(row, name) for row in rows}) > 1)
        and any(getattr(row, name) is not None for row in rows)
    ]  # fmt: skip
    grid = Table(box=None, pad_edge=False)
    for name, title in columns:
        numbers = name not in ("job", "model", "workload", "precision", "checkpointing", "device", "status")
        grid.add_column(title, justify="right" if numbers else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        grid.add_row(*(_cell(name, getattr(row, name)) for name, _ in columns))
    stream = io.StringIO()
    Console(file=stream, width=200, no_color=True, highlight=False, markup=False).print(grid)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    wrong = [f"job {row.job} {row.status}: {row.message}" for row in rows if row.message]
    return "\n".join([*lines, *wrong])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return UNKNOWN
    if name in ("predicted", "measured"):
        return format_size(value)
    if name == "error":
        return f"{100 * value:+.2f} %"
    if name == "seconds":
        return format_seconds(value)
    if name == "tokens_per_second":
        return f"{value:.1f}"
    if name == "loss" and isinstance(value, float):
        return f"{value:.4f}"
    if name in ("kl", "loss_difference"):
        return f"{value:.2e}"
    if name in ("top1_agreement", "cosine"):
        return f"{value:.5f}"
    return str(value)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows with all fields; sizes in bytes, times in seconds, unknown empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [item.name for item in dataclasses.fields(Row)])
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)
    _write(path, stream.getvalue())


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as a list under `rows`, with the version of this schema."""
    values = {"schema_version": 1, "rows": [dataclasses.asdict(row) for row in rows]}
    _write(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def write_sweep(folder: Path) -> list[Row]:
    """Write sweep.csv and sweep.json over the jobs of a sweep, and return their rows."""
    rows = collect([folder])
    write_csv(rows, folder / "sweep.csv")
    write_json(rows, folder / "sweep.json")
    return rows


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from None
    with open(descriptor, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.chmod(name, 0o644)
    os.replace(name, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m runner.compare", description="Set the records of runs side by side."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="runs are looked for below it")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows as CSV")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    given = parser.parse_args(arguments)
    try:
        rows = collect(given.folders)
        if given.csv:
            write_csv(rows, given.csv)
        if given.json:
            write_json(rows, given.json)
    except RunnerError as error:
        print(f"runner: {error.message}", file=sys.stderr)
        return error.exit_code
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
