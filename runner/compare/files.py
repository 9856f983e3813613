"""Rows as CSV and JSON, each file whole or not at all."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.compare.rows import Row
from runner.errors import RequestError
from runner.files import write_whole

SCHEMA_VERSION = 1


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows with all fields; sizes in bytes, times in seconds, unknown empty.

    Raises RequestError when the file cannot be written.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [item.name for item in dataclasses.fields(Row)])
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)
    write_asked(path, stream.getvalue())


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as a list under `rows`, with the version of this schema; infinities as words.

    Raises RequestError when the file cannot be written.
    """
    values = {"schema_version": SCHEMA_VERSION, "rows": [_plain(row) for row in rows]}
    write_asked(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_asked(path: Path, text: str) -> None:
    """Write a file where the user wants it, whole or not at all.

    Raises RequestError when it cannot be written.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from None


def _plain(row: Row) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(row).items()
    }
