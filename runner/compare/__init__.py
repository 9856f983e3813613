"""Read records and set them side by side: rows, a table, CSV and JSON. It needs nothing but the records."""

from runner.compare.files import write_asked, write_csv, write_json
from runner.compare.rows import Row, collect, collect_with_records
from runner.compare.table import COLUMNS, UNKNOWN, WORDS, cell, clean, print_table, shown_columns, table

__all__ = [
    "COLUMNS",
    "UNKNOWN",
    "WORDS",
    "Row",
    "cell",
    "clean",
    "collect",
    "collect_with_records",
    "print_table",
    "shown_columns",
    "table",
    "write_asked",
    "write_csv",
    "write_json",
]
