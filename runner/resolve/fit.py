"""Turn what was asked for into one way to run, or into a refusal with remedies."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from runner.checkpoint import Checkpoint
from runner.config import (
    AUTO,
    Adapter,
    Attention,
    Checkpointing,
    Optimizer,
    OptimizerImplementation,
    Precision,
    RunConfig,
    Workload,
)
from runner.errors import DoesNotFit, RequestError
from runner.hardware import Hardware
from runner.predict.footprint import Footprint
from runner.resolve.precision import Rung, rungs
from runner.resolve.remedies import find_remedies, with_precision
from runner.resolve.types import Choice, Plan
from runner.settings import Settings
from runner.units import MiB, format_size

DEFAULT_SEQUENCE_LENGTH = 128

MARGIN_FRACTION = 0.02
MARGIN_LEAST = 64 * MiB
"""The margin is the larger of the two, the fraction taken of the predicted tensors: allocator slack, thread stacks
and library scratch space grow with the run, and a part of them comes with any run."""

Predict = Callable[[Settings], Footprint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run and what it would need."""

    rung: Rung
    settings: Settings
    footprint: Footprint
    checkpointing_reason: str
    fits: bool


def resolve(
    config: RunConfig,
    hardware: Hardware,
    checkpoint: Checkpoint,
    *,
    predict: Predict,
    num_layers: int,
    prompt_tokens: int | None = None,
    can_tighten_malloc: bool = False,
) -> Plan:
    """Return the plan: the first precision of the ladder that fits, with the fewest checkpointed layers.

    `predict` gives the footprint of one Settings. `num_layers` counts the layers that can be checkpointed.
    `prompt_tokens` is the length of the tokenised prompt, None where there is no tokenizer. `can_tighten_malloc`:
    whether the host's allocator can be told to give memory back at once, which costs time and changes no number; it
    is the first concession. The plan may not fit: then it is for the best attempt, and carries remedies.
    """
    known: dict[Settings, Footprint] = {}

    def predicted(settings: Settings) -> Footprint:
        if settings not in known:
            known[settings] = predict(settings)
        return known[settings]

    def fits(footprint: Footprint) -> bool:
        return hardware.budget is None or footprint.peak + margin_for(footprint) <= hardware.budget

    tight = can_tighten_malloc and config.memory_efficient and hardware.device_type == "cpu"
    allocators = ("default", "tight") if tight else ("default",)
    base, choices = _base_settings(config, hardware, num_layers=num_layers, prompt_tokens=prompt_tokens)
    tried: list[Candidate] = []
    for rung in rungs(config, hardware, checkpoint):
        settings = with_precision(base, rung.precision, pure=config.precision.pure)
        tried.append(_with_checkpointing(rung, settings, config, allocators, predict=predicted, fits=fits))
        if tried[-1].fits:
            break
    taken = tried[-1] if tried[-1].fits else min(tried, key=lambda candidate: candidate.footprint.peak)
    remedies = () if taken.fits else find_remedies(taken.settings, config, hardware, predict=predicted, fits=fits)
    return Plan(
        settings=taken.settings,
        choices=(
            _precision_choice(config, taken, tried),
            _checkpointing_choice(config, taken),
            *choices,
            *_allocator_choice(taken),
        ),
        footprint=taken.footprint,
        budget=hardware.budget,
        budget_source=hardware.budget_source,
        margin=margin_for(taken.footprint),
        fits=taken.fits,
        forced=config.memory.force and not taken.fits,
        remedies=remedies,
    )


def base_settings(config: RunConfig, hardware: Hardware, *, prompt_tokens: int | None) -> Settings:
    """Return the settings that do not depend on memory; precision and checkpointing are still open."""
    return _base_settings(config, hardware, num_layers=0, prompt_tokens=prompt_tokens)[0]


def margin_for(footprint: Footprint) -> int:
    """Return the bytes to keep clear of the budget."""
    return max(MARGIN_LEAST, int(MARGIN_FRACTION * (footprint.peak - footprint.overhead)))


def refusal(plan: Plan, hardware: Hardware) -> DoesNotFit:
    """Return the error for a plan that does not fit: the wish, the fact, the gap and the remedy."""
    place = hardware.name if hardware.is_profile else hardware.device
    message = (
        f"needs {format_size(plan.footprint.peak)} on {place}; {format_size(plan.budget)} may be used "
        f"({plan.budget_source}), {format_size(plan.margin)} is kept clear: {format_size(plan.shortfall)} short"
    )
    part, size = plan.footprint.largest_part
    message += f". The peak is in {plan.footprint.where}, {format_size(size)} of it {part}"
    fitting = [remedy for remedy in plan.remedies if remedy.fits]
    if fitting:
        message += ". Fits with " + ", or with ".join(f"{r.override} ({format_size(r.peak)})" for r in fitting)
    elif plan.remedies:
        best = plan.remedies[0]
        message += f". Nothing here makes it fit; the least is {format_size(best.peak)} with {best.override}"
    else:
        message += ". Nothing here makes it smaller"
    remedies = [{"override": r.override, "peak": r.peak, "fits": r.fits} for r in plan.remedies]
    return DoesNotFit(message, remedies=remedies)


