"""A page over many runs, and the files of a sweep. It needs nothing but the records."""

from runner.report.page import write_html
from runner.report.sweep import Summary, Trouble, write_sweep

__all__ = ["Summary", "Trouble", "write_html", "write_sweep"]
