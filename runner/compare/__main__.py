"""The door: python -m runner.compare DIR… [--csv FILE] [--json FILE] [--html FILE]."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.compare.files import write_csv, write_json
from runner.compare.rows import collect_with_records
from runner.compare.table import print_table
from runner.errors import RunnerError


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, write what is asked for, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m runner.compare", description="Set the records of runs side by side."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="runs are looked for below it")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows as CSV, sizes in bytes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the table and pictures")
    given = parser.parse_args(arguments)
    try:
        rows, records = collect_with_records(given.folders)
        if given.csv:
            write_csv(rows, given.csv)
        if given.json:
            write_json(rows, given.json)
        if given.html:
            from runner.report import write_html

            write_html(rows, records, given.html)
    except RunnerError as error:
        print(f"runner: {error.message}", file=sys.stderr)
        return error.exit_code
    try:
        print_table(rows)
        sys.stdout.flush()
    except BrokenPipeError:  # such as | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
