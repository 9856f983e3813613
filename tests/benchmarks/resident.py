"""Predicted against measured resident bytes of whole runs above 1 GiB, on the CPU; it asserts nothing.

Run it from the repository's root: python tests/benchmarks/resident.py [number of cells]
Each cell is planned in one worker and run in another, as `python -m runner` does. Training is planned just below what
malloc's defaults would take, so that it runs with the tight malloc, whose need is predicted, not bounded.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))


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

    def config(architecture: str, workload: str, precision: str, checkpointing: str, optimizer: str) -> RunConfig:
        return RunConfig(
            model=ModelConfig(source=Source.random, architecture=architecture),
            workload=WorkloadConfig(
                name=Workload(workload), micro_batch_size=4, steps=2, max_new_tokens=4, sequence_length=128
            ),
            precision=PrecisionConfig(name=Precision(precision)),
            memory=MemoryConfig(checkpointing=Checkpointing(checkpointing)),
            optimizer=OptimizerConfig(name=Optimizer(optimizer)),
        )

    for architecture, workload, precision in product(
        ("qwen3_0_6b", "llama_3_2_1b"), ("load", "forward", "generate"), ("fp32", "bf16")
    ):
        yield config(architecture, workload, precision, "off", "adamw")
    for architecture, precision, checkpointing, optimizer in product(
        ("gpt2", "bert_base"), ("fp32", "bf16"), ("off", "on"), ("adamw", "sgd")
    ):
        yield config(architecture, "train", precision, checkpointing, optimizer)


def run(config: Any) -> tuple[int, int]:
    """Return the predicted and the measured peak of one run, in bytes."""
    from runner import checkpoint as checkpoints
    from runner import embedded, worker
    from runner.hardware import describe
    from runner.isolate import run_isolated

    def quiet(message: Any) -> None:
        pass

    machine = describe(config.hardware, environment=os.environ)
    found = checkpoints.inspect(config.model, source=config.source, environment=os.environ, embedded=embedded.FOLDER)
    found = checkpoints.materialize(found, config.model, environment=os.environ)
    plan = run_isolated(worker.make_plan, config, machine, found, on_message=quiet)
    if plan.settings.workload == "train":
        just_below = replace(machine, budget=int(0.92 * plan.footprint.peak))
        plan = run_isolated(worker.make_plan, config, just_below, found, on_message=quiet)
    with tempfile.TemporaryDirectory() as folder:
        done = run_isolated(
            worker.work, config, replace(plan, forced=True), machine, found, Path(folder), on_message=quiet
        )
    return plan.footprint.peak, max(stats.peak_resident for stats in done.memory.values())


def main(most: int) -> None:
    """Print one line per cell, and the median and the largest error."""
    errors = []
    for config in list(cells())[:most]:
        predicted, measured = run(config)
        off = (predicted - measured) / measured
        if measured > 2**30:
            errors.append(abs(off))
        print(
            f"{config.model.architecture:13} {config.workload.name.value:8} {config.precision.name.value} "
            f"{config.memory.checkpointing.value:3} {config.optimizer.name.value:6} predicted {predicted / 2**30:5.3f} "
            f"GiB  measured {measured / 2**30:5.3f} GiB  {off:+.2%}",
            flush=True,
        )
    print(f"{len(errors)} runs above 1 GiB: median {statistics.median(errors):.2%}, largest {max(errors):.2%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
