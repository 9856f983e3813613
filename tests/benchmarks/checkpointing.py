"""What a training step costs in time and memory by the number of checkpointed layers; it asserts nothing.

Run it from the repository's root: python tests/benchmarks/checkpointing.py [architecture] [rounds]
The variants take turns, step by step, on one model in this process, so that a busy machine slows all of them alike.
Times are medians and ratios to a step in which every layer is checkpointed.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main(architecture: str, rounds: int) -> None:
    """Print one line for each number of layers."""
    import torch

    from runner import steps
    from runner.checkpoint import inspect
    from runner.config import ModelConfig, Source
    from runner.predict import trace
    from runner.settings import Settings

    config = ModelConfig(source=Source.random, architecture=architecture, cache=tempfile.gettempdir())
    found = inspect(config, source=Source.random, environment={}, embedded=Path())
    base = Settings(
        workload="train", device="cpu", precision="fp32", parameter_dtype="float32", compute_dtype="float32",
        micro_batch_size=4, sequence_length=128, optimizer="sgd",
    )  # fmt: skip
    torch.manual_seed(0)
    model = steps.build(found, base)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    layers = len(steps.layers(model))
    counts = sorted({0, layers // 4, layers // 2, 3 * layers // 4, layers})
    times: dict[int, list[float]] = {count: [] for count in counts}
    for number in range(rounds + 1):
        for count in counts:
            values = replace(base, checkpointed_layers=count, num_layers=layers)
            steps.prepare(model, values)
            optimizer, scaler = steps.make_optimizer(model, values), steps.make_scaler(values)
            batch = steps.make_inputs(model, values, step=number)
            began = time.monotonic()
            steps.train_step(model, [batch], optimizer, scaler, values)
            if number:  # the first round warms up
                times[count].append(time.monotonic() - began)
    full = statistics.median(times[layers])
    for count in counts:
        peak = trace(found, replace(base, checkpointed_layers=count, num_layers=layers)).peak.total
        median = statistics.median(times[count])
        print(
            f"{architecture} {count:3} of {layers} layers checkpointed: predicted peak {peak / 2**20:8.1f} MiB, "
            f"step {median:6.3f} s, {median / full:5.3f} of all layers'"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "gpt2", int(sys.argv[2]) if len(sys.argv) > 2 else 5)
