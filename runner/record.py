"""The record of a run: what was asked, decided, predicted and measured. The only room that knows file names."""

import dataclasses
import json
import os
import platform
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from runner.checkpoint import Checkpoint
from runner.errors import RequestError, RunnerError
from runner.files import write_whole
from runner.hardware import Hardware
from runner.meter import MemoryStats
from runner.resolve import Plan

SCHEMA_VERSION = 1
RECORD = "record.json"
PLAN = "plan.json"
LOG = "run.log"
PICTURE = "memory.svg"
MADE = (RECORD, PLAN, PICTURE, "text.txt", "tokens.txt", "losses.csv", "probe.safetensors", "speech.wav")
"""what a run leaves in its folder, besides its log and Hydra's own files"""

PACKAGES = (
    "torch", "transformers", "hydra-core", "omegaconf", "safetensors", "huggingface-hub", "tokenizers", "numpy",
    "accelerate", "psutil", "nvidia-ml-py",
)  # fmt: skip
ENVIRONMENT_PREFIXES = (
    "CUDA_",
    "HIP_",
    "ROCR_",
    "TORCH",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "HF_",
    "TRANSFORMERS_",
    "RUNNER_",
)
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "AUTH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run, as far as it came. Bytes are ints, seconds floats, None is unknown."""

    run_id: str
    status: str
    command: tuple[str, ...]
    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    reproduce: str = ""
    hardware: Hardware | None = None
    checkpoint: Checkpoint | None = None
    plan: Plan | None = None
    memory: Mapping[str, MemoryStats] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    outcome: Mapping[str, Any] | None = None
    timing: Mapping[str, float] = field(default_factory=dict)
    timeline: tuple[tuple[float, str, int], ...] = ()
    """(seconds since the worker's start, phase, resident bytes), sampled"""
    error: Mapping[str, Any] | None = None

    def with_error(self, error: RunnerError) -> "Record":
        """Return the record of a run that `error` ended."""
        values = {"type": type(error).__name__, "message": error.message, "remedies": list(error.remedies)}
        return dataclasses.replace(self, status=error.status, error=values)


def new_run_id() -> str:
    """Return an id that no other run has: the local time and six random hexadecimal digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def to_json(record: Record) -> dict[str, Any]:
    """Return the record in the schema that other programs read."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": record.run_id,
        "status": record.status,
        "command": shlex.join(record.command),
        "overrides": list(record.overrides),
        "config": _plain(record.config),
        "reproduce": record.reproduce,
        "hardware": None if record.hardware is None else _plain(record.hardware),
        "checkpoint": None if record.checkpoint is None else _checkpoint(record.checkpoint),
        "plan": None if record.plan is None else plan_to_json(record.plan),
        "memory": {phase: _plain(record.memory[phase]) if phase in record.memory else None for phase in PHASES},
        "prediction_error": prediction_error(record),
        "outcome": None if record.outcome is None else _plain(record.outcome),
        "timing": {name: round(seconds, 6) for name, seconds in record.timing.items()},
        "timeline": [[round(seconds, 3), phase, size] for seconds, phase, size in record.timeline],
        "notes": list(record.notes),
        "error": None if record.error is None else _plain(record.error),
        "environment": _plain(record.environment),
    }


PHASES = ("load", "work", "unload")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan in the schema that other programs read."""
    settings = plan.settings
    return {
        "choices": [_plain(choice) for choice in plan.choices],
        "precision": settings.precision,
        "parameter_dtype": settings.parameter_dtype,
        "compute_dtype": settings.compute_dtype,
        "activation_checkpointing": {
            "value": settings.checkpointed_layers > 0,
            "num_layers": settings.checkpointed_layers,
            "of": settings.num_layers,
        },
        "settings": _plain(settings),
        "footprint": {name: value for name, value in _plain(plan.footprint).items() if name != "timeline"},
        "timeline": _plain(plan.footprint.timeline),
        "budget": plan.budget,
        "budget_source": plan.budget_source,
        "margin": plan.margin,
        "shortfall": plan.shortfall,
        "fits": plan.fits,
        "forced": plan.forced,
        "remedies": [_plain(remedy) for remedy in plan.remedies],
    }


def prediction_error(record: Record) -> dict[str, float | str | None]:
    """Return the signed relative error of the predicted peaks, (predicted - measured) / measured, per phase.

    `basis` names what was compared: live tensors (peak_allocated) where they are counted, else the whole process
    (peak_resident), to which the predicted overhead is added; None where neither was measured.
    """
    errors: dict[str, float | str | None] = {"load": None, "work": None, "basis": None}
    if record.plan is None:
        return errors
    for phase in ("load", "work"):
        measured, basis = measured_peak(record.memory.get(phase), record.plan)
        if measured:
            errors[phase] = round((predicted_peak(record.plan, phase, basis) - measured) / measured, 6)
            errors["basis"] = basis
    return errors


def predicted_peak(plan: Plan, phase: str, basis: str | None) -> int:
    """Return the plan's peak of a phase in bytes, as it compares with what was measured on `basis`."""
    found = plan.footprint
    tensors, besides = (found.load_peak, found.load_overhead) if phase == "load" else (found.work_peak, found.overhead)
    return tensors if basis == "peak_allocated" else tensors + besides


