"""How a run's words and progress look on a terminal, and in a pipe."""

import logging
import sys
from typing import Any

LABEL = 12
"""characters of the label at the beginning of a line of ours"""


class ConsoleHandler(logging.Handler):
    """Information to stdout, its label set off on a terminal; warnings and errors to stderr, as `runner: …`.

    Of a Python warning only the first line is shown; run.log has all of it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        try:
            message = record.getMessage()
            if record.levelno >= logging.WARNING:
                shown = message.strip().splitlines()[0] if record.name == "py.warnings" else message
                print(f"runner: {shown}", file=sys.stderr, flush=True)
            else:
                print(_with_label(message) if sys.stdout.isatty() else message, flush=True)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)


def _with_label(message: str) -> str:
    label, rest = message[:LABEL], message[LABEL:]
    ours = label.endswith(" ") and label.strip().replace(".", "").replace(" ", "").isalpha()
    return f"\033[1m{label}\033[0m{rest}" if ours else message


class TerminalBar:
    """Draws how far a load is, in bytes, on stderr."""

    def __init__(self) -> None:
        self._what = ""
        self._progress: Any = None
        self._task: Any = None

    def draw(self, what: str, done: int, total: int) -> None:
        """Show `done` of `total` bytes; the bar goes when all are done."""
        if what != self._what or self._progress is None:
            self.close()
            self._begin(what, total)
        self._progress.update(self._task, completed=done)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Take the bar away, and give the terminal its cursor back."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _begin(self, what: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description:<11}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
        self._what = what
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.start()
        self._task = self._progress.add_task(what, total=total)


def terminal_bar() -> TerminalBar | None:
    """Return a bar, or None where stderr is no terminal."""
    return TerminalBar() if sys.stderr.isatty() else None
