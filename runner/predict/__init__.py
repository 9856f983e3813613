"""Predict the bytes that a run will need, before anything is loaded.

`predict` gives the footprint that a plan is made with, `trace` its course over time. Importing this imports no torch.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from runner.checkpoint import Checkpoint
from runner.errors import RunnerError
from runner.hardware import Hardware
from runner.predict.footprint import Footprint
from runner.predict.headers import estimate, kv_cache_bytes, load_footprint, parameter_bytes
from runner.predict.overhead import first_use, measure_base, of_device, while_loading
from runner.predict.speech import speech_footprint
from runner.settings import Settings
from runner.speech import is_qwen3_tts

if TYPE_CHECKING:
    from runner.predict.dry_run import Trace
    from runner.predict.ledger import Moment

__all__ = ["Footprint", "kv_cache_bytes", "measure_base", "parameter_bytes", "predict", "trace"]

_log = logging.getLogger(__name__)
TRACED = ("forward", "generate", "train")
TIMELINE_POINTS = 240
GRANULARITY = {"cpu": 1, "cuda": 512}
"""What allocators round a tensor's bytes up to: CUDA's caching allocator kMinBlockSize = 512 (c10/core/
CachingDeviceAllocator.h); the CPU's asks malloc for what is needed."""


def predict(
    checkpoint: Checkpoint, settings: Settings, hardware: Hardware, *, overhead: int | None = None
) -> Footprint:
    """Return the bytes that the workload of `settings` needs at its highest moment, and what they are.

    `load` is answered from headers alone, without torch. Other workloads run on fake tensors: exact for tensors on the
    CPU. Where a model cannot be traced, formulas answer and `method` says why.

    `overhead` is what the process takes besides tensors before the model is loaded: on the CPU what `measure_base`
    says; None is a constant, which a note names.

    Raises RequestError or CheckpointError when the run itself would.
    """
    besides, notes = of_device(hardware) if overhead is None else (overhead, ())

    def complete(found: Footprint) -> Footprint:
        more = besides + first_use(settings, hardware, found.peak)
        loading = besides + while_loading(hardware)
        return replace(
            found, overhead=more, load_overhead=loading, peak=found.peak + more, notes=(*found.notes, *notes)
        )

    if is_qwen3_tts(checkpoint) and settings.workload in ("load", "speak"):
        return complete(speech_footprint(checkpoint, settings))
    if settings.workload == "load":
        return complete(load_footprint(checkpoint, settings))
    if settings.workload not in TRACED:
        return complete(estimate(checkpoint, settings, why=f"workload {settings.workload} is not traced"))
    try:
        traced = trace(checkpoint, settings, capability=hardware.capability, on_this_host=not hardware.is_profile)
    except RunnerError:
        raise
    except Exception as error:
        _log.debug("the trace of %s failed", checkpoint.architecture, exc_info=True)
        why = f"{checkpoint.architecture} does not run on fake tensors ({type(error).__name__}: {_first_line(error)})"
        return complete(estimate(checkpoint, settings, why=why))
    return complete(_from_trace(traced))


def trace(
    checkpoint: Checkpoint,
    settings: Settings,
    *,
    capability: tuple[int, int] | None = None,
    on_this_host: bool = True,
) -> "Trace":
    """Return every byte that the workload allocates over time. Raises what the model raises on fake tensors.

    `capability` is the CUDA card's, which decides between attention kernels; None is taken for Ampere's.
    `on_this_host` says that a run on the CPU would be on this one: what its kernels take besides their outputs is then
    measured on zeros, for calls small enough to take no time.
    """
    from runner.predict.dry_run import trace as trace_workload

    device = settings.device.split(":")[0]
    granularity = GRANULARITY.get(device, GRANULARITY["cuda"])
    return trace_workload(
        checkpoint, settings, granularity=granularity, capability=capability, on_this_host=on_this_host
    )


def _from_trace(traced: "Trace") -> Footprint:
    peak = traced.peak
    sizes: dict[str, Any] = dict(peak.by_category)
    return Footprint(
        **sizes, overhead=0, peak=peak.total, load_peak=traced.loaded.total, work_peak=peak.total,
        moment=peak.phase, module=peak.module, operation=peak.operation, method="traced", notes=traced.notes,
        reserved=traced.reserved, timeline=thinned(traced.timeline),
    )  # fmt: skip


def thinned(timeline: "Sequence[Moment]", most: int = TIMELINE_POINTS) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """Return at most `most` points of a timeline, of neighbours in one phase the highest."""
    size = max(1, -(-len(timeline) // most))
    points: list[tuple[str, Mapping[str, int]]] = []
    for phase, moments in groupby(timeline, key=lambda moment: moment.phase):
        group = list(moments)
        for start in range(0, len(group), size):
            highest = max(group[start : start + size], key=lambda moment: moment.total)
            points.append((phase, {name: bytes_ for name, bytes_ in highest.by_category.items() if bytes_}))
    return tuple(points)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
