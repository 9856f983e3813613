"""The precision ladder: which number formats may be tried, in which order, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

from runner.checkpoint import Checkpoint
from runner.config import Precision, RunConfig, Workload
from runner.hardware import Hardware
from runner.settings import DTYPES

LADDER = ("fp32", "bf16", "fp16")
"""from the most exact down; auto takes the first that fits, and bf16 before fp16 because it cannot overflow earlier
than fp32 does"""

OVERFLOWS_IN_FP16 = ("t5", "mt5", "umt5", "longt5", "gemma", "gemma2", "gemma3", "gemma3_text")
"""model types whose activations are known to exceed fp16's 65504 (transformers#4586 for T5; Gemma's own notes)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One precision that may be tried, and the reason if it is taken."""

    precision: str
    reason: str


def rungs(config: RunConfig, hardware: Hardware, checkpoint: Checkpoint) -> tuple[Rung, ...]:
    """Return the precisions to try, in order; one when the user named it or switched memory saving off."""
    asked = config.precision.name
    if asked is not Precision.auto:
        return (Rung(precision=asked.value, reason=f"asked for{_caveat(asked.value, hardware)}"),)
    if not config.memory_efficient:
        return (Rung(precision="fp32", reason="memory_efficient=false keeps full precision"),)
    training = config.workload.planned is Workload.train
    stored = stored_precision(checkpoint.stored_dtypes)
    ladder = [p for p in LADDER if not _skip_reason(p, training, stored, hardware, checkpoint)]
    skipped = {p: r for p in LADDER if (r := _skip_reason(p, training, stored, hardware, checkpoint))}
    if stored == "fp16" and "fp16" in ladder:
        ladder.sort(key=lambda p: p != "fp16")
    if not ladder:
        ladder = ["fp32"]
    found = [Rung(precision=p, reason=_reason(p, stored, training, skipped, hardware)) for p in ladder]
    last_resort = [p for p in ("bf16",) if p not in ladder and _emulated(p, hardware)]
    reason = "nothing faster fits; {} is emulated on " + hardware.name + " and slow"
    return (*found, *(Rung(precision=p, reason=reason.format(p)) for p in last_resort))


def stored_precision(stored_dtypes: Mapping[str, int]) -> str | None:
    """Return the precision in which most of the checkpoint's floating-point bytes are stored; None if unknown."""
    names = {dtype: precision for precision, dtype in DTYPES.items()}
    known = {names[dtype]: size for dtype, size in stored_dtypes.items() if dtype in names}
    return max(known, key=lambda precision: known[precision]) if known else None


def _skip_reason(
    precision: str, training: bool, stored: str | None, hardware: Hardware, checkpoint: Checkpoint
) -> str | None:
    dtype = DTYPES[precision]
    if not hardware.supports(dtype):
        return f"{hardware.name} does not compute {precision} natively"
    if precision == "fp32" and not training and stored in ("bf16", "fp16") and hardware.supports(DTYPES[stored]):
        return f"the weights are stored in {stored}, so fp32 takes twice the memory and adds no information"
    if precision == "fp16" and checkpoint.model_type in OVERFLOWS_IN_FP16:
        return f"{checkpoint.model_type} models are known to overflow in fp16"
    return None


def _reason(precision: str, stored: str | None, training: bool, skipped: Mapping[str, str], hardware: Hardware) -> str:
    why = {
        "fp32": "the most exact precision",
        "bf16": f"native on {hardware.name}, with fp32's range in half its bytes",
        "fp16": f"the half precision that {hardware.name} computes natively",
    }[precision]
    if stored == precision and precision != "fp32" and not training:
        why = f"the weights are stored in {precision}, and {hardware.name} computes it natively"
    above = [f"not {p}: {reason}" for p, reason in skipped.items() if LADDER.index(p) < LADDER.index(precision)]
    below = [f"not {p}: {skipped[p]}" for p in ("bf16",) if precision == "fp32" and p in skipped]
    caution = "fp16 overflows above 65504, so the outputs are checked" if precision == "fp16" else ""
    return "; ".join(part for part in (why, *above, *below, caution) if part)


def _caveat(precision: str, hardware: Hardware) -> str:
    if hardware.supports(DTYPES[precision]):
        return ""
    return f", though {hardware.name} does not compute it natively and will be slow"


def _emulated(precision: str, hardware: Hardware) -> bool:
    return hardware.device_type == "cpu" and DTYPES[precision] in hardware.emulated_dtypes
