"""The launcher of `-m`: jobs one after another, or several at once, each with a worker of its own.

The main thread composes each job in its turn, because Hydra keeps one job's configuration at a time for the whole
process; from then on a job knows all it needs, and a thread of this process sees it through. That thread computes
nothing: it waits for its worker, narrates, and writes the record.
"""

import contextlib
import logging
import os
import queue
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from runner.config import RunConfig
from runner.endings import interrupts_call, terminated_is_interrupted
from runner.errors import Interrupted, RequestError, WorkloadError
from runner.files import write_whole
from runner.launch.shared import SWEEP_OVERRIDES, Job, Shared, keep_overrides, split_work
from runner.logs import handled_by_job, job_logging

log = logging.getLogger(__name__)

PACKAGE = "hydra_plugins"
TARGET = f"{PACKAGE}.runner.RunnerLauncher"
"""Hydra takes plugins from below this package only, by the name that they are registered under"""
CARRIER = "runner.launch.handlers"
"""a logger that only carries handlers from logging's configuration to here"""


class Preparing(Protocol):
    """A task that can be taken in two steps: what needs Hydra's global state, and the job itself."""

    def configure(self, composed: DictConfig) -> RunConfig:
        """Return what is asked for; raises RequestError for values that are out of range."""

    def prepare(self, composed: DictConfig) -> Job:
        """Return the job; raises RequestError when the sweep as a whole cannot be meant."""


@dataclass
class LauncherConfig:
    """The keys of hydra/launcher=runner."""

    _target_: str = TARGET
    n_jobs: int = 1


def register_launcher() -> None:
    """Make hydra/launcher=runner known to Hydra. May be called more than once.

    Hydra finds a plugin's class once more by its name, so there is a module of that name, without a file.
    """
    ConfigStore.instance().store(group="hydra/launcher", name="runner", node=LauncherConfig, provider="runner")
    plugins = Plugins.instance()  # this looks for installed plugins, whose package is then there
    package = sys.modules.setdefault(PACKAGE, types.ModuleType(PACKAGE))
    module = sys.modules.setdefault(f"{PACKAGE}.runner", types.ModuleType(f"{PACKAGE}.runner"))
    setattr(package, "runner", module)  # noqa: B010
    setattr(module, RunnerLauncher.__name__, RunnerLauncher)
    plugins.register(RunnerLauncher)


def check_launcher(settings: Any) -> None:
    """Raise RequestError for what our launcher cannot do; `settings` is the composed node `hydra`."""
    if settings.launcher.get("_target_") != TARGET:
        return
    if settings.launcher.n_jobs < 1:
        raise RequestError(f"hydra.launcher.n_jobs={settings.launcher.n_jobs} must be at least 1")
    if settings.job.chdir:
        raise RequestError("hydra.job.chdir=true: a sweep's jobs share one process; leave it, or hydra/launcher=basic")
    if settings.job.env_set:
        raise RequestError(
            "hydra.job.env_set: workers come from one server, which has the command's environment; "
            "set the variables in front of the command"
        )


