"""What the jobs of one sweep have in common: one description of the machine, one memory, and an end."""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner import hardware
from runner.config import HardwareConfig, RunConfig
from runner.files import write_whole
from runner.hardware import Hardware, with_limit
from runner.launch.admission import Admission

SWEEP_OVERRIDES = ".hydra/overrides.yaml"
"""in a sweep's folder: what it was asked for, written whole or not at all"""


def keep_overrides(sweep: Path, overrides: Sequence[str]) -> None:
    """Note in a sweep's folder what it was asked for, so that it can be resumed."""
    path = sweep / SWEEP_OVERRIDES
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(list(overrides), indent=1, ensure_ascii=False) + "\n")  # JSON is YAML


@dataclass(slots=True)
class Stop:
    """Tells every job to end. Signals arrive in the main thread only; the others look here."""

    admission: Admission
    event: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        """Have the workers ended, and let no job in any more."""
        self.event.set()
        self.admission.close()

    def guarded(self, progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """Return `progress` such that it raises KeyboardInterrupt once the end was asked for."""

        def report(done: int, total: int) -> None:
            if self.event.is_set():
                raise KeyboardInterrupt
            progress(done, total)

        return report


@dataclass(slots=True)
class Shared:
    """Handed to every job of a sweep; a run that is alone has one to itself.

    The machine is described once for each `hardware` that a sweep asks for, before any of its jobs runs. So what is
    free is what the sweep as a whole may take: a job does not see the memory of one that runs beside it, which
    `admission` counts already, and does not inherit what an earlier one left in caches; its verdict, and thus its
    record, is the same at whatever place of the sweep it stands. What is measured is not shared: every worker counts
    its own process, against its own baseline.
    """

    num_jobs: int = 1
    """at once"""
    threads: int | None = None
    """CPU threads of one job where it does not say itself; None: torch's own choice"""
    admission: Admission = field(default_factory=Admission)
    stop: Stop = field(init=False)
    _machines: dict[HardwareConfig, Hardware] = field(default_factory=dict)
    _describing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.stop = Stop(self.admission)

    def describe(self, config: RunConfig) -> Hardware:
        """Return the machine that a job asks for; raises RequestError when it is not here."""
        asked, limit = config.hardware, config.memory.limit_bytes
        if asked.is_profile:
            return hardware.describe(asked, limit=limit, environment=os.environ)
        with self._describing:
            if asked not in self._machines:
                self._machines[asked] = hardware.describe(asked, environment=os.environ)
            return with_limit(self._machines[asked], limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of a sweep, composed and ready."""

    folder: Path
    carry_out: Callable[[Shared], int]
    """does it and returns its exit code"""
    config: RunConfig | None = None
    """None where its configuration is wrong: it then only leaves its record"""
    is_done: bool = False
    """whether an earlier sweep completed it, so that nothing is to be written"""


def alone() -> Shared:
    """Return what a run without a sweep has."""
    return Shared()


def split_work(num_jobs: int, environment: Mapping[str, str]) -> Shared:
    """Return what `num_jobs` jobs at once share: each gets an equal part of the CPUs, and at least one thread.

    Threads that wait in turn for a CPU make every job slower than its part. OMP_NUM_THREADS, where it says less, holds.
    """
    if num_jobs == 1:
        return Shared()
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    part = max(1, cpus // num_jobs)
    asked = environment.get("OMP_NUM_THREADS", "")
    return Shared(num_jobs=num_jobs, threads=min(part, int(asked)) if asked.isdecimal() and int(asked) else part)
