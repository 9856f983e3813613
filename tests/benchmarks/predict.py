"""Predicted against measured bytes over families, precisions, workloads, checkpointing and shapes; it asserts nothing.

Run it from the repository's root: python tests/benchmarks/predict.py [model_type,…]
Each line is one cell: what was predicted, what torch's profiler counted on real tensors, the error, and the seconds
that the prediction took. A cell that cannot be traced, or cannot run, says why.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from runner.settings import Settings
from tests.predict_makers import TINY, checkpoint, settings
from tests.predict_measured import measure

GENERATES = ("qwen3", "llama", "gpt2", "t5", "gemma2", "mistral", "gpt_neox", "bart", "whisper", "mixtral", "mamba")
FORWARD_ONLY = ("vits",)
SHAPES = ((2, 24), (3, 40))
"""(micro batch size, sequence length)"""


def cells(model_type: str) -> Iterator[tuple[str, Settings]]:
    """Yield (description, settings) of one family."""
    for workload, precision, (batch, length) in product(
        ("forward", "generate", "train"), ("fp32", "bf16", "fp16"), SHAPES
    ):
        if workload == "generate" and model_type not in GENERATES:
            continue
        if workload != "forward" and model_type in FORWARD_ONLY:
            continue
        base = settings(workload=workload, precision=precision, micro_batch_size=batch, sequence_length=length)
        kinds = [("", base)]
        if workload == "train":
            pure = replace(base, parameter_dtype=base.compute_dtype, autocast=False, grad_scaler=False)
            kinds = [("mixed", base)] if precision != "fp32" else [("", base)]
            kinds += [("pure", pure)] if precision == "bf16" else []
            kinds += [(name, replace(base, optimizer=name)) for name in ("sgd", "adafactor")]
        for kind, values in kinds:
            for layers in (0, 1, 99) if workload == "train" else (0,):
                name = {0: "off", 1: "1", 99: "all"}[layers]
                yield (
                    f"{workload:8} {precision} {kind:9} ckpt {name:3} {batch}x{length}",
                    replace(values, checkpointed_layers=layers),
                )


def main(model_types: list[str]) -> None:
    """Print one line per cell, and the median and the largest error."""
    import torch

    from runner.predict import trace

    torch.set_num_threads(1)
    errors: dict[str, list[float]] = {}
    fallen: list[str] = []
    for model_type in model_types:
        for name, values in cells(model_type):
            label = f"{model_type:10} {name}"
            began = time.monotonic()
            try:
                traced = trace(checkpoint(model_type), values)
            except Exception as error:
                fallen.append(f"{label}: not traced ({type(error).__name__}: {_line(error)})")
                print(fallen[-1], flush=True)
                continue
            seconds = time.monotonic() - began
            try:
                measured = measure(checkpoint(model_type), values)
            except Exception as error:
                fallen.append(f"{label}: does not run ({type(error).__name__}: {_line(error)})")
                print(fallen[-1], flush=True)
                continue
            off = (traced.peak.total - measured) / measured
            errors.setdefault(values.precision, []).append(abs(off))
            where = f"{traced.peak.phase} {traced.peak.module}"
            print(f"{label:58} {traced.peak.total:10} {measured:10} {off:9.4%} {seconds:5.2f} s {where}", flush=True)
    for precision, found in errors.items():
        print(f"{precision}: {len(found)} cells, median {statistics.median(found):.4%}, largest {max(found):.4%}")
    print(f"{len(fallen)} cells were not compared")


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:100]


if __name__ == "__main__":
    main(sys.argv[1].split(",") if len(sys.argv) > 1 else list(TINY))
