"""What a worker process does: make the plan, or carry it out. Everything here may import torch."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.checkpoint import Checkpoint
from runner.config import RunConfig, Workload
from runner.errors import OutOfMemory, RequestError, RunnerError
from runner.extras import check_installed
from runner.hardware import Hardware
from runner.isolate import Message, Send
from runner.meter import MemoryStats
from runner.predict.footprint import Footprint
from runner.resolve import Plan, base_settings, resolve, resolve_speech, with_talker_choices
from runner.settings import Settings
from runner.speech import check_request, is_qwen3_tts
from runner.units import format_size
from runner.workload.prompt import longest_prompt

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


def with_threads(send: Send, num_threads: int | None, task: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `task` returns, torch computing with so many CPU threads; None leaves it its own choice.

    The plan is made so too: what kernels allocate for each thread is predicted for as many as will run.
    """
    if num_threads is not None:
        import torch

        torch.set_num_threads(num_threads)
    return task(send, *arguments)


def make_plan(send: Send, config: RunConfig, hardware: Hardware, checkpoint: Checkpoint) -> Plan:
    """Return the plan, its footprint traced on the model's real class under fake tensors."""
    from runner import steps
    from runner.limit import can_tighten_malloc
    from runner.loader import load_tokenizer
    from runner.loader.checks import check_stored
    from runner.predict import measure_base, predict
    from runner.workload.prompt import count_prompt_tokens
    from runner.workload.suits import check_suits

    check_installed(config)
    quiet_libraries()
    training = config.workload.planned is Workload.train
    if (is_qwen3_tts(checkpoint) and not training) or config.workload.planned is Workload.speak:
        return plan_speech(config, hardware, checkpoint)
    model = build_without_storage(checkpoint, config)
    check_stored(model, checkpoint)
    tokenizer = load_tokenizer(checkpoint, trust_remote_code=config.model.trust_remote_code)
    prompt_tokens = count_prompt_tokens(tokenizer, config.workload)
    on_this_host = hardware.device_type == "cpu" and not hardware.is_profile
    overhead = measure_base() if on_this_host else None  # with everything imported that the work will import

    def predicted(settings: Settings) -> Footprint:
        return predict(checkpoint, settings, hardware, overhead=overhead)

    base = base_settings(config, hardware, prompt_tokens=prompt_tokens)
    check_suits(model, tokenizer, config.workload, base)
    plan = resolve(
        config,
        hardware,
        checkpoint,
        predict=predicted,
        num_layers=len(steps.layers(model)),
        prompt_tokens=prompt_tokens,
        can_tighten_malloc=can_tighten_malloc(),
    )
    return with_talker_choices(plan, checkpoint) if is_qwen3_tts(checkpoint) else plan


def plan_speech(config: RunConfig, hardware: Hardware, checkpoint: Checkpoint) -> Plan:
    """Return the plan of a Qwen3-TTS model, from headers; the package is needed only where it will run."""
    from runner.loader import load_tokenizer
    from runner.predict import measure_base, predict
    from runner.speech.package import import_package

    planned = config.workload.planned
    if not is_qwen3_tts(checkpoint):
        raise RequestError(
            f"workload=speak: {checkpoint.architecture} cannot speak; Qwen3-TTS does (model=qwen3_tts_1_7b, "
            "model=qwen3_tts_0_6b, or model.path=DIR with one)"
        )
    if planned not in (Workload.load, Workload.speak):
        raise RequestError(
            f"workload={planned.value}: {checkpoint.architecture} has the workloads speak, train and load"
        )
    speech = None
    if planned is Workload.speak and (config.workload.name is Workload.speak or config.workload.reference_audio):
        speech = check_request(config.workload, checkpoint)
    here = config.workload.name is not Workload.plan
    if here:
        import_package()
    overhead = measure_base() if here and hardware.device_type == "cpu" else None
    length = longest_prompt(load_tokenizer(checkpoint) if here else None, config.workload, speech)
    return resolve_speech(
        config, hardware, checkpoint, speech=speech, prompt_tokens=length,
        predict=lambda settings: predict(checkpoint, settings, hardware, overhead=overhead),
    )  # fmt: skip


def build_without_storage(checkpoint: Checkpoint, config: RunConfig) -> Any:
    """Return the model on the meta device."""
    import torch

    from runner import steps

    settings = Settings(
        workload="load", device="cpu", precision="fp32", parameter_dtype="float32", compute_dtype="float32",
        trust_remote_code=config.model.trust_remote_code,
    )  # fmt: skip
    with torch.device("meta"):
        return steps.build(checkpoint, settings)


def work(send: Send, config: RunConfig, plan: Plan, hardware: Hardware, checkpoint: Checkpoint, folder: Path) -> Worked:
    """Load what the plan says, do the workload, unload, and return what came of it, measured phase by phase.

    Raises OutOfMemory when the device, or the budget that is enforced here, is exhausted.
    """
    from runner.limit import enforce, is_out_of_memory, keep_few_kernels, tighten_malloc
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

    def tell(seconds: float, expected: float) -> None:
        send(Message(kind="sound", value=(seconds, expected)))

    notes: tuple[str, ...] = ()
    phase = "load"
    try:
        if plan.settings.host_allocator == "tight":
            tighten_malloc()
            if plan.settings.workload == "speak":
                keep_few_kernels()
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
            job = Job(loaded=loaded, settings=plan.settings, config=config.workload, folder=folder, tell=tell)
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
    _check_limit(config.memory.limit_bytes, hardware, memory, plan)
    return Worked(outcome=outcome, memory=memory, timing=watch.seconds, notes=(*notes, *loaded.notes, *meter.notes))


def _check_limit(limit: int | None, hardware: Hardware, memory: dict[str, MemoryStats], plan: Plan) -> None:
    """Raise OutOfMemory when a limit on the CPU was exceeded all the same.

    The kernel's limit counts private writable memory; pages of libraries, which are mapped from files, come on top.
    """
    peaks = [stats.peak_resident for stats in memory.values() if stats.peak_resident is not None]
    if limit is not None and hardware.device_type == "cpu" and peaks and max(peaks) > limit:
        raise OutOfMemory(
            f"the work was done, but the process took {format_size(max(peaks))}: {format_size(max(peaks) - limit)} "
            f"over memory.limit={format_size(limit)} ({format_size(plan.footprint.peak)} predicted)"
        )


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
    if fitting:
        advice = "fits with " + ", or with ".join(f"{r.override} ({format_size(r.peak)})" for r in fitting)
    else:
        settings = plan.settings
        less = ["precision=bf16"] if settings.precision == "fp32" else []
        less += ["a smaller workload.micro_batch_size"] if settings.micro_batch_size > 1 else []
        less += ["a smaller workload.sequence_length"] if settings.workload != "load" else []
        advice = "give it less to do: " + ", ".join(less) if less else "a smaller model is what is left"
    return OutOfMemory(
        f"out of memory in {phase}: {first_line} ({said}: {format_size(plan.footprint.peak)} predicted, "
        f"{format_size(plan.budget)} may be used); {advice}",
        remedies=[{"override": r.override, "peak": r.peak, "fits": r.fits} for r in plan.remedies],
    )