def _base_settings(
    config: RunConfig, hardware: Hardware, *, num_layers: int, prompt_tokens: int | None
) -> tuple[Settings, tuple[Choice, ...]]:
    workload = config.workload
    planned = workload.planned
    if planned is Workload.plan:
        raise RequestError("workload.of=plan plans nothing; give load, forward, generate or train")
    implementation, implementation_choice = _optimizer_implementation(config, hardware)
    length, length_choice = _sequence_length(config, prompt_tokens)
    training_choices = (implementation_choice,) if planned is Workload.train else ()
    trained = planned is Workload.train and config.adapter.name is not Adapter.none
    settings = Settings(
        workload=planned.value,
        device=hardware.device,
        precision="fp32",
        parameter_dtype="float32",
        compute_dtype="float32",
        num_layers=num_layers,
        micro_batch_size=workload.micro_batch_size,
        sequence_length=length,
        max_new_tokens=workload.max_new_tokens,
        steps=workload.steps,
        grad_accum_steps=workload.grad_accum_steps,
        temperature=workload.temperature,
        adapter=config.adapter.name.value if trained else Adapter.none.value,
        adapter_rank=config.adapter.rank,
        adapter_alpha=config.adapter.alpha,
        adapter_targets=tuple(config.adapter.targets),
        optimizer=config.optimizer.name.value,
        optimizer_implementation=implementation,
        learning_rate=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay,
        momentum=config.optimizer.momentum,
        attention=None if config.model.attention is Attention.auto else config.model.attention.value,
        seed=config.seed,
        trust_remote_code=config.model.trust_remote_code,
        allow_pickle=config.model.allow_pickle,
        allow_missing=config.model.allow_missing,
        memory_efficient=config.memory_efficient,
    )
    length_choices = (length_choice,) if planned is not Workload.load else ()
    device = Choice(
        name="device",
        asked=config.hardware.device,
        value=hardware.device,
        reason=hardware.sources.get("device", hardware.name),
    )
    return settings, (device, *length_choices, *training_choices, *_adapter_choice(config, settings))


def _adapter_choice(config: RunConfig, settings: Settings) -> tuple[Choice, ...]:
    asked = config.adapter
    if asked.name is Adapter.none:
        return ()
    if settings.adapter == "none":
        reason = f"no effect: {settings.workload} trains nothing"
    else:
        reason = (
            f"asked for: rank {asked.rank}, beside {', '.join(asked.targets)}; the model is frozen, without gradients "
            "and optimizer state"
        )
    return (Choice(name="adapter", asked=asked.name.value, value=settings.adapter, reason=reason),)


def _sequence_length(config: RunConfig, prompt_tokens: int | None) -> tuple[int, Choice]:
    workload = config.workload
    asked = str(workload.sequence_length)
    from_prompt = prompt_tokens is not None and workload.planned in (Workload.generate, Workload.forward)
    if workload.sequence_length != AUTO:
        value, reason = int(workload.sequence_length), "asked for"
        if from_prompt and value != prompt_tokens:
            reason = f"asked for; the prompt's {prompt_tokens} tokens are repeated or cut to that length"
    elif from_prompt and prompt_tokens is not None:
        value, reason = prompt_tokens, "the prompt's tokens"
    else:
        value, reason = DEFAULT_SEQUENCE_LENGTH, "the default for synthetic tokens and for training"
    return value, Choice(name="sequence_length", asked=asked, value=str(value), reason=reason)


