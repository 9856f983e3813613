"""What is settled for training a Qwen3-TTS talker beside what any training settles."""

from dataclasses import replace
from math import prod

from runner.checkpoint import Checkpoint
from runner.resolve.types import Choice, Plan
from runner.settings import ITEMSIZE
from runner.speech.parts import part_of
from runner.units import format_size


def with_talker_choices(plan: Plan, checkpoint: Checkpoint) -> Plan:
    """Return the plan with what is not trained among its choices, and why."""
    values = sum(prod(t.shape) for t in checkpoint.tensors if part_of(t.name) == "text_embedding")
    size = format_size(values * ITEMSIZE[plan.settings.parameter_dtype])
    found = [
        Choice(
            name="text_embedding", asked="auto", value="frozen",
            reason=f"few of its rows occur in one text, and a gradient and each optimizer state would take {size}",
        ),
        Choice(name="codec", asked="auto", value="not loaded", reason="the talker is trained on the codec's tokens"),
    ]  # fmt: skip
    if plan.settings.precision == "fp16":
        reason = "it overflows in fp16 (0.6B)"
        found.append(Choice(name="code_predictor_dtype", asked="auto", value="float32", reason=reason))
    return replace(plan, choices=(*plan.choices, *found))
