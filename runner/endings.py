"""What ends a program: Ctrl-C, SIGTERM, a terminal that closes; they arrive in the main thread."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """Treat SIGTERM, and a terminal that closes, like Ctrl-C, so that the worker is ended and the record completed."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with _signals_call(interrupt, *(number for number in _endings() if number != signal.SIGINT)):
        yield


@contextlib.contextmanager
def interrupts_call(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` on Ctrl-C, SIGTERM and a terminal that closes, and go on; it may do no more than leave word."""
    with _signals_call(tell, *_endings()):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let nothing but SIGKILL end what is done within: records, and other things that take a moment."""
    with _signals_call(lambda: None, *_endings()):
        yield


def _endings() -> list[signal.Signals]:
    """Return the signals that ask a program to end; nohup ignores one of them, which stays so."""
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [signal.Signals[name] for name in names]
    return [number for number in numbers if number != getattr(signal, "SIGHUP", None)
            or signal.getsignal(number) is not signal.SIG_IGN]  # fmt: skip


@contextlib.contextmanager
def _signals_call(tell: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    """Call `tell` on those signals, which arrive in the main thread; in other threads nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda signum, frame: tell()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
