"""Predicted against measured bytes over a matrix of tiny models. It prints figures and asserts nothing.

Run it from the repository's root: python tests/benchmarks/predict.py [model_type,…]
"""

import sys
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.predict_makers import TINY, checkpoint, settings
from tests.predict_measured import measure

GENERATES = ("qwen3", "llama", "gpt2", "t5")


def cases(model_types: list[str]) -> list[tuple[str, str, str, int]]:
    """Return (model type, workload, precision, checkpointed layers)."""
    found = []
    for model_type, workload, precision in product(
        model_types, ("forward", "generate", "train"), ("fp32", "bf16", "fp16")
    ):
        if workload == "generate" and model_type not in GENERATES:
            continue
        found += [(model_type, workload, precision, layers) for layers in ((0, 99) if workload == "train" else (0,))]
    return found


def main(model_types: list[str]) -> None:
    """Print one line per case and the largest error."""
    import torch

    from runner.predict import trace

    torch.set_num_threads(1)
    worst = 0.0
    print(
        f"{'model':10} {'workload':9} {'prec':5} {'ckpt':4} {'predicted':>11} {'measured':>11} {'error':>9} {'s':>6} "
        "moment"
    )
    for model_type, workload, precision, layers in cases(model_types):
        values = settings(workload=workload, precision=precision, checkpointed_layers=layers)
        made = checkpoint(model_type)
        began = time.monotonic()
        try:
            traced = trace(made, values)
            seconds = time.monotonic() - began
            measured = measure(made, values)
        except Exception as error:
            print(f"{model_type:10} {workload:9} {precision:5} {layers:4} {type(error).__name__}: {str(error)[:200]}")
            continue
        off = (traced.peak.total - measured) / measured
        worst = max(worst, abs(off))
        print(
            f"{model_type:10} {workload:9} {precision:5} {layers:4} {traced.peak.total:11} {measured:11} "
            f"{off:9.4%} {seconds:6.2f} {traced.peak.phase} {traced.peak.module}"
        )
    print(f"largest error {worst:.4%}")


if __name__ == "__main__":
    main(sys.argv[1].split(",") if len(sys.argv) > 1 else list(TINY))
