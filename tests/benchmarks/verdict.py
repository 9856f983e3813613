"""Is the verdict right? Each cell runs under an enforced limit, and the outcome is compared with what the plan said.

Run it from the repository's root: python tests/benchmarks/verdict.py [number of cells] [workload,…]
At the predicted need and margin a cell must complete. At 0.95 of the need the plan must refuse, and forced it should
run out of memory. It prints one line per cell and asserts nothing. The cells need 1.5 to 5 GiB each, since the limit
counts threads' stacks too (48 MiB), which is more than 5 % of a small run.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from cells import Planned, cell, planned

SHARE = 0.95
LOADS = ("qwen3_0_6b", "llama_3_2_1b")
TRAINS = ("gpt2", "bert_base")


def cells() -> Iterator[Any]:
    """Yield RunConfigs."""
    for architecture, precision in product(LOADS, ("fp32", "bf16", "fp16")):
        yield cell(architecture, "load", precision)
    for architecture, precision, length in product(LOADS, ("fp32", "bf16"), (16, 64, 128, 256)):
        yield cell(architecture, "forward", precision, sequence_length=length)
        yield cell(architecture, "generate", precision, sequence_length=length, max_new_tokens=3)
    for architecture, precision, checkpointing, batch, length in product(
        TRAINS, ("fp32", "bf16"), ("off", "on"), (1, 2, 3), (64, 128)
    ):
        shape = {"micro_batch_size": batch, "sequence_length": length}
        yield cell(architecture, "train", precision, checkpointing=checkpointing, **shape)
    for architecture, checkpointing, batch, length in product(TRAINS, ("off", "on"), (4, 8), (128, 256)):
        shape = {"micro_batch_size": batch, "sequence_length": length}
        yield cell(architecture, "train", "fp32", optimizer="sgd", checkpointing=checkpointing, **shape)


def judge(config: Any) -> str:
    """Run one cell three times and return its line."""
    made = planned(config)
    plan, settings = made.plan, made.plan.settings
    need = plan.footprint.peak
    refused = not made.with_budget(int(SHARE * need)).plan.fits
    at_need = _outcome(made, need + plan.margin, plan)
    below = _outcome(made, int(SHARE * need), replace(plan, forced=True))
    return (
        f"{config.model.architecture:13} {settings.workload:8} {settings.precision} {config.optimizer.name.value:6} "
        f"{config.memory.checkpointing.value:4} {settings.micro_batch_size}x{settings.sequence_length:<4} "
        f"need {need / 2**30:5.2f} GiB  at need+margin: {at_need:14} at {SHARE}: "
        f"{'refused' if refused else 'NOT REFUSED'}, forced: {below}"
    )


def _outcome(made: Planned, limit: int, plan: Any) -> str:
    """Carry a cell out under an enforced limit, and say how it ended."""
    from runner.errors import OutOfMemory, RunnerError

    asked = replace(made.config, memory=replace(made.config.memory, limit=str(limit), force=True))
    with tempfile.TemporaryDirectory() as folder:
        try:
            made.run(Path(folder), config=asked, plan=plan)
        except OutOfMemory:
            return "out of memory"
        except RunnerError as error:
            return f"{type(error).__name__}: {error.message[:60]}"
    return "completed"


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
