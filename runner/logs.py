"""How a run's words and progress look on a terminal, and in a pipe."""

import contextlib
import logging
import sys
from collections.abc import Callable
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


def terminal_bar() -> Callable[[str, int, int], bool] | None:
    """Return a function that draws the progress of a load in bytes, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        return None
    shown: dict[str, Any] = {}

    def draw(what: str, done: int, total: int) -> bool:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        if what not in shown:
            columns = (TextColumn("{task.description:<11}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
            progress = Progress(*columns, console=Console(stderr=True), transient=True)
            progress.start()
            shown[what] = (progress, progress.add_task(what, total=total))
        progress, task = shown[what]
        progress.update(task, completed=done)
        if done >= total:
            progress.stop()
            with contextlib.suppress(KeyError):
                del shown[what]
        return True

    return draw