class RunnerLauncher(Launcher):
    """Starts the jobs of a sweep, `n_jobs` of them at once as far as their predicted memory allows."""

    def __init__(self, n_jobs: int = 1) -> None:
        self._shared = split_work(n_jobs, os.environ)

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        """Take what Hydra hands over."""
        self.config, self._context = config, hydra_context
        self._task: Preparing = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs and return their exit codes; raises KeyboardInterrupt once all are ended after an interrupt."""
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        _keep_overrides(self.config, anew=False)
        jobs = [(initial_job_idx + index, list(overrides)) for index, overrides in enumerate(job_overrides)]
        at_once = min(self._shared.num_jobs, len(jobs))
        log.info("sweep       %d jobs%s", len(jobs), f", up to {at_once} at once" if at_once > 1 else "")
        with terminated_is_interrupted(), handled_by_job():
            self._describe_machines([overrides for _, overrides in jobs])
            returns = self._in_turn(jobs) if self._shared.num_jobs == 1 else self._at_once(jobs)
        _keep_overrides(self.config, anew=True)
        return returns

    def _in_turn(self, jobs: list[tuple[int, list[str]]]) -> list[JobReturn]:
        returns = []
        for index, overrides in jobs:
            started = self._start(index, overrides)
            returns.append(self._finish(started, started.carry_out(self._shared, prefix="")))
            if returns[-1].return_value == Interrupted.exit_code:
                raise KeyboardInterrupt
        return returns

    def _at_once(self, jobs: list[tuple[int, list[str]]]) -> list[JobReturn]:
        """Keep `n_jobs` threads busy; on an interrupt, or an error of ours, end all of them first."""
        returns: dict[int, JobReturn] = {}
        ended: queue.SimpleQueue[tuple[_Started, int] | None] = queue.SimpleQueue()  # None: an interrupt
        threads: dict[int, threading.Thread] = {}
        stop = self._shared.stop

        def collect() -> None:
            told = ended.get()
            if told is None:
                stop.ask()
                return
            started, code = told
            threads.pop(started.index).join()
            returns[started.index] = self._finish(started, code)

        with interrupts_call(lambda: ended.put(None)):  # so that none can come between, however many there are
            try:
                for index, overrides in jobs:
                    while len(threads) >= self._shared.num_jobs:
                        collect()
                    if stop.event.is_set():
                        break
                    threads[index] = self._thread(self._start(index, overrides), ended)
            except BaseException:
                stop.ask()
                raise
            finally:
                while threads:
                    collect()
        if stop.event.is_set():
            raise KeyboardInterrupt
        return [returns[index] for index, _ in jobs]

    def _thread(self, started: "_Started", ended: "queue.SimpleQueue[Any]") -> threading.Thread:
        """Return the running thread of a job, which leaves its exit code in `ended`."""

        def see_through() -> None:
            code = WorkloadError.exit_code
            try:
                code = started.carry_out(self._shared, prefix=f"[{started.index}] ")
            except Exception:
                log.exception("job %d: runner itself failed", started.index)
            finally:
                ended.put((started, code))

        thread = threading.Thread(target=see_through, name=f"job-{started.index}")
        thread.start()
        return thread

    def _describe_machines(self, job_overrides: list[list[str]]) -> None:
        """Have each machine that the jobs ask for described while none of them runs."""
        seen: set[tuple[str, ...]] = set()
        for overrides in job_overrides:
            asked = tuple(item for item in overrides if item.lstrip("+~").startswith("hardware"))
            if asked not in seen:
                seen.add(asked)
                with contextlib.suppress(RequestError):  # the job itself will say so, and record it
                    self._shared.describe(self._task.configure(_without_hydra(self._compose(0, overrides))))

    def _compose(self, index: int, overrides: list[str]) -> DictConfig:
        composed: DictConfig = self._context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(composed):
            composed.hydra.job.id = str(index)
            composed.hydra.job.num = index
        return composed

    def _start(self, index: int, overrides: list[str]) -> "_Started":
        """Compose a job, give it its folder and its log, and return it ready to be carried out."""
        composed = self._compose(index, overrides)
        with _as_hydras(composed):
            folder = Path(composed.hydra.runtime.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            asked = _without_hydra(composed)
            job = self._task.prepare(asked)
            handlers = [] if job.is_done else _handlers(composed.hydra)
            if not job.is_done and composed.hydra.output_subdir is not None:
                _save(folder / composed.hydra.output_subdir, composed, asked)
            self._context.callbacks.on_job_start(config=composed, task_function=self._task)
        log.info("job %-7d %s", index, " ".join(filter_overrides(overrides)))
        return _Started(index=index, job=job, composed=composed, asked=asked, handlers=tuple(handlers))

    def _finish(self, started: "_Started", code: int) -> JobReturn:
        """Return what Hydra's sweepers expect of a job, and tell its callbacks."""
        done = JobReturn()
        done.overrides = list(started.composed.hydra.overrides.task)
        done.cfg, done.hydra_cfg = started.asked, started.composed
        done.working_dir, done.task_name = os.getcwd(), started.composed.hydra.job.name
        done.return_value, done.status = code, JobStatus.COMPLETED
        self._context.callbacks.on_job_end(config=started.composed, job_return=done)
        return done


RunnerLauncher.__module__, RunnerLauncher.__qualname__ = TARGET.rpartition(".")[0], "RunnerLauncher"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A job with what Hydra wants to know of it in the end."""

    index: int
    job: Job
    composed: DictConfig
    asked: DictConfig
    handlers: tuple[logging.Handler, ...]

    def carry_out(self, shared: Shared, *, prefix: str) -> int:
        """Do the job in this thread, its words in its own log."""
        with job_logging(self.handlers, prefix):
            return self.job.carry_out(shared)


@contextlib.contextmanager
def _as_hydras(composed: DictConfig) -> Iterator[None]:
    """Within, Hydra's global configuration is this job's, its folder settled."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(composed)
    folder = os.path.join(str(composed.hydra.sweep.dir), str(composed.hydra.sweep.subdir))
    with read_write(composed.hydra.runtime), open_dict(composed.hydra.runtime):
        composed.hydra.runtime.output_dir = os.path.abspath(folder)
    HydraConfig.instance().set_config(composed)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def _without_hydra(composed: DictConfig) -> DictConfig:
    asked = composed.copy()
    with read_write(asked), open_dict(asked):
        del asked["hydra"]
    return asked


def _handlers(settings: Any) -> list[logging.Handler]:
    """Return the handlers of hydra/job_logging, without taking them from jobs that run: the root keeps its own."""
    values: Any = OmegaConf.to_container(settings.job_logging, resolve=True)
    root = values.pop("root", None) or {}
    carried = {CARRIER: {"handlers": root.get("handlers", []), "propagate": False}}
    configure_log(
        OmegaConf.create({**values, "root": {}, "loggers": {**values.get("loggers", {}), **carried}}), settings.verbose
    )
    if settings.verbose is not True:
        logging.getLogger().setLevel(root.get("level", "WARNING"))
    carrier = logging.getLogger(CARRIER)
    handlers = carrier.handlers[:]
    carrier.handlers.clear()
    return handlers


def _save(folder: Path, composed: DictConfig, asked: DictConfig) -> None:
    """Write what Hydra writes for a job, each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.yaml", OmegaConf.to_yaml(asked))
    write_whole(folder / "hydra.yaml", OmegaConf.to_yaml(OmegaConf.masked_copy(composed, "hydra")))
    write_whole(folder / "overrides.yaml", OmegaConf.to_yaml(composed.hydra.overrides.task))


def _keep_overrides(config: DictConfig, *, anew: bool) -> None:
    """Note what the sweep is; one that is there stays until its jobs proved to be those of this command line."""
    folder = Path(str(config.hydra.sweep.dir))
    if anew or not (folder / SWEEP_OVERRIDES).exists():
        keep_overrides(folder, list(config.hydra.overrides.task))
