"""What a log is told of a run: parameters, metrics, tags and files, from its record alone."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.compare import Row
from runner.record import PHASES, PICTURE, PLAN, RECORD

Value = bool | int | float | str

LONGEST = 500
"""characters of a parameter; what MLflow's servers have always taken"""
PEAKS = ("allocated", "peak_allocated", "peak_reserved", "resident", "peak_resident", "process_device")
COUNTED = ("num_tokens", "tokens_per_second", "time_to_first_token")
DISTANCES = ("kl", "top1_agreement", "cosine", "loss_difference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One run as experiment logs have it. Sizes are bytes, times seconds; what is unknown is left out."""

    run_id: str
    name: str
    """what the log's list shows"""
    status: str
    folder: Path
    sweep: Path | None
    """the folder of the sweep that the run is a job of"""
    started: float
    """seconds since the epoch"""
    ended: float
    parameters: Mapping[str, Value]
    metrics: Mapping[str, float]
    losses: Sequence[float]
    """one for each step, the first is step 1"""
    tags: Mapping[str, str]
    files: Sequence[Path]
    text: str | None

    @property
    def root(self) -> Path:
        """The folder that a local log may be kept in: outputs, else the sweep's, else the run's own."""
        folder = self.folder.resolve()
        outputs = next((parent for parent in folder.parents if parent.name == "outputs"), None)
        return outputs or (folder if self.sweep is None else self.sweep)


def told(record: Mapping[str, Any], folder: Path, *, is_sweep: bool) -> Told:
    """Return what is told of the run that left `record` in `folder`."""
    sweep = folder.resolve().parent if is_sweep else None
    outcome = record["outcome"] or {}
    ended = (folder / RECORD).stat().st_mtime if (folder / RECORD).exists() else time.time()
    text = outcome.get("text")
    return Told(
        run_id=record["run_id"],
        name=record["run_id"] if sweep is None else f"{sweep.parent.name}/{sweep.name}/{folder.name}",
        status=record["status"],
        folder=folder,
        sweep=sweep,
        started=ended - float(record["timing"].get("total", 0.0)),
        ended=ended,
        parameters=_parameters(record),
        metrics=_metrics(record),
        losses=[float(value) for value in outcome.get("losses") or ()],
        tags=_tags(record, sweep),
        files=[folder / name for name in (RECORD, PLAN, PICTURE, *(outcome.get("files") or ()))
               if (folder / name).exists()],
        text=text if isinstance(text, str) else None,
    )  # fmt: skip


def fidelity_metrics(row: Row) -> dict[str, float]:
    """Return how far a run's outputs are from the highest precision's, under the names of the other metrics."""
    known = {name: getattr(row, name) for name in DISTANCES}
    return {f"fidelity/{name}": float(value) for name, value in known.items() if value is not None}


def _parameters(record: Mapping[str, Any]) -> dict[str, Value]:
    """Return what was asked, what the plan settled, and with which versions; the log's own group is left out."""
    plan, checkpoint = record["plan"] or {}, record["checkpoint"] or {}
    asked = {name: value for name, value in record["config"].items() if name != "tracker"}
    nested = {
        **asked,
        "settings": plan.get("settings") or {},
        "checkpoint": {name: checkpoint.get(name) for name in ("id", "revision", "architecture", "num_parameters")},
        "versions": {"python": record["environment"].get("python"), **(record["environment"].get("packages") or {})},
    }
    return {name: value[:LONGEST] if isinstance(value, str) else value for name, value in _flat(nested)}


def _metrics(record: Mapping[str, Any]) -> dict[str, float]:
    plan, outcome = record["plan"] or {}, record["outcome"] or {}
    footprint = plan.get("footprint") or {}
    found: dict[str, Any] = {"memory/predicted_peak": footprint.get("peak"), "memory/budget": plan.get("budget")}
    for phase in PHASES:
        stats = record["memory"].get(phase) or {}
        found |= {f"memory/{phase}/{name}": stats.get(name) for name in PEAKS}
    found |= {f"prediction_error/{name}": record["prediction_error"].get(name) for name in ("load", "work")}
    found |= {f"seconds/{name}": value for name, value in record["timing"].items()}
    found |= {name: outcome.get(name) for name in COUNTED}
    likelihood = (outcome.get("details") or {}).get("negative_log_likelihood")
    found |= {"negative_log_likelihood": likelihood}
    return {name: float(value) for name, value in found.items() if value is not None}


def _tags(record: Mapping[str, Any], sweep: Path | None) -> dict[str, str]:
    hardware, git = record["hardware"] or {}, record["environment"].get("git") or {}
    error = record["error"] or {}
    tags = {
        "run_id": record["run_id"],
        "status": record["status"],
        "device": hardware.get("device"),
        "hardware": hardware.get("name"),
        "sweep": None if sweep is None else str(sweep),
        "reproduce": record["reproduce"],
        "git_commit": git.get("commit"),
        "error": error.get("message"),
    }
    return {name: str(value) for name, value in tags.items() if value}


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Value]]:
    """Return dotted name → plain value; lists as text, nothing for null."""
    found: list[tuple[str, Value]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            found.append((f"{prefix}{name}", value if isinstance(value, (bool, int, float, str)) else str(value)))
    return found
