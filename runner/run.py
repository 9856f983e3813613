"""The street: config → hardware → checkpoint → plan → load → work → record, on one page."""

import dataclasses
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner import checkpoint as checkpoints
from runner import embedded, worker
from runner.checkpoint import Checkpoint
from runner.config import Checkpointing, Precision, RunConfig, Source, Workload
from runner.context import RunContext, hydra_text
from runner.endings import terminated_is_interrupted, undisturbed
from runner.errors import Interrupted, RequestError, RunnerError, WorkloadError
from runner.files import write_whole
from runner.hardware import Hardware
from runner.isolate import Message
from runner.launch import Shared, Workers, alone
from runner.logs import terminal_bar
from runner.meter import MemoryStats
from runner.narrate import Narrator
from runner.picture import memory_picture
from runner.predict import predict
from runner.record import (
    PHASES,
    PICTURE,
    RECORD,
    Record,
    environment,
    new_run_id,
    reproduce_command,
    write_plan,
    write_record,
)
from runner.resolve import Plan, refusal, resolve
from runner.speech import check_request, is_qwen3_tts
from runner.speech.package import require_package
from runner.tracker import track
from runner.workload.prompt import check_texts

log = logging.getLogger(__name__)

TIMELINE_POINTS = 400
"""kept in the record; of the samples that fall together the largest is kept"""


def run(config: RunConfig, context: RunContext, shared: Shared | None = None) -> int:
    """Carry one run out, leave its record in the run's folder, and return its exit code.

    `shared` is what it has in common with the other jobs of its sweep. Raises nothing that a user's request, the
    machine's memory or a model can cause.
    """
    recorder = Recorder(context)
    shared = shared or alone()
    narrator = Narrator(log, bar=terminal_bar() if shared.num_jobs == 1 else None)
    ending: RunnerError | None = None
    try:
        with terminated_is_interrupted():  # also between the workers: a checkpoint is fetched and written here
            _street(config, context, shared, recorder, narrator)
    except RunnerError as error:
        ending = error
    except KeyboardInterrupt:
        ending = Interrupted("interrupted")
    except Exception as error:
        log.exception("runner itself failed")
        ending = WorkloadError(f"runner itself failed: {type(error).__name__}: {error}")
    with undisturbed():
        narrator.close()
        return _complete(recorder, ending)


def reject(context: RunContext, error: RunnerError) -> int:
    """Leave the record of a job whose configuration is wrong, and return its exit code."""
    return _complete(Recorder(context), error)


def _complete(recorder: "Recorder", ending: RunnerError | None) -> int:
    """Complete the record, say where it is, and return the exit code."""
    try:
        if ending is None:
            recorder.write(status="completed")
        else:
            recorder.fail(ending)
        recorder.draw()
    except OSError as error:
        ending = ending or WorkloadError(f"the record cannot be written to {recorder.path}: {error.strerror}")
    if ending is not None:
        log.error("%s", ending.message)
    track(recorder.context)
    log.info("record      %s", recorder.path)
    return 0 if ending is None else ending.exit_code


def _street(config: RunConfig, context: RunContext, shared: Shared, recorder: "Recorder", narrator: Narrator) -> None:
    machine = shared.describe(config)
    recorder.write("detect", hardware=machine)
    narrator.hardware(machine)
    if machine.is_profile and config.workload.name is not Workload.plan:
        raise RequestError(
            f"hardware={config.hardware.name} describes a machine that is not here, so nothing can run on it; "
            f"plan for it with workload=plan workload.of={config.workload.name.value}"
        )
    found = checkpoints.inspect(config.model, source=config.source, environment=os.environ, embedded=embedded.FOLDER)
    recorder.write("inspect", checkpoint=found)
    narrator.checkpoint(found)

    check_texts(config.workload)
    if is_qwen3_tts(found) and (config.workload.name is not Workload.plan or config.workload.planned is Workload.train):
        require_package()  # what training takes is traced on the package's own classes
        if config.workload.planned is Workload.speak:
            check_request(config.workload, found)
    workers = Workers(
        job=context.folder.name, shared=shared, asked=config.hardware.num_threads, preload=_modeling_module(found)
    )
    plan = workers.told(_plan(config, machine, found, workers, narrator))
    recorder.write(
        "plan", plan=plan, notes=workers.notes, reproduce=_reproduce(config, context, found, plan, workers.threads)
    )
    write_plan(plan, context.folder)
    narrator.plan(plan)
    if not plan.fits and not plan.forced:
        raise refusal(plan, machine)
    if config.workload.name is Workload.plan:
        return

    narrator.phase("fetch" if found.source == "hf" else "write")
    progress = shared.stop.guarded(narrator.progress)
    present = checkpoints.materialize(found, config.model, environment=os.environ, progress=progress)
    recorder.lap("fetch")
    with shared.admission.admitted(workers.claim(plan, machine), tell=narrator.waits):
        recorder.write("wait", checkpoint=present, status="running")
        worked = workers.run(
            worker.work, config, plan, machine, present, context.folder,
            on_message=recorder.message(narrator), phase="load",
        )  # fmt: skip
    recorder.finish(worked)
    narrator.outcome(worked.outcome, plan, recorder.record)


def _plan(config: RunConfig, machine: Hardware, found: Checkpoint, workers: Workers, narrator: Narrator) -> Plan:
    """Return the plan: from headers alone where they can answer, else traced in a worker."""
    if config.workload.name is Workload.plan and is_qwen3_tts(found) and config.workload.planned is not Workload.train:
        return worker.plan_speech(config, machine, found)
    if config.workload.name is Workload.plan and config.workload.planned is Workload.load:
        return resolve(config, machine, found, predict=lambda settings: predict(found, settings, machine), num_layers=0)
    with workers.room_to_plan(machine, tell=narrator.waits):
        plan: Plan = workers.run(worker.make_plan, config, machine, found, on_message=lambda _: None, phase="plan")
    return plan