def measured_peak(stats: MemoryStats | None, plan: Plan) -> tuple[int | None, str | None]:
    """Return the measured peak in bytes that is comparable to a predicted one, and its name in MemoryStats."""
    if stats is None:
        return None, None
    if stats.peak_allocated is not None:
        return stats.peak_allocated, "peak_allocated"
    if stats.peak_resident is not None and plan.settings.device == "cpu":
        return stats.peak_resident, "peak_resident"
    return None, None


def write_record(record: Record, folder: Path) -> Path:
    """Write record.json, whole or not at all, and return its path."""
    return _write_json(folder / RECORD, to_json(record))


def write_plan(plan: Plan, folder: Path) -> Path:
    """Write plan.json, whole or not at all, and return its path."""
    return _write_json(folder / PLAN, plan_to_json(plan))


def read_record(path: Path) -> dict[str, Any]:
    """Return the record in the file, or in the folder, `path`.

    Raises RequestError when there is none, or it is not a record of a schema that is known here.
    """
    file = path / RECORD if path.is_dir() else path
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RequestError(f"there is no record at {file}") from None
    except (OSError, ValueError) as error:
        raise RequestError(f"{file} is not a readable record: {error}") from None
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        found = values.get("schema_version") if isinstance(values, dict) else None
        raise RequestError(f"{file} has schema_version {found}, this runner reads {SCHEMA_VERSION}")
    return values


def clear_folder(folder: Path) -> None:
    """Remove what an earlier attempt of this run left in `folder`, so that old and new do not mix; its log stays."""
    for name in MADE:
        (folder / name).unlink(missing_ok=True)


def environment() -> dict[str, Any]:
    """Return what a run's result can depend on: versions, platform, git state, variables without secrets."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "packages": {name: _version(name) for name in ("runner", *PACKAGES)},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "git": _git_state(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(ENVIRONMENT_PREFIXES) and not any(word in name for word in SECRET_WORDS)
        },
    }


SAME_AS_GROUP = {"precision": ("precision.name",), "memory": ("memory.checkpointing",)}
"""group → keys that its option sets, which would overrule it"""


def reproduce_command(overrides: Sequence[str], *, pinned: Mapping[str, str], config_dir: Path | None = None) -> str:
    """Return a command line that repeats a run: its overrides, with `pinned` ones put in place of what `auto` was.

    A pinned key replaces an override of the same key; the others keep their order. `config_dir` holds options of the
    user's own that the overrides may name.
    """
    replaced = {*pinned, *(key for group in pinned for key in SAME_AS_GROUP.get(group, ()))}
    kept = [item for item in overrides if item.partition("=")[0].lstrip("+") not in replaced]
    flags = [] if config_dir is None else ["--config-dir", str(config_dir.resolve())]
    return shlex.join(["python", "-m", "runner", *flags, *kept, *(f"{key}={value}" for key, value in pinned.items())])


def _write_json(path: Path, values: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    values = {
        item.name: _plain(getattr(checkpoint, item.name))
        for item in dataclasses.fields(checkpoint)
        if item.name not in ("tensors", "config", "num_bytes", "codec")
    }
    values["codec"] = None if checkpoint.codec is None else _checkpoint(checkpoint.codec)
    return values | {"num_tensors": len(checkpoint.tensors), "bytes": checkpoint.num_bytes}


def _plain(value: Any) -> Any:
    """Return `value` as JSON has it: not-a-number and infinities as words, paths and enums as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    """Return commit and dirtiness of the git checkout that the run was started in; None where there is none."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    status = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if status is None else bool(status)}
