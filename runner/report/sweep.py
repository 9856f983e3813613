"""What a sweep leaves: its rows in three files, what went wrong, and an exit code."""

from dataclasses import dataclass
from pathlib import Path

from runner.compare import Row, collect_with_records, write_csv, write_json
from runner.report.page import write_html

JSON, CSV, HTML = "sweep.json", "sweep.csv", "sweep.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A job that did not complete."""

    job: str
    status: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A sweep in short."""

    rows: tuple[Row, ...]
    troubles: tuple[Trouble, ...]
    exit_code: int
    """the highest of the jobs'"""
    files: tuple[Path, ...]
    """what was written"""


def write_sweep(folder: Path) -> Summary:
    """Write sweep.json, sweep.csv and sweep.html over the records below `folder`, each whole or not at all.

    Raises RequestError when the folder holds no record or a file cannot be written.
    """
    rows, records = collect_with_records([folder])
    files = (folder / JSON, folder / CSV, folder / HTML)
    write_json(rows, files[0])
    write_csv(rows, files[1])
    write_html(rows, records, files[2], title=f"Sweep {'/'.join(folder.resolve().parts[-2:])}")
    troubles = [
        Trouble(job=row.job, status=row.status, message=row.message or "") for row in rows if row.exit_code != 0
    ]
    return Summary(
        rows=tuple(rows),
        troubles=tuple(troubles),
        exit_code=max((row.exit_code for row in rows), default=0),
        files=files,
    )
