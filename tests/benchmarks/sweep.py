"""What a job of a sweep costs beside its work, by launcher; and a sweep in which things go wrong. It prints figures.

Run it from the repository's root:
    python tests/benchmarks/sweep.py [repeats]      overhead per job
    python tests/benchmarks/sweep.py demo           twelve jobs: one refused, one killed by its cgroup, one bad model
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.sweep_makers import Sweep, can_limit_groups, twelve_jobs

JOBS = 6
TRIVIAL = ("workload=load", "precision=bf16")


def overhead(repeats: int) -> None:
    """Time sweeps of trivial jobs, the ways in turn, so that a busy machine disturbs all of them alike."""
    ways = {
        "ours": ("-m", *TRIVIAL),
        "ours, n_jobs=2": ("-m", *TRIVIAL, "hydra.launcher.n_jobs=2"),
        "hydra/launcher=basic over our workers": ("-m", *TRIVIAL, "hydra/launcher=basic"),
    }
    whole: dict[str, list[float]] = {name: [] for name in (*ways, "one process a job")}
    for _ in range(repeats):
        for name, arguments in ways.items():
            one = _seconds(*arguments, _seeds(1))
            whole[name].append((_seconds(*arguments, _seeds(JOBS + 1)) - one) / JOBS)
        whole["one process a job"].append(_seconds(*TRIVIAL))
    print(f"seconds for a further trivial job (workload=load of the embedded model), median of {repeats}")
    for name, seconds in whole.items():
        print(f"  {name:40} {statistics.median(seconds):6.2f}  ({min(seconds):.2f} to {max(seconds):.2f})")


def overhead_inside(repeats: int) -> None:
    """Time each job of one sweep by its own record: all of it less loading, working and unloading."""
    more: list[float] = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as place:
            sweep = Sweep(Path(place), "-m", *TRIVIAL, _seeds(JOBS + 1)).wait(0)
            for record in sweep.records[1:]:
                times = record["timing"]
                more.append(times["total"] - sum(times[name] for name in ("load", "work", "unload")))
    print(f"from the jobs' own records, load, work and unload taken off: {statistics.median(more):.2f}")


def speed_up(repeats: int) -> None:
    """Time jobs that compute, one after another and two at once, on the same number of CPUs."""
    work = ("-m", "workload=train", "precision=fp32", "workload.steps=30", "workload.sequence_length=64", _seeds(4))
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for at_once, seconds in times.items():
            seconds.append(_seconds(*work, f"hydra.launcher.n_jobs={at_once}"))
    print(f"four jobs that train, seconds of the whole sweep, median of {repeats}")
    for at_once, seconds in times.items():
        print(f"  n_jobs={at_once} {statistics.median(seconds):8.2f}")


def demonstration() -> None:
    """Print the end of a sweep of twelve jobs in which three go wrong."""
    with tempfile.TemporaryDirectory() as place:
        if not can_limit_groups():
            print("no cgroup can be made here, so nothing is killed by one: that needs root and cgroup v1")
        sweep = twelve_jobs(Path(place), "workload=train", "precision=fp32", "workload.sequence_length=16")
        sweep.wait(4 if can_limit_groups() else 3)
        print(sweep.out[sweep.out.rindex("\njob ", 0, sweep.out.index("\n0 ")) :])
        print(f"exit code {sweep.process.returncode}; {json.dumps(sorted(p.name for p in sweep.folder.iterdir()))}")


def _seeds(number: int) -> str:
    return "seed=" + ",".join(map(str, range(number)))


def _seconds(*arguments: str) -> float:
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "runner", *arguments], cwd=place, check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        return time.monotonic() - began


if __name__ == "__main__":
    if sys.argv[1:] == ["demo"]:
        demonstration()
    else:
        repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
        overhead(repeats)
        overhead_inside(1)
        speed_up(repeats)
