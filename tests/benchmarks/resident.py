"""Predicted against measured resident bytes of whole runs above 1 GiB, on the CPU; it asserts nothing.

Run it from the repository's root: python tests/benchmarks/resident.py [number of cells]
Each cell is planned in one worker and run in another, as `python -m runner` does. Training is planned just below what
malloc's defaults would take, so that it runs with the tight malloc, whose need is predicted, not bounded.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from cells import cell, planned


def cells() -> Iterator[Any]:
    """Yield RunConfigs."""
    shape = {"micro_batch_size": 4, "sequence_length": 128}
    for architecture, workload, precision in product(
        ("qwen3_0_6b", "llama_3_2_1b"), ("load", "forward", "generate"), ("fp32", "bf16")
    ):
        yield cell(architecture, workload, precision, max_new_tokens=4, **shape)
    for architecture, precision, checkpointing, optimizer in product(
        ("gpt2", "bert_base"), ("fp32", "bf16"), ("off", "on"), ("adamw", "sgd")
    ):
        yield cell(architecture, "train", precision, checkpointing=checkpointing, optimizer=optimizer, **shape)


def run(config: Any) -> tuple[int, int]:
    """Return the predicted and the measured peak of one run, in bytes."""
    made = planned(config)
    with tempfile.TemporaryDirectory() as folder:
        done = made.run(Path(folder))
    return made.plan.footprint.peak, max(stats.peak_resident for stats in done.memory.values())


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
