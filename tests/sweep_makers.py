"""Sweeps in processes of their own, and checkpoints that something is wrong with."""

import csv
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from runner.embedded import FOLDER

ROOT = str(Path(__file__).parents[1])
CGROUP = Path("/sys/fs/cgroup/memory")
RECORD_KEYS = [
    "schema_version", "run_id", "status", "command", "overrides", "config", "reproduce", "hardware", "checkpoint",
    "plan", "memory", "prediction_error", "outcome", "timing", "timeline", "notes", "error", "environment",
]  # fmt: skip
STATUSES = {"planned", "running", "completed", "refused", "out_of_memory", "failed", "killed", "interrupted"}


class Sweep:
    """One command line, which runs in `place`."""

    def __init__(self, place: Path, *arguments: str, folder: Path | None = None, **environment: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self._place, self._folder, self._group = place, folder, None
        self.out = self.err = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runner", *arguments], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": ROOT, "RUNNER_CACHE": str(place / "cache"), **environment},
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """The sweep's folder, or of a single run its day's."""
        if self._folder is None:
            (self._folder,) = (self._place / "outputs").glob("multirun/*/*")
        return self._folder

    @property
    def records(self) -> list[Any]:
        """In the order of the jobs."""
        below = self._folder or self._place / "outputs"
        paths = sorted(below.rglob("record.json"), key=lambda path: (len(path.parent.name), path.parent.name))
        return [json.loads(path.read_text()) for path in paths]

    def wait(self, code: int) -> "Sweep":
        """Wait for the end, which must have this exit code."""
        self.out, self.err = self.process.communicate(timeout=240)
        if self._group is not None:
            self._group.rmdir()
        assert self.process.returncode == code, self.out + self.err
        return self

    def kill_all(self) -> None:
        """End the process, its workers and their server at once, as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.out, self.err = self.process.communicate(timeout=60)

    def worker(self, job: int, *, beside: Sequence[int] = ()) -> int:
        """Wait until a job works, and those `beside` it are done, and return the youngest worker's process id."""
        for _ in range(20_000):
            paths = list(self._place.glob("outputs/multirun/*/*/*/record.json"))
            found = {int(path.parent.name): json.loads(path.read_text()) for path in paths}
            done = all(number in found and found[number]["status"] == "completed" for number in beside)
            if job in found and found[job]["memory"]["load"] is not None and done:
                children = psutil.Process(self.process.pid).children(recursive=True)
                return max(children, key=lambda child: child.create_time()).pid
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.005)
        raise AssertionError(f"job {job} did not begin to work")

    def limit_group(self, worker: int, size: int) -> None:
        """Put a worker into a memory cgroup of its own with that limit."""
        self._group = CGROUP / f"runner-sweep-{worker}"
        self._group.mkdir()
        (self._group / "memory.limit_in_bytes").write_text(str(size))
        (self._group / "tasks").write_text(str(worker))


def can_limit_groups() -> bool:
    """Whether a real out-of-memory kill can be had here."""
    return os.access(CGROUP / "tasks", os.W_OK) and os.geteuid() == 0


def truncated_checkpoint(folder: Path) -> Path:
    """The embedded model, its weights cut off."""
    shutil.copytree(FOLDER, folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    return folder


def huge_checkpoint(folder: Path, *, gigabytes: int = 2000) -> Path:
    """The embedded model with an embedding of so many GB, which is a hole in a file."""
    shutil.copytree(FOLDER, folder)
    config = json.loads((folder / "config.json").read_text())
    path = folder / "model.safetensors"
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    rows = gigabytes * 10**9 // (2 * config["hidden_size"])
    position = 0
    for name, entry in header.items():
        if entry["shape"] and entry["shape"][0] == config["vocab_size"]:
            entry["shape"] = [rows, *entry["shape"][1:]]
        size = 2
        for length in entry["shape"]:
            size *= length
        entry["data_offsets"] = [position, position + size]
        position += size
        assert entry["dtype"] == "BF16", name
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + position)
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": rows}))
    return folder


def twelve_jobs(place: Path, *arguments: str) -> Sweep:
    """A sweep of twelve models below `place`: number 3 does not fit, number 8 is cut off; job 5 is there to be killed."""
    models = {f"model_{number}": FOLDER for number in range(12)}
    models["model_3"] = huge_checkpoint(place / "huge")
    models["model_8"] = truncated_checkpoint(place / "truncated")
    (place / "own" / "model").mkdir(parents=True)
    for name, path in models.items():
        (place / "own" / "model" / f"{name}.yaml").write_text(f"# One of twelve.\nsource: local\npath: {path}\n")
    sweep = Sweep(place, "-m", "--config-dir", "own", *arguments, "workload.steps=25", "model=" + ",".join(models))
    if can_limit_groups():
        sweep.limit_group(sweep.worker(5), 2**20)
    return sweep


def check_whole(folder: Path) -> int:
    """Assert that every file below `folder` is whole, and return how many there were.

    A run.log is written as it goes; multirun.yaml is Hydra's own, for which ours in .hydra stands in. What a killed
    writer was writing has another name, which nobody reads, and is removed when the sweep is resumed.
    """
    number = 0
    for path in folder.rglob("*"):
        if not path.is_file() or path.name in ("run.log", "multirun.yaml") or path.suffix == ".part":
            continue
        number += 1
        text = "" if path.suffix == ".safetensors" else path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            values = json.loads(text)
            assert values["schema_version"] == 1 if path.name != "plan.json" else values["footprint"]["peak"] > 0
            if path.name == "record.json":
                assert list(values) == RECORD_KEYS, path
                assert values["status"] in STATUSES, path
        elif path.suffix == ".csv":
            assert text.endswith("\n"), path
            rows = list(csv.reader(text.splitlines()))
            assert len({len(row) for row in rows}) == 1, path
        elif path.suffix in (".svg", ".html"):
            assert text.rstrip().endswith(f"</{path.suffix[1:]}>"), path
        elif path.suffix == ".yaml":
            assert text.endswith("\n"), path
    return number
