"""What a worker process does: make the plan, or carry it out. Everything here may import torch."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.checkpoint import Checkpoint
from runner.config import RunConfig
from runner.errors import OutOfMemory, RunnerError
from runner.hardware import Hardware
from runner.isolate import Message, Send
from runner.meter import MemoryStats
from runner.predict.footprint import Footprint
from runner.resolve import Plan, resolve
from runner.settings import Settings
from runner.units import format_size

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """What came of a plan that was carried out."""

    outcome: Any
    memory: dict[str, MemoryStats]
    timing: dict[str, float]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Stopwatch:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """Book the time since the last lap under `name`."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._began
        self._began = now


def make_plan(send: Send, config: RunConfig, hardware: Hardware, checkpoint: Checkpoint) -> Plan:
    """Return the plan, its footprint traced on the model's real class under fake tensors."""
    from runner.limit import can_tighten_malloc
    from runner.predict import measure_base, predict
    from runner.workload.prompt import count_prompt_tokens

    quiet_libraries()
    num_layers = count_layers(checkpoint, config)
    prompt_tokens = count_prompt_tokens(checkpoint, config.workload)
    on_this_host = hardware.device_type == "cpu" and not hardware.is_profile
    overhead = measure_base() if on_this_host else None  # with everything imported that the work will import

    def predicted(settings: Settings) -> Footprint:
        return predict(checkpoint, settings, hardware, overhead=overhead)

    return resolve(
        config,
        hardware,
        checkpoint,
        predict=predicted,
        num_layers=num_layers,
        prompt_tokens=prompt_tokens,
        can_tighten_malloc=can_tighten_malloc(),
    )


def count_layers(checkpoint: Checkpoint, config: RunConfig) -> int:
    """Return how many layers of the model could be checkpointed; builds it without storage."""
    import torch

    from runner import steps

    settings = Settings(
        workload="load", device="cpu", precision="fp32", parameter_dtype="float32", compute_dtype="float32",
        trust_remote_code=config.model.trust_remote_code,
    )  # fmt: skip
    with torch.device("meta"):
        return len(steps.layers(steps.build(checkpoint, settings)))


def work(send: Send, config: RunConfig, plan: Plan, hardware: Hardware, checkpoint: Checkpoint, folder: Path) -> Worked:
    """Load what the plan says, do the workload, unload, and return what came of it, measured phase by phase.

    Raises OutOfMemory when the device, or the budget that is enforced here, is exhausted.
    """
    from runner.limit import enforce, is_out_of_memory, tighten_malloc
    from runner.loader import load
    from runner.meter import Meter
    from runner.workload import WORKLOADS
    from runner.workload.job import Job

    quiet_libraries()
    watch = Stopwatch()
    meter = Meter(hardware.device, exact=config.memory.exact)
    memory: dict[str, MemoryStats] = {}

    def measured(phase: str, stats: MemoryStats) -> None:
        memory[phase] = stats
        send(Message(kind="stats", value=(phase, stats)))
        watch.lap(phase)

    def progress(done: int, total: int) -> None:
        send(Message(kind="progress", value=(done, total)))

    notes: tuple[str, ...] = ()
    phase = "load"
    try:
        if plan.settings.host_allocator == "tight":
            tighten_malloc()
        if config.memory.limit_bytes is not None:
            enforcement = enforce(config.memory.limit_bytes, hardware.device)
            log.info("limit       %s (%s)", format_size(config.memory.limit_bytes), enforcement.how)
            notes += (f"memory.limit: {enforcement.how}",)
        watch.lap("import")
        send(Message(kind="phase", value="load"))
        with meter.phase("load") as measurement:
            loaded = load(checkpoint, plan.settings, progress=progress)
        measured("load", measurement.stats)
        phase = "work"
        send(Message(kind="phase", value="work"))
        with meter.phase("work") as measurement:
            job = Job(loaded=loaded, settings=plan.settings, config=config.workload, folder=folder)
            outcome = WORKLOADS[plan.settings.workload](job)
        measured("work", measurement.stats)
        phase = "unload"
        send(Message(kind="phase", value="unload"))
        with meter.phase("unload") as measurement:
            loaded.unload()
        measured("unload", measurement.stats)
    except RunnerError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise _out_of_memory(error, phase, plan) from error
        raise
    memory = meter.finish(memory)
    return Worked(outcome=outcome, memory=memory, timing=watch.seconds, notes=(*notes, *loaded.notes, *meter.notes))


def quiet_libraries() -> None:
    """Keep transformers' own log and progress bars out of ours; its warnings come through Python's logging."""
    import transformers

    transformers.logging.disable_progress_bar()
    transformers.logging.disable_default_handler()
    transformers.logging.enable_propagation()
    transformers.logging.set_verbosity_error()


def _out_of_memory(error: BaseException, phase: str, plan: Plan) -> OutOfMemory:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    said = "the plan said that it does not fit" if plan.forced else "the plan said that it fits"
    fitting = [remedy for remedy in plan.remedies if remedy.fits]
    advice = (
        "fits with " + ", or with ".join(f"{remedy.override} ({format_size(remedy.peak)})" for remedy in fitting)
        if fitting
        else "give it less to do: precision=bf16, a smaller workload.micro_batch_size or workload.sequence_length"
    )
    return OutOfMemory(
        f"out of memory in {phase}: {first_line} ({said}: {format_size(plan.footprint.peak)} predicted, "
        f"{format_size(plan.budget)} may be used); {advice}",
        remedies=[{"override": r.override, "peak": r.peak, "fits": r.fits} for r in plan.remedies],
    )
