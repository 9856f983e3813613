"""Is the verdict right? Each cell runs under an enforced limit, and the outcome is compared with what the plan said.

Run it from the repository's root: python tests/benchmarks/verdict.py [number of cells] [workload,…]
At the predicted need and margin a cell must complete. At 0.95 of the need the plan must refuse, and forced it should
run out of memory. It prints one line per cell and asserts nothing. The cells need 1.5 to 5 GiB each, since the limit
counts threads' stacks too (48 MiB), which is more than 5 % of a small run.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

SHARE = 0.95
LOADS = ("qwen3_0_6b", "llama_3_2_1b")
TRAINS = ("gpt2", "bert_base")


def cells() -> Iterator[Any]:
    """Yield RunConfigs."""
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

    def config(architecture: str, workload: str, precision: str, **more: Any) -> RunConfig:
        return RunConfig(
            model=ModelConfig(source=Source.random, architecture=architecture),
            workload=WorkloadConfig(
                name=Workload(workload), micro_batch_size=more.get("batch", 1), steps=2, max_new_tokens=3,
                sequence_length=more.get("length", 64),
            ),
            precision=PrecisionConfig(name=Precision(precision), pure=more.get("pure", False)),
            memory=MemoryConfig(checkpointing=Checkpointing(more.get("checkpointing", "off"))),
            optimizer=OptimizerConfig(name=Optimizer(more.get("optimizer", "adamw"))),
        )  # fmt: skip

    for architecture, precision in product(LOADS, ("fp32", "bf16", "fp16")):
        yield config(architecture, "load", precision)
    for architecture, precision, length in product(LOADS, ("fp32", "bf16"), (16, 64, 128, 256)):
        yield config(architecture, "forward", precision, length=length)
        yield config(architecture, "generate", precision, length=length)
    for architecture, (precision, pure), checkpointing, batch, length in product(
        TRAINS, (("fp32", False), ("bf16", False)), ("off", "on"), (1, 2, 3), (64, 128)
    ):
        yield config(
            architecture, "train", precision, pure=pure, checkpointing=checkpointing, batch=batch, length=length
        )
    for architecture, checkpointing, batch, length in product(TRAINS, ("off", "on"), (4, 8), (128, 256)):
        yield config(
            architecture, "train", "fp32", optimizer="sgd", checkpointing=checkpointing, batch=batch, length=length
        )


def judge(config: Any) -> str:
    """Run one cell three times and return its line."""
    from runner import checkpoint as checkpoints
    from runner import embedded, worker
    from runner.errors import OutOfMemory, RunnerError
    from runner.hardware import describe
    from runner.isolate import run_isolated

    def quiet(message: Any) -> None:
        pass

    machine = describe(config.hardware, environment=os.environ)
    found = checkpoints.inspect(config.model, source=config.source, environment=os.environ, embedded=embedded.FOLDER)
    found = checkpoints.materialize(found, config.model, environment=os.environ)
    plan = run_isolated(worker.make_plan, config, machine, found, on_message=quiet)
    if (
        plan.settings.workload == "train"
    ):  # with a tight malloc, whose need is exact; the default one's is an upper bound
        just_below = replace(machine, budget=int(0.92 * plan.footprint.peak))
        plan = run_isolated(worker.make_plan, config, just_below, found, on_message=quiet)
    need = plan.footprint.peak

    def outcome(limit: int, plan: Any) -> str:
        asked = replace(config, memory=replace(config.memory, limit=str(limit), force=True))
        with tempfile.TemporaryDirectory() as folder:
            try:
                run_isolated(worker.work, asked, plan, machine, found, Path(folder), on_message=quiet, phase="load")
            except OutOfMemory:
                return "out of memory"
            except RunnerError as error:
                return f"{type(error).__name__}: {error.message[:60]}"
        return "completed"

    tight = replace(machine, budget=int(SHARE * need))
    refused = not run_isolated(worker.make_plan, config, tight, found, on_message=quiet).fits
    at_need = outcome(need + plan.margin, plan)
    below = outcome(int(SHARE * need), replace(plan, forced=True))
    settings = plan.settings
    return (
        f"{config.model.architecture:13} {settings.workload:8} {settings.precision} {config.optimizer.name.value:6} "
        f"{config.memory.checkpointing.value:4} {settings.micro_batch_size}x{settings.sequence_length:<4} "
        f"need {need / 2**30:5.2f} GiB  at need+margin: {at_need:14} at {SHARE}: "
        f"{'refused' if refused else 'NOT REFUSED'}, forced: {below}"
    )


def main(most: int, workloads: str) -> None:
    """Print one line per cell, and the counts."""
    lines = []
    began = time.monotonic()
    for config in [config for config in cells() if config.workload.name.value in workloads][:most]:
        lines.append(judge(config))
        print(f"{time.monotonic() - began:6.0f} s  {lines[-1]}", flush=True)
    print(
        f"{len(lines)} cells: {sum('margin: completed' in line for line in lines)} completed at need and margin, "
        f"{sum(': refused' in line for line in lines)} refused at {SHARE} of it, "
        f"{sum('forced: out of memory' in line for line in lines)} of those ran out when forced"
    )


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 1000,
        sys.argv[2] if len(sys.argv) > 2 else "load,forward,generate,train",
    )
