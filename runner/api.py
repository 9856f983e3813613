"""The Python door: the same street as the command line, for use from other programs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config import (
    AUTO,
    Checkpointing,
    HardwareConfig,
    MemoryConfig,
    ModelConfig,
    Precision,
    PrecisionConfig,
    RunConfig,
    Source,
    Workload,
    WorkloadConfig,
)
from runner.errors import RequestError, RunnerError

if TYPE_CHECKING:
    from runner.hardware import Hardware
    from runner.loader import Loaded
    from runner.meter import MemoryStats
    from runner.predict.footprint import Footprint
    from runner.resolve import Plan


def check_memory(device: str = AUTO) -> "Mapping[str, int | None]":
    """Return the bytes that there are: total, available (what this process may take), and both of the host.

    None is unknown. Raises RequestError for a device that is not there.
    """
    machine = _machine(device, None)
    return {
        "total": machine.total,
        "available": machine.budget,
        "host_total": machine.host_total,
        "host_available": machine.host_available,
    }


def plan(model: str | Path = "embedded", **options: Any) -> "Plan":
    """Return how `model` would be run here, and whether it fits, without loading it.

    `model` is a folder, a Hub id (ORG/NAME), the name of an architecture with random weights, or "embedded".
    Options: workload ("load", "forward", "generate", "train"), precision, activation_checkpointing ("off", "on",
    "auto"), memory_efficient, memory_limit ("6GiB"; planned with, not enforced on your process), device,
    hardware (a profile's name, such as "tesla_t4_16gb", or a Hardware, for a machine that is not here),
    micro_batch_size, sequence_length, max_new_tokens, optimizer, adapter and seed.
    """
    made: Plan = _planned(model, options)[3]
    return made


class Estimates(dict[str, "Footprint"]):
    """Predicted footprints by precision; as text, a table of their parts."""

    def __str__(self) -> str:
        from runner.predict.footprint import PARTS
        from runner.units import format_size

        shown = [part for part in PARTS if any(getattr(footprint, part) for footprint in self.values())]
        rows = [["precision", *(part.replace("_", " ") for part in shown), "peak", "where"]]
        for precision, footprint in self.items():
            sizes = (getattr(footprint, part) for part in (*shown, "peak"))
            rows.append([precision, *(format_size(size) for size in sizes), footprint.where])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


def estimate(model: str | Path = "embedded", **options: Any) -> Estimates:
    """Return the predicted footprint of `model` in fp32, bf16 and fp16, without loading it; print it for a table.

    The options are those of plan().
    """
    return Estimates(
        (precision, plan(model, **{**options, "precision": precision}).footprint)
        for precision in ("fp32", "bf16", "fp16")
    )


@contextmanager
def load(model: str | Path = "embedded", **options: Any) -> "Iterator[Loaded]":
    """Load `model` in this process as its plan says, and unload it at the end.

    The value has `model`, `tokenizer`, `plan`, and the memory statistics of load and, afterwards, of unload in
    `memory`. The options are those of plan(). Raises DoesNotFit, with remedies, before anything is loaded;
    CheckpointError for a broken checkpoint; OutOfMemory.
    """
    from runner import checkpoint as checkpoints
    from runner.errors import OutOfMemory
    from runner.limit import is_out_of_memory
    from runner.loader import load as fill
    from runner.meter import Meter
    from runner.resolve import refusal

    config, machine, found, made = _planned(model, options)
    if machine.is_profile:
        raise RequestError(f"{machine.name} is not here, so nothing can be loaded on it; runner.plan() can plan for it")
    if not made.fits and not made.forced:
        raise refusal(made, machine)
    present = checkpoints.materialize(found, config.model, environment=os.environ)
    meter = Meter(machine.device)
    try:
        with meter.phase("load") as measured:
            loaded = fill(present, made.settings)
    except RunnerError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"out of memory in load: {error}") from error
        raise
    loaded.plan = made
    loaded.memory["load"] = measured.stats
    try:
        yield loaded
    finally:
        with meter.phase("unload") as measured:
            loaded.unload()
        loaded.memory["unload"] = measured.stats


def memory_stats(device: str = AUTO) -> "MemoryStats":
    """Return what this process takes now, and took at most: tensors, allocator, host and device."""
    from runner.meter import Meter

    return Meter(_machine(device, None).device).now()


def _machine(device: str, limit: int | None) -> "Hardware":
    from runner.hardware import describe

    return describe(HardwareConfig(device=device), limit=limit, environment=os.environ)


def _profile(name: str, limit: int | None) -> "Hardware":
    """Return the machine that conf/hardware/NAME.yaml describes."""
    import yaml

    from runner.door.schema import config_folder, options
    from runner.hardware import describe

    if name not in options("hardware") or name == "detect":
        there = ", ".join(option for option in options("hardware") if option != "detect")
        raise RequestError(f"hardware={name!r} is no profile; there are {there}")
    values = yaml.safe_load((config_folder() / "hardware" / f"{name}.yaml").read_text(encoding="utf-8"))
    return describe(HardwareConfig(**values), limit=limit, environment=os.environ)


def _planned(model: str | Path, options: Mapping[str, Any]) -> Any:
    """Return config, hardware, checkpoint and plan."""
    from runner import checkpoint as checkpoints
    from runner import embedded
    from runner.worker import make_plan

    options = dict(options)
    machine = options.pop("hardware", None)
    config = _config(model, options)
    if isinstance(machine, str):
        machine = _profile(machine, config.memory.limit_bytes)
    elif machine is None:
        machine = _machine(config.hardware.device, config.memory.limit_bytes)
    found = checkpoints.inspect(config.model, source=config.source, environment=os.environ, embedded=embedded.FOLDER)
    return config, machine, found, make_plan(lambda message: None, config, machine, found)


def _config(model: str | Path, options: Mapping[str, Any]) -> RunConfig:
    """Return the run config that the options of plan() mean."""
    options = dict(options)
    workload = WorkloadConfig(
        name=_member(Workload, options.pop("workload", "load"), "workload"),
        **{
            name: options.pop(name)
            for name in ("micro_batch_size", "sequence_length", "max_new_tokens", "prompt", "steps", "grad_accum_steps")
            if name in options
        },
    )
    limit = options.pop("memory_limit", AUTO)
    config = RunConfig(
        model=_model(model, options),
        workload=workload,
        precision=PrecisionConfig(
            name=_member(Precision, options.pop("precision", AUTO), "precision"), pure=options.pop("pure", False)
        ),
        memory=MemoryConfig(
            checkpointing=_member(
                Checkpointing, options.pop("activation_checkpointing", "off"), "activation_checkpointing"
            ),
            limit=AUTO if limit is None else str(limit),
            force=options.pop("force", False),
        ),
        hardware=HardwareConfig(device=options.pop("device", AUTO)),
        memory_efficient=options.pop("memory_efficient", True),
        seed=options.pop("seed", 0),
    )
    if "adapter" in options:
        from runner.config import Adapter, AdapterConfig

        config = replace(config, adapter=AdapterConfig(name=_member(Adapter, options.pop("adapter"), "adapter")))
    if "optimizer" in options:
        from runner.config import Optimizer, OptimizerConfig

        config = replace(
            config, optimizer=OptimizerConfig(name=_member(Optimizer, options.pop("optimizer"), "optimizer"))
        )
    if options:
        raise RequestError(f"unknown option {', '.join(map(repr, sorted(options)))}; see help(runner.plan)")
    return config


def _model(model: str | Path, options: dict[str, Any]) -> ModelConfig:
    common = {
        name: options.pop(name)
        for name in ("revision", "trust_remote_code", "allow_pickle", "allow_missing", "cache")
        if name in options
    }
    text = str(model)
    if text == Source.embedded.value:
        return ModelConfig(**common)
    if isinstance(model, Path) or os.path.isdir(text) or text.startswith((".", "/", "~")):
        return ModelConfig(source=Source.local, path=text, **common)
    if "/" in text:
        return ModelConfig(source=Source.hf, id=text, **common)
    return ModelConfig(source=Source.random, architecture=text, **common)


def _member(enum: Any, value: Any, name: str) -> Any:
    try:
        return enum(value)
    except ValueError:
        raise RequestError(f"{name}={value!r} is not one of {', '.join(item.value for item in enum)}") from None