def _optimizer_implementation(config: RunConfig, hardware: Hardware) -> tuple[str, Choice]:
    asked = config.optimizer.implementation
    if config.optimizer.name is Optimizer.adamw_8bit:
        if asked is not OptimizerImplementation.auto:
            raise RequestError(
                f"optimizer.implementation={asked.value}: adamw_8bit has one form, bitsandbytes' kernel; leave it out"
            )
        reason = "bitsandbytes' kernel, one parameter at a time"
        return "fused", Choice(name="optimizer_implementation", asked="auto", value="fused", reason=reason)
    if asked is not OptimizerImplementation.auto:
        value, reason = asked.value, "asked for"
    elif hardware.device_type == "cpu":
        value, reason = "forloop", "torch's default on a CPU; one parameter's temporaries at a time"
    elif not config.memory_efficient:
        value, reason = "foreach", "torch's default on an accelerator; a temporary as large as the parameters"
    elif config.optimizer.name.value == "adafactor":
        value, reason = "forloop", "Adafactor has no fused form, and foreach needs more temporaries"
    else:
        value, reason = "fused", "no temporaries: one kernel updates parameters and state in place"
    if value == "fused" and config.optimizer.name.value == "adafactor":
        raise RequestError("optimizer.implementation=fused: adafactor has none; choose forloop or foreach")
    return value, Choice(name="optimizer_implementation", asked=asked.value, value=value, reason=reason)


def _with_checkpointing(
    rung: Rung,
    settings: Settings,
    config: RunConfig,
    allocators: tuple[str, ...],
    *,
    predict: Predict,
    fits: Callable[[Footprint], bool],
) -> Candidate:
    """Settle the number of checkpointed layers, and the host's allocator, for one precision."""
    tried = allocators if settings.workload == "train" else ("default",)

    def candidate(num_layers: int, reason: str) -> Candidate:
        for allocator in tried:
            changed = replace(settings, checkpointed_layers=num_layers, host_allocator=allocator)
            footprint = predict(changed)
            if fits(footprint):
                break
        return Candidate(
            rung=rung, settings=changed, footprint=footprint, checkpointing_reason=reason, fits=fits(footprint)
        )

    asked, most = config.memory.checkpointing, settings.num_layers
    if settings.workload != "train":
        return candidate(0, f"no effect: {settings.workload} keeps no activations for a backward pass")
    if asked is Checkpointing.on:
        if most == 0:
            raise RequestError("memory=checkpointing_on: this model has no repeated layers that can be checkpointed")
        return candidate(most, "asked for; the cache is off, and each layer is computed again in the backward pass")
    if asked is Checkpointing.off or not config.memory_efficient or most == 0:
        reason = "asked for" if asked is Checkpointing.off else "memory_efficient=false" if most else "no such layers"
        return candidate(0, reason)
    none = candidate(0, "fits without recomputing anything")
    if none.fits:
        return none
    low, high = 1, most
    best = candidate(most, "does not fit even with all layers recomputed")
    if not best.fits:
        part, size = best.footprint.largest_part
        reason = (
            f"does not fit even with all layers recomputed: the peak is then in {best.footprint.where}, "
            f"{format_size(size)} of it {part}"
        )
        return replace(best if best.footprint.peak < none.footprint.peak else none, checkpointing_reason=reason)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if candidate(middle, "").fits else (middle + 1, high)
    return candidate(high, f"the fewest of {most} layers with which it fits")


def _precision_choice(config: RunConfig, taken: Candidate, tried: list[Candidate]) -> Choice:
    too_large = [c for c in tried if not c.fits and c is not taken]
    free = config.precision.name is Precision.auto and config.memory_efficient
    reasons = [taken.rung.reason]
    if free:
        reasons = [f"{taken.rung.reason}; it fits" if taken.fits else "of what could be tried it needs least"]
    reasons += [f"not {c.rung.precision}: needs {format_size(c.footprint.peak)}" for c in too_large]
    if not taken.fits:
        reasons.append("it does not fit either" if too_large else "it does not fit")
    mixed = taken.settings.autocast
    if mixed and taken.settings.adapter == "none":
        reasons.append("parameters stay in fp32 under autocast")
    elif mixed:
        reasons.append(f"the frozen weights in {taken.settings.precision}, the adapter's in fp32 under autocast")
    asked: Precision = config.precision.name
    return Choice(name="precision", asked=asked.value, value=taken.settings.precision, reason="; ".join(reasons))


def _checkpointing_choice(config: RunConfig, taken: Candidate) -> Choice:
    layers = taken.settings.checkpointed_layers
    value = f"{layers} of {taken.settings.num_layers} layers" if layers else "off"
    return Choice(
        name="activation_checkpointing",
        asked=config.memory.checkpointing.value,
        value=value,
        reason=taken.checkpointing_reason,
    )


def _allocator_choice(taken: Candidate) -> tuple[Choice, ...]:
    if taken.settings.host_allocator == "default":
        return ()
    kept = "most of what checkpointed layers free" if taken.settings.checkpointed_layers else "up to a quarter more"
    reason = f"malloc gives large blocks back at once; by default it would keep {kept}; 1.2 to 2 times the time"
    return (Choice(name="host_allocator", asked="auto", value="tight", reason=reason),)
