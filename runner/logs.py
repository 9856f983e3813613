"""How a run's words and progress look on a terminal, and in a pipe."""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

LABEL = 12
"""characters of the label at the beginning of a line of ours"""


JOB: ContextVar[str] = ContextVar("job", default="")
"""what lines on the terminal begin with, where several jobs talk at once; a thread begins without"""
_HANDLERS: ContextVar[Sequence[logging.Handler]] = ContextVar("handlers", default=())
_PRINTING = threading.Lock()


class ConsoleHandler(logging.Handler):
    """Information to stdout, its label set off on a terminal; warnings and errors to stderr, as `runner: …`.

    Of a Python warning only the first line is shown; run.log has all of it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        try:
            message = record.getMessage()
            job = JOB.get()
            if record.levelno >= logging.WARNING:
                shown = message.strip().splitlines()[0] if record.name == "py.warnings" else message
                _print(f"runner: {job}{shown}", sys.stderr)
            else:
                shown = _with_label(message) if sys.stdout.isatty() else message
                _print("\n".join(job + line for line in shown.splitlines()) if job else shown, sys.stdout)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)


def _print(text: str, stream: Any) -> None:
    """Print whole lines, also when other threads print."""
    with _PRINTING:
        stream.write(text + "\n")
        stream.flush()


class JobHandlers(logging.Handler):
    """Hands each record to the handlers of the job that its thread works for, or else to those for Hydra's own."""

    def __init__(self, others: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._others = others

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one record on."""
        for handler in _HANDLERS.get() or self._others:
            if record.levelno >= handler.level:
                handler.handle(record)


@contextlib.contextmanager
def handled_by_job() -> Iterator[None]:
    """Within, records go to the handlers of their thread's job; the root logger's own take what belongs to none."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [JobHandlers(before)]
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@contextlib.contextmanager
def job_logging(handlers: Sequence[logging.Handler], prefix: str) -> Iterator[None]:
    """Within, what this thread logs goes to `handlers`, on the terminal with `prefix`; they are closed in the end."""
    tokens = _HANDLERS.set(handlers), JOB.set(prefix)
    try:
        yield
    finally:
        _HANDLERS.reset(tokens[0])
        JOB.reset(tokens[1])
        for handler in handlers:
            handler.close()


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
