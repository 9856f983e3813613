"""Runs on disk, made of Record values, so that what is compared cannot drift from the record's schema."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from runner.config import Checkpointing, Precision, RunConfig, Workload
from runner.errors import CheckpointError, DoesNotFit, Killed, OutOfMemory
from runner.hardware import Hardware
from runner.meter import MemoryStats
from runner.predict.footprint import Footprint
from runner.record import Record, write_record
from runner.resolve import resolve
from runner.settings import ITEMSIZE, Settings
from runner.units import GiB, MiB
from tests.makers import card, checkpoint, footprint, processor, request

ATTACK = '<img src=x onerror="document.title=1">\x1b[31m</script>'
"""a name that no page and no terminal may act on"""


def training(precision: str, *, checkpointing: bool = False) -> RunConfig:
    """A request to train with AdamW."""
    return request(
        precision={"name": Precision(precision)}, workload={"name": Workload.train},
        memory={"checkpointing": Checkpointing.on if checkpointing else Checkpointing.off},
    )  # fmt: skip


def generating(precision: str) -> RunConfig:
    """A request to generate."""
    return request(precision={"name": Precision(precision)}, workload={"name": Workload.generate})


def predict(settings: Settings) -> Footprint:
    """Parts of a model of 300 M parameters with 12 layers, in proportion to a real one's."""
    parameters = 300 * 10**6 * ITEMSIZE[settings.parameter_dtype]
    itemsize = ITEMSIZE[settings.compute_dtype]
    is_training = settings.workload == "train"
    parts = {
        "parameters": parameters,
        "buffers": 2 * MiB,
        "gradients": parameters if is_training else 0,
        "optimizer_state": 2 * parameters if is_training else 0,
        "activations": itemsize * 60 * MiB * (12 - settings.checkpointed_layers) // 4 if is_training else 0,
        "kv_cache": 0 if is_training else itemsize * 24 * MiB,
        "workspace": itemsize * 90 * MiB,
    }
    tensors = sum(parts.values())
    overhead = 340 * MiB
    return footprint(
        tensors + overhead, **parts, overhead=overhead, load_overhead=overhead, load_peak=parameters, work_peak=tensors,
        moment="backward" if is_training else "decode",
    )  # fmt: skip


def run(config: RunConfig | None = None, *, machine: Hardware | None = None, **overrides: Any) -> Record:
    """A completed run, measured a little above its prediction, with a timeline."""
    config = config or generating("fp32")
    machine = machine or processor()
    plan = resolve(config, machine, checkpoint(), predict=predict, num_layers=12)
    peak = plan.footprint.peak
    resident, work = int(1.02 * peak), int(1.01 * plan.footprint.work_peak)
    loaded = plan.footprint.load_peak + plan.footprint.load_overhead
    on_host = machine.device_type == "cpu"
    stats = MemoryStats(peak_resident=resident) if on_host else MemoryStats(
        peak_allocated=work, peak_reserved=int(1.06 * work), process_device=int(1.06 * work) + 500 * MiB
    )  # fmt: skip
    slow = {"fp32": 1.0, "bf16": 2.6, "fp16": 1.7}[plan.settings.precision]
    values: dict[str, Any] = {
        "run_id": "20261201-120000-abcdef", "status": "completed", "command": ("python", "-m", "runner"),
        "overrides": (), "config": {"workload": {"prompt": "Once"}}, "environment": {}, "hardware": machine,
        "checkpoint": checkpoint(id="acme/small-300m", content_hash="00ff"), "plan": plan,
        "reproduce": f"python -m runner precision={plan.settings.precision}",
        "memory": {"load": MemoryStats(peak_resident=int(0.98 * loaded)), "work": stats},
        "outcome": {"tokens_per_second": 42.0 / slow, "losses": None, "details": {}},
        "timing": {"load": 1.4, "work": 6.0 * slow, "total": 9.0 + 6.0 * slow},
        "timeline": timeline(loaded, resident, 6.0 * slow),
    }  # fmt: skip
    return Record(**values | overrides)


