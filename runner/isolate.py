"""Run one task in a worker process of its own, and tell how it ended.

The worker is forked from a server that has imported torch and transformers and done nothing else with them, so
that a task starts in a fraction of a second after the first and measures only itself. The parent stays free of
torch: it reads messages, samples the worker's memory, and outlives whatever kills the worker.
"""

import contextlib
import ctypes
import gc
import importlib.util
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from runner.endings import terminated_is_interrupted
from runner.errors import Interrupted, Killed, OutOfMemory, RunnerError, WorkloadError

log = logging.getLogger(__name__)

PRELOAD = "runner.preload"
TICK = 0.1
"""seconds between two looks at the worker's memory"""
GRACE = 5.0
"""seconds that an interrupted worker has to end before it is killed"""
SERVER_GONE = 255
"""exit code that multiprocessing gives a worker whose server did not live to report one"""
PR_SET_PDEATHSIG = 1
"""of Linux' prctl(2)"""
_PROCESSES = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something that a worker reports while it works: kind is log, phase, progress, stats, value or sample."""

    kind: str
    value: Any


Send = Callable[[Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """A worker's exception, in a form that always survives the pipe."""

    error: RunnerError | None
    summary: str
    trace: str


def run_isolated(
    task: Callable[..., Any],
    *arguments: Any,
    on_message: Send,
    phase: str = "work",
    preload: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> Any:
    """Return what `task(send, *arguments)` returns, computed in a worker process.

    `task` and its arguments must be picklable. `on_message` is called in this process for every message, and for
    a sample of the worker's resident bytes every TICK. `phase` is the one it starts in. `preload` names modules
    that the server may import too; those that do not exist are passed over. Several threads may each run a task;
    signals reach the main thread only, so it sets `stop` to have the others' workers ended. Raises the worker's
    RunnerError; WorkloadError for any other exception in it; OutOfMemory or Killed when it died; Interrupted on
    SIGINT, SIGTERM or `stop`.
    """
    context = _context(preload)
    receiver, sender = context.Pipe(duplex=False)
    level = logging.getLogger().getEffectiveLevel()
    process = context.Process(target=_work, args=(sender, level, task, arguments), name="runner-worker", daemon=False)
    kills_before = _oom_kills()
    with terminated_is_interrupted():
        try:
            with _PROCESSES:
                process.start()
            sender.close()
            return _follow(process, receiver, on_message=on_message, phase=phase, kills_before=kills_before, stop=stop)
        except (KeyboardInterrupt, EOFError) as error:
            if isinstance(error, EOFError):
                raise WorkloadError("the worker's server did not start; see the messages above") from error
            raise Interrupted("interrupted; the worker was ended and the record says how far it came") from None
        finally:
            _end(process)
            receiver.close()


def _follow(
    process: Any,
    receiver: Connection,
    *,
    on_message: Send,
    phase: str,
    kills_before: int | None,
    stop: threading.Event | None,
) -> Any:
    """Pass messages on until the worker's result or its end; raises KeyboardInterrupt when `stop` is set."""
    start = time.monotonic()
    while True:
        ready = wait([receiver, process.sentinel], timeout=TICK)
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        on_message(Message(kind="sample", value=(time.monotonic() - start, _resident(process.pid))))
        if receiver in ready:
            try:
                message = receiver.recv()
            except (EOFError, ConnectionError, OSError):
                raise _death(_exit_code(process, GRACE), phase, kills_before) from None
            if message.kind == "phase":
                phase = message.value
            if message.kind == "result":
                _exit_code(process, GRACE)
                return message.value
            if message.kind == "failure":
                _exit_code(process, GRACE)
                raise _as_error(message.value)
            if message.kind == "log":
                logging.getLogger(message.value.name).handle(message.value)
            else:
                on_message(message)
        elif process.sentinel in ready:
            raise _death(_exit_code(process, GRACE), phase, kills_before)


def _exit_code(process: Any, seconds: float | None) -> int | None:
    """Wait at most `seconds` for the process to end and return its exit code; None if it still runs.

    multiprocessing looks after all its processes whenever it starts or joins one, and the exit code comes out of a
    pipe that can be read once: two threads must not look at the same time.
    """
    if not wait([process.sentinel], timeout=seconds):
        return None
    with _PROCESSES:
        process.join()
        exitcode: int | None = process.exitcode
    return exitcode


def _work(sender: Connection, level: int, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The worker's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # what the server imported stays; looking through it for garbage takes a quarter of a second each time
    _die_with_parent()
    _die_with_server()
    lock = threading.Lock()

    def send(message: Message) -> None:
        with lock:
            sender.send(message)

    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [_PipeHandler(send)]
    root.setLevel(level)
    try:
        send(Message(kind="result", value=task(send, *arguments)))
    except RunnerError as error:
        send(Message(kind="failure", value=_Failure(error=error, summary=str(error), trace=traceback.format_exc())))
    except BaseException as error:
        summary = f"{type(error).__name__}: {error}"
        send(Message(kind="failure", value=_Failure(error=None, summary=summary, trace=traceback.format_exc())))
    sender.close()


class _PipeHandler(logging.Handler):
    """Send a worker's log records to the parent, which has the handlers."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        with contextlib.suppress(OSError, ValueError):
            self._send(Message(kind="log", value=record))


def _context(preload: Sequence[str]) -> Any:
    """Return the start method's context: a preloaded fork server where there is one, else spawn.

    The server is started once; what a later call wants preloaded is imported by its worker instead.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise WorkloadError(f"{' and '.join(missing)} cannot be imported here; install what runner depends on")
    context.set_forkserver_preload([PRELOAD, *preload])
    return context


def _as_error(failure: _Failure) -> RunnerError:
    if failure.error is not None:
        log.debug("%s", failure.trace)
        return failure.error
    log.error("%s", failure.trace.rstrip())
    return WorkloadError(failure.summary)


def _death(exitcode: int | None, phase: str, kills_before: int | None) -> RunnerError:
    """Return the error for a worker that ended without a result."""
    if exitcode == SERVER_GONE:
        return Killed(f"the workers' server was killed, and with it the worker in {phase}")
    if exitcode is None or exitcode >= 0:
        return WorkloadError(f"the worker ended in {phase} with exit code {exitcode} and no result")
    name = signal.Signals(-exitcode).name if -exitcode in signal.valid_signals() else f"signal {-exitcode}"
    kills_after = _oom_kills()
    if -exitcode == signal.SIGKILL and None not in (kills_before, kills_after) and kills_after != kills_before:
        return OutOfMemory(f"the system's out-of-memory killer ended the worker in {phase} ({name})")
    return Killed(f"the worker was killed in {phase} by {name}")


def _oom_kills() -> int | None:
    """Return how many processes the kernel's out-of-memory killer has ended on this system; None if unknown."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        return None
    return None


def _resident(pid: int | None) -> int | None:
    """Return the resident bytes of process `pid`; None if it is gone or the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") or None


def _end(process: Any) -> None:
    """End the worker if it still runs: first SIGTERM, after GRACE SIGKILL."""
    if process.pid is None:
        return
    try:
        if _exit_code(process, 0) is None:
            process.terminate()
            _exit_code(process, GRACE)
    except KeyboardInterrupt:
        log.warning("interrupted again: the worker is killed")
    finally:
        if _exit_code(process, 0) is None:
            process.kill()
            _exit_code(process, None)


def _die_with_parent() -> None:
    """End this worker when its parent is gone, however that happened."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


def _die_with_server() -> None:
    """Have Linux end this worker when the server that forked it is gone, which alone can tell how a worker ended."""
    parent = multiprocessing.parent_process()
    if sys.platform == "linux" and parent is not None and parent.pid != os.getppid():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
