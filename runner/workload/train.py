"""Train for a few steps."""

import csv
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.adapters import save_adapter
from runner.errors import WorkloadError
from runner.files import written_aside
from runner.settings import Settings
from runner.workload.forward import synchronize
from runner.workload.job import Job
from runner.workload.outcome import Outcome, require_finite
from runner.workload.prompt import read_text
from runner.workload.suits import check_suits

LOSSES = "losses.csv"


@dataclass(slots=True)
class Witness:
    """What the first step's hooks saw."""

    gradient_seen: bool = False
    """whether some gradient was not zero"""
    calls: list[dict[int, int]] = field(default_factory=list)
    """for each checkpointed layer: part → how often it was computed"""


def train(job: Job) -> Outcome:
    """Return the outcome of `steps` optimizer steps on the text file, or on synthetic tokens."""
    import torch

    from runner import steps

    model, settings = job.loaded.model, job.settings
    torch.manual_seed(settings.seed)
    check_suits(model, job.loaded.tokenizer, job.config, settings)
    steps.prepare(model, settings)
    blocks = _blocks(job)
    optimizer, scaler = steps.make_optimizer(model, settings), steps.make_scaler(settings)
    losses: list[float] = []
    seconds: list[float] = []
    witness = Witness()
    for step in range(settings.steps):
        start = time.monotonic()
        micro_batches = [_micro_batch(job, blocks, step * settings.grad_accum_steps + index)
                         for index in range(settings.grad_accum_steps)]  # fmt: skip
        if step == 0:
            with _watched(model, settings.checkpointed_layers, witness):
                loss = steps.train_step(model, micro_batches, optimizer, scaler, settings)
        else:
            loss = steps.train_step(model, micro_batches, optimizer, scaler, settings)
        losses.append(float(loss))
        synchronize(settings.device)
        seconds.append(time.monotonic() - start)
        _require_finite_loss(losses[-1], step + 1, settings)
        if step == 0:
            _check(witness, job)
    _write_losses(job.folder / LOSSES, losses, seconds)
    saved = save_adapter(model, settings, job.folder)
    tokens = settings.steps * settings.grad_accum_steps * settings.micro_batch_size * settings.sequence_length
    return Outcome(
        num_tokens=tokens,
        seconds=sum(seconds),
        tokens_per_second=tokens / sum(seconds),
        losses=tuple(losses),
        files=(LOSSES, *saved),
        finite=True,
        dtype_histogram=job.loaded.dtype_histogram,
        details={
            "step_seconds": seconds,
            "trained_parameters": sum(value.numel() for value in model.parameters() if value.requires_grad),
            "recomputed_layers": _num_recomputed(witness, settings.grad_accum_steps),
            "data": job.config.text_file or "synthetic tokens",
        },
    )


def _require_finite_loss(loss: float, step: int, settings: Settings) -> None:
    pure = settings.parameter_dtype == "float16" and not settings.autocast
    if not math.isfinite(loss) and pure and settings.optimizer == "adamw" and step > 1:
        raise WorkloadError(
            f"the loss of step {step} is not finite: with precision.pure=true AdamW's epsilon, 1e-8, is zero in fp16, "
            f"and it divides by zero; leave out precision.pure, or take optimizer=adafactor"
        )
    require_finite(math.isfinite(loss), settings.precision, f"the loss of step {step} is")


def _blocks(job: Job) -> Any:
    """Return the text file's tokens as (N, S), in the seed's order; None for synthetic tokens.

    Raises RequestError when the file has fewer tokens than one sequence, or there is no tokenizer.
    """
    import torch

    if job.config.text_file is None:
        return None
    ids = job.loaded.tokenizer(read_text(job.config.text_file, "workload.text_file"), verbose=False)["input_ids"]
    length = job.settings.sequence_length
    whole = torch.tensor(ids[: len(ids) // length * length]).view(-1, length)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(job.settings.seed))
    return whole[order]


def _micro_batch(job: Job, blocks: Any, index: int) -> Any:
    """Return micro batch `index`; when the text is used up it begins again."""
    from runner import steps

    size = job.settings.micro_batch_size
    tokens = None
    if blocks is not None:
        tokens = blocks[[(index * size + row) % len(blocks) for row in range(size)]]
    return steps.make_inputs(job.loaded.model, job.settings, tokens=tokens, step=index)


@contextmanager
def _watched(model: Any, num_layers: int, witness: Witness) -> Iterator[None]:
    """Watch one step: does a gradient arrive, and how often is each part of a checkpointed layer computed?

    Parts are watched, not the layers: transformers 5 recomputes a layer's forward, inside of its hooks.
    """
    import torch

    from runner import steps

    handles: list[Any] = []

    def gradient(parameter: Any) -> None:
        if not witness.gradient_seen and parameter.grad is not None:
            witness.gradient_seen = bool(parameter.grad.count_nonzero())

    for parameter in model.parameters():
        if parameter.requires_grad:
            handles.append(parameter.register_post_accumulate_grad_hook(gradient))
    for layer in steps.layers(model)[:num_layers]:
        counts: dict[int, int] = {}
        witness.calls.append(counts)
        parts = [part for part in layer.modules() if part is not layer and not isinstance(part, torch.nn.ModuleList)]
        handles += [part.register_forward_pre_hook(_counter(counts, index)) for index, part in enumerate(parts)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _counter(counts: dict[int, int], index: int) -> Any:
    def count(module: Any, inputs: Any) -> None:
        counts[index] = counts.get(index, 0) + 1

    return count


def _num_recomputed(witness: Witness, micro_batches: int) -> int:
    return sum(1 for counts in witness.calls if counts and max(counts.values()) >= 2 * micro_batches)


def _check(witness: Witness, job: Job) -> None:
    if not witness.gradient_seen:
        raise WorkloadError("no parameter got a gradient that is not zero: nothing would be learned")
    asked = job.settings.checkpointed_layers
    recomputed = _num_recomputed(witness, job.settings.grad_accum_steps)
    if recomputed < asked:
        raise WorkloadError(
            f"activation checkpointing was set for {asked} layers of {type(job.loaded.model).__name__}, and only "
            f"{recomputed} were computed again in the backward pass"
        )


def _write_losses(path: Path, losses: list[float], seconds: list[float]) -> None:
    with written_aside(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "seconds"])
        writer.writerows([index + 1, repr(loss), f"{time_taken:.6f}"] for index, (loss, time_taken)
                         in enumerate(zip(losses, seconds, strict=True)))  # fmt: skip