def _modeling_module(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the module of the model's class, so that workers need not import it one by one."""
    if is_qwen3_tts(checkpoint):
        return ("runner.speech.preloaded",)
    name = checkpoint.model_type.replace("-", "_")
    return (f"transformers.models.{name}.modeling_{name}",) if name.isidentifier() else ()


def _reproduce(config: RunConfig, context: RunContext, checkpoint: Checkpoint, plan: Plan, threads: int | None) -> str:
    """Return the command that repeats this run, with what `auto` became written out."""
    pinned: dict[str, str] = {}
    if config.precision.name is Precision.auto:
        pinned["precision"] = plan.settings.precision
    if config.memory.checkpointing is Checkpointing.auto:
        layers = plan.settings.checkpointed_layers
        if layers in (0, plan.settings.num_layers):
            pinned["memory"] = "checkpointing_on" if layers else "checkpointing_off"
    if config.source is Source.hf and checkpoint.revision:
        pinned["model.revision"] = checkpoint.revision
    if config.source is Source.local and checkpoint.path is not None:
        pinned["model.path"] = hydra_text(str(checkpoint.path.resolve()))
    if threads is not None:
        pinned["hardware.threads"] = str(threads)  # sums of floats come out otherwise in other numbers of parts
    for key in ("prompt_file", "text_file", "reference_audio"):
        value = getattr(config.workload, key)
        if value is not None:
            pinned[f"workload.{key}"] = hydra_text(str(Path(os.path.expanduser(value)).resolve()))
    return reproduce_command(context.overrides, pinned=pinned, config_dir=context.config_dir)


@dataclass(slots=True)
class Recorder:
    """The run's record as it grows, and its copy on the disk."""

    context: RunContext
    record: Record = field(init=False)
    _began: float = field(init=False)
    _lap: float = field(init=False)
    _phase: str = "load"
    _timeline: list[tuple[float, str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self._lap = time.monotonic()
        self.record = Record(
            run_id=new_run_id(),
            status="planned",
            command=self.context.command,
            overrides=self.context.overrides,
            config=self.context.config_yaml,
            environment=environment(),
            reproduce=reproduce_command(self.context.overrides, pinned={}, config_dir=self.context.config_dir),
        )

    @property
    def path(self) -> Path:
        """Of record.json."""
        return self.context.folder / RECORD

    def write(self, lap: str | None = None, **changes: Any) -> None:
        """Take `changes` into the record, book the time since the last lap under `lap`, and write the file."""
        if lap is not None:
            self.lap(lap)
        timing = {**self.record.timing, "total": time.monotonic() - self._began}
        self.record = dataclasses.replace(self.record, timing=timing, **changes)
        write_record(self.record, self.context.folder)

    def lap(self, name: str) -> None:
        """Book the time since the last lap under `name`."""
        now = time.monotonic()
        self.record = dataclasses.replace(self.record, timing={**self.record.timing, name: now - self._lap})
        self._lap = now

    def message(self, narrator: Narrator) -> Any:
        """Return the function that takes a worker's messages into the record."""

        def take(message: Message) -> None:
            if message.kind == "sample":
                seconds, resident = message.value
                if resident is not None:
                    self._timeline.append((seconds, self._phase, resident))
            elif message.kind == "phase":
                self._phase = message.value
                narrator.phase(message.value)
            elif message.kind == "stats":
                phase, stats = message.value
                self.write(memory={**self.record.memory, phase: stats})
                narrator.memory(phase, stats)
            elif message.kind == "progress":
                narrator.progress(*message.value)
            elif message.kind == "sound":
                narrator.sound(*message.value)

        return take

    def draw(self) -> None:
        """Write the picture of the run's memory."""
        write_whole(self.context.folder / PICTURE, memory_picture(self.record))

    def finish(self, worked: worker.Worked) -> None:
        """Take a worker's result into the record."""
        timing = {**self.record.timing, **worked.timing}
        self.record = dataclasses.replace(self.record, timing=timing)
        self.write(
            memory=worked.memory,
            outcome=_outcome(worked.outcome),
            notes=(*self.record.notes, *worked.notes),
            timeline=thin(self._timeline, TIMELINE_POINTS),
        )

    def fail(self, error: RunnerError) -> None:
        """Complete the record of a run that `error` ended, with what was measured from outside until then."""
        memory = dict(self.record.memory)
        for phase in PHASES:
            seen = [resident for _, name, resident in self._timeline if name == phase]
            if phase not in memory and seen:
                memory[phase] = MemoryStats(peak_resident=max(seen))
        self.record = self.record.with_error(error)
        self.write(memory=memory, timeline=thin(self._timeline, TIMELINE_POINTS))


def thin(timeline: list[tuple[float, str, int]], most: int) -> tuple[tuple[float, str, int], ...]:
    """Return at most `most` samples, of each group of neighbours the one with the largest memory."""
    if len(timeline) <= most:
        return tuple(timeline)
    size = -(-len(timeline) // most)
    groups = (timeline[start : start + size] for start in range(0, len(timeline), size))
    return tuple(max(group, key=lambda sample: sample[2]) for group in groups)


def _outcome(outcome: Any) -> Mapping[str, Any]:
    return {item.name: getattr(outcome, item.name) for item in dataclasses.fields(outcome)}
