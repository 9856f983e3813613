"""What a workload produced and counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.errors import WorkloadError

CHUNK = 2**16
"""values that are checked at a time, so that checking takes no memory to speak of"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Times are seconds; None is what this workload does not have."""

    num_tokens: int | None = None
    """new tokens in generate, else tokens that went through the model"""
    seconds: float | None = None
    """of the work itself: the pass, the generation, or all steps"""
    tokens_per_second: float | None = None
    """in generate, of the decode steps after the first token"""
    time_to_first_token: float | None = None
    losses: tuple[float, ...] | None = None
    """one for each step"""
    text: str | None = None
    """prompt and continuation"""
    files: tuple[str, ...] = ()
    """names of what was written into the run's folder"""
    finite: bool | None = None
    """whether the outputs are free of infinities and not-a-numbers"""
    dtype_histogram: Mapping[str, int] = field(default_factory=dict)
    """dtype → parameters' bytes"""
    details: Mapping[str, Any] = field(default_factory=dict)


def all_finite(tensor: Any) -> bool:
    """Whether every value of `tensor` is finite, checked a chunk at a time."""
    import torch

    flat = tensor.detach().reshape(-1)
    return all(bool(torch.isfinite(flat[start : start + CHUNK]).all()) for start in range(0, flat.numel(), CHUNK))


def require_finite(finite: bool, precision: str, what: str) -> None:
    """Raise WorkloadError, with the likely cause, when `what` is not finite."""
    if finite:
        return
    cause = (
        "fp16 overflows above 65504, and models trained in bf16 exceed it; try precision=bf16 or precision=fp32"
        if precision == "fp16"
        else "the weights, or the inputs, may be broken"
    )
    raise WorkloadError(f"{what} not finite in {precision}: {cause}")


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return sum(values) / len(values)
