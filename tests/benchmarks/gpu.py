"""Predicted against measured on the accelerator of this machine, over a matrix of whole runs. It prints figures.

Run it from anywhere: python tests/benchmarks/gpu.py [architecture,…]
Columns: predicted live bytes, torch's max_memory_allocated, the error; predicted whole segments, max_memory_reserved;
predicted peak with overhead, what the driver charges the process.
"""

import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

ARCHITECTURES = ("qwen3_0_6b", "gpt2", "bert_base", "t5_small")
MIB = 2**20


def main(architectures: list[str]) -> int:
    """Print one line per run."""
    import torch

    if not torch.accelerator.is_available():
        print(f"torch {torch.__version__} sees no accelerator here", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name() if torch.cuda.is_available() else torch.accelerator.current_accelerator()}")
    for architecture, workload, precision, checkpointing in product(
        architectures, ("load", "forward", "generate", "train"), ("fp32", "bf16", "fp16"), ("off", "on")
    ):
        if checkpointing == "on" and workload != "train":
            continue
        label = f"{architecture:12} {workload:8} {precision} ckpt {checkpointing:3}"
        print(f"{label} {_line(architecture, workload, precision, checkpointing)}", flush=True)
    return 0


def _line(architecture: str, workload: str, precision: str, checkpointing: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "runner", "model=random", f"model.architecture={architecture}",
             f"workload={workload}", f"precision={precision}", f"memory=checkpointing_{checkpointing}",
             "workload.max_new_tokens=16", "workload.micro_batch_size=2"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        paths = list(Path(folder).rglob("record.json"))
        if done.returncode or not paths:
            return (
                f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1][:140] if done.stderr.strip() else ''}"
            )
        record = json.loads(paths[0].read_text())
    footprint, work = record["plan"]["footprint"], record["memory"]["work"]

    def mib(size: int | None) -> str:
        return "      –" if size is None else f"{size / MIB:7.0f}"

    error = record["prediction_error"]["work"]
    return (
        f"allocated {mib(footprint['work_peak'])} {mib(work['peak_allocated'])} MiB {error:+8.2%}  "
        f"reserved {mib(footprint['reserved'])} {mib(work['peak_reserved'])}  "
        f"driver {mib(footprint['peak'])} {mib(work['process_device'])}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(",") if len(sys.argv) > 1 else list(ARCHITECTURES)))