def timeline(loaded: int, peak: int, seconds: float) -> tuple[tuple[float, str, int], ...]:
    """Resident bytes of a load, a work of `seconds` that comes and goes, and an unload."""
    base = 300 * MiB
    load = [(0.1 * i, "load", base + (loaded - base) * min(i, 13) // 14) for i in range(15)]
    waves = [0.75, 0.9, 1.0, 0.97, 0.8]
    work = [
        (1.5 + seconds * i / 60, "work", int(loaded + (peak - loaded) * waves[i % 5] * min(1.0, i / 8)))
        for i in range(60)
    ]
    end = 1.6 + seconds
    return (*load, *work, (end, "unload", peak // 2), (end + 0.2, "unload", base), (end + 0.4, "unload", base))


def saved(folder: Path, job: str, record: Record, *, probe: dict[str, Any] | None = None) -> Path:
    """Write a run's record, and its probe, into a job's folder, and return the record's path."""
    path = write_record(record, folder / job)
    if probe is not None:
        save_file(
            {name: np.asarray(value, np.float32) for name, value in probe.items()}, folder / job / "probe.safetensors"
        )
    return path


def saved_sweep(folder: Path) -> None:
    """Write a sweep in which every kind of end, two machines and two workloads occur."""
    exact = np.random.default_rng(0).standard_normal((16, 50)) * 3
    noise = np.random.default_rng(1).standard_normal((16, 50))
    for number, (precision, error) in enumerate((("fp32", 0.0), ("bf16", 0.05), ("fp16", 0.006))):
        saved(folder, str(number), run(generating(precision)), probe={"logits": exact + error * noise})
    losses = {"fp32": (6.1, 5.2, 4.4), "bf16": (6.11, 5.19, 4.43), "fp16": (6.1, 5.2, 4.404)}
    for number, precision in enumerate(losses):
        for checkpointed in (False, True):
            outcome = {
                "losses": losses[precision], "details": {},
                "tokens_per_second": (150.0 - 40 * checkpointed) / (1 + 1.4 * number),
            }  # fmt: skip
            made = run(training(precision, checkpointing=checkpointed), outcome=outcome)
            saved(folder, str(3 + 2 * number + checkpointed), made)
    outcome = {"losses": (6.1, 5.2, 4.41), "details": {}, "tokens_per_second": 5200.0}
    saved(folder, "9", run(training("bf16"), machine=card(), outcome=outcome))
    for job, ended in failures().items():
        saved(folder, job, ended)
    (folder / "14").mkdir()
    (folder / "14" / "record.json").write_text('{"schema_version": 1, "run_id":', encoding="utf-8")


def failures() -> dict[str, Record]:
    """Runs that did not complete, by job."""
    cut = {"outcome": None, "memory": {"load": MemoryStats(peak_resident=GiB)}}
    large = run(training("fp32"), **cut | {"memory": {}, "timeline": (), "timing": {"total": 2.1}})
    assert large.plan is not None
    tight = replace(large, plan=replace(large.plan, budget=4 * GiB, fits=False))
    killed = run(training("fp32"), **cut)
    return {
        "10": tight.with_error(DoesNotFit("needs 6.28 GiB; 4.00 GiB may be used: 2.28 GiB short. Fits with precision=bf16")),
        "11": replace(killed, timeline=killed.timeline[:30]).with_error(Killed("the worker was killed by SIGKILL in work")),
        "12": run(generating("fp16"), **cut).with_error(OutOfMemory("out of memory in work: can't allocate memory")),
        "13": Record(
            run_id="x", status="planned", command=(), overrides=(), config={}, environment={}
        ).with_error(CheckpointError(f"there is no checkpoint {ATTACK}")),
    }  # fmt: skip
