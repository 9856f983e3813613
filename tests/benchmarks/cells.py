"""One cell of a benchmark: a run as it is asked for, and its plan, made as `python -m runner` makes it."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from runner import checkpoint as checkpoints
from runner import embedded, worker
from runner.checkpoint import Checkpoint
from runner.config import (
    Checkpointing,
    MemoryConfig,
    ModelConfig,
    Optimizer,
    OptimizerConfig,
    Precision,
    PrecisionConfig,
    RunConfig,
    Source,
    Workload,
    WorkloadConfig,
)
from runner.hardware import Hardware, describe
from runner.isolate import run_isolated
from runner.resolve import Plan

JUST_BELOW = 0.92
"""of what training needs with malloc's defaults"""


def cell(
    architecture: str, workload: str, precision: str, *, checkpointing: str = "off", optimizer: str = "adamw",
    **more: Any,
) -> RunConfig:  # fmt: skip
    """Return what is asked for: a model of random weights; `more` are keys of the workload."""
    return RunConfig(
        model=ModelConfig(source=Source.random, architecture=architecture),
        workload=WorkloadConfig(name=Workload(workload), steps=2, **more),
        precision=PrecisionConfig(name=Precision(precision)),
        memory=MemoryConfig(checkpointing=Checkpointing(checkpointing)),
        optimizer=OptimizerConfig(name=Optimizer(optimizer)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A cell whose weights are on the disk."""

    config: RunConfig
    machine: Hardware
    checkpoint: Checkpoint
    plan: Plan

    def with_budget(self, budget: int) -> "Planned":
        """Return the same cell planned again, for so many bytes."""
        plan = _plan(self.config, replace(self.machine, budget=budget), self.checkpoint)
        return replace(self, plan=plan)

    def run(self, folder: Path, *, config: RunConfig | None = None, plan: Plan | None = None) -> Any:
        """Carry it out in a worker, raising what that raises; `config` and `plan` stand in for the cell's own."""
        return run_isolated(
            worker.work, config or self.config, plan or replace(self.plan, forced=True), self.machine, self.checkpoint,
            folder, on_message=_quiet, phase="load",
        )  # fmt: skip


def planned(config: RunConfig) -> Planned:
    """Write the cell's weights and plan it; training with the tight malloc, whose need is predicted, not bounded."""
    machine = describe(config.hardware, environment=os.environ)
    found = checkpoints.inspect(config.model, source=config.source, environment=os.environ, embedded=embedded.FOLDER)
    found = checkpoints.materialize(found, config.model, environment=os.environ)
    made = Planned(config=config, machine=machine, checkpoint=found, plan=_plan(config, machine, found))
    return (
        made.with_budget(int(JUST_BELOW * made.plan.footprint.peak)) if config.workload.name.value == "train" else made
    )


def _plan(config: RunConfig, machine: Hardware, found: Checkpoint) -> Plan:
    plan: Plan = run_isolated(worker.make_plan, config, machine, found, on_message=_quiet)
    return plan


def _quiet(message: Any) -> None:
    pass
