"""What to type when a run does not fit: changes of one kind each, predicted before they are named."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from runner.config import RunConfig
from runner.extras import is_installed
from runner.hardware import Hardware
from runner.predict.footprint import Footprint
from runner.resolve.types import Remedy
from runner.settings import DTYPES, Settings

MOST_REMEDIES = 5
SHORTEST_SEQUENCE = 16
SMALLEST_GENERATION = 8
GENERATING = ("generate", "speak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One override and the settings that it leads to."""

    override: str
    settings: Settings


Fits = Callable[[Footprint], bool]
Predict = Callable[[Settings], Footprint]


def find_remedies(
    settings: Settings, config: RunConfig, hardware: Hardware, *, predict: Predict, fits: Fits
) -> tuple[Remedy, ...]:
    """Return what makes it fit, the least intrusive first; where nothing does, the change that saves most.

    Single changes are tried first. Where none is enough they are added up in their order until it fits.
    """
    found: list[Remedy] = []
    useful: list[Change] = []
    before = predict(settings).peak
    for variants in _kinds(settings, config, hardware):
        remedy, change = _largest_that_fits(variants, predict=predict, fits=fits)
        if change is not None and remedy.peak < before:
            useful.append(change)
            found += [remedy] if remedy.fits else []
    if not found and useful:
        found = [_together(settings, config, hardware, predict=predict, fits=fits)]
    return tuple(found[:MOST_REMEDIES])


def _largest_that_fits(variants: list[Change], *, predict: Predict, fits: Fits) -> tuple[Remedy, Change | None]:
    """Return the mildest of `variants` that fits, or the strongest; they are ordered from mild to strong.

    The peak falls from each variant to the next, so bisection finds it with the fewest predictions.
    """
    if not variants:
        return Remedy(override="", peak=0, fits=False), None

    def remedy(change: Change) -> Remedy:
        footprint = predict(change.settings)
        return Remedy(override=change.override, peak=footprint.peak, fits=fits(footprint))

    strongest = remedy(variants[-1])
    if not strongest.fits:
        return strongest, variants[-1]
    low, high, best = 0, len(variants) - 1, strongest
    while low < high:
        middle = (low + high) // 2
        tried = remedy(variants[middle])
        low, high, best = (low, middle, tried) if tried.fits else (middle + 1, high, best)
    return best, variants[high]


def _together(settings: Settings, config: RunConfig, hardware: Hardware, *, predict: Predict, fits: Fits) -> Remedy:
    """Add one kind of change after another, each at its strongest until it fits, and return the sum."""
    overrides: list[str] = []
    best = predict(settings)
    for index in range(len(list(_kinds(settings, config, hardware)))):
        kinds = list(_kinds(settings, config, hardware))
        variants = kinds[index] if index < len(kinds) else []
        remedy, change = _largest_that_fits(variants, predict=predict, fits=fits)
        if change is None or remedy.peak >= best.peak:
            continue
        overrides.append(change.override)
        settings, best = change.settings, predict(change.settings)
        if fits(best):
            break
    return Remedy(override=" ".join(overrides), peak=best.peak, fits=fits(best))


def _kinds(settings: Settings, config: RunConfig, hardware: Hardware) -> Iterator[list[Change]]:
    """Yield one list for each kind of change, in the order of how little it alters what was asked for."""
    yield _checkpointing(settings)
    yield _precision(settings, config, hardware)
    yield _optimizer_implementation(settings, hardware)
    yield _halved(settings, "max_new_tokens", SMALLEST_GENERATION) if settings.workload in GENERATING else []
    yield _micro_batch(settings)
    fixed = settings.workload in ("load", "speak")
    yield _halved(settings, "sequence_length", SHORTEST_SEQUENCE) if not fixed else []
    yield _optimizer(settings)
    yield _pure(settings)
    yield _adapter(settings)


def _checkpointing(settings: Settings) -> list[Change]:
    if settings.workload != "train" or settings.checkpointed_layers >= settings.num_layers:
        return []
    return [
        Change(override="memory=checkpointing_on", settings=replace(settings, checkpointed_layers=settings.num_layers))
    ]


def _precision(settings: Settings, config: RunConfig, hardware: Hardware) -> list[Change]:
    """Return bf16 and fp16: native ones first, emulated ones only on a CPU, where they are slow but run.

    fp16 comes last: it takes the same bytes, or fewer where bf16's products need copies of their operands.
    """
    lower = {"fp32": ("bf16", "fp16"), "bf16": ("fp16",), "fp16": ()}[settings.precision]
    native = [precision for precision in lower if hardware.supports(DTYPES[precision])]
    on_host = hardware.device_type == "cpu"
    emulated = [p for p in lower if p not in native and on_host and DTYPES[p] in hardware.emulated_dtypes]
    return [
        Change(override=f"precision={p}", settings=with_precision(settings, p, pure=config.precision.pure))
        for p in (*native, *emulated)
    ]


def _optimizer_implementation(settings: Settings, hardware: Hardware) -> list[Change]:
    wanted = "fused" if settings.optimizer in ("adamw", "sgd") else "forloop"
    if settings.workload != "train" or settings.optimizer_implementation in ("fused", "forloop"):
        return []
    if hardware.device_type == "cpu":
        wanted = "forloop"
    changed = replace(settings, optimizer_implementation=wanted)
    return [Change(override=f"optimizer.implementation={wanted}", settings=changed)]


def _halved(settings: Settings, name: str, least: int) -> list[Change]:
    value, changes = getattr(settings, name), []
    while value // 2 >= least:
        value //= 2
        # replace() takes field names as keywords; `name` is one of three int fields
        changes.append(Change(override=f"workload.{name}={value}", settings=replace(settings, **{name: value})))
    return changes


def _micro_batch(settings: Settings) -> list[Change]:
    """Return smaller micro batches; in training more of them make up the same step."""
    if settings.workload != "train":
        return _halved(settings, "micro_batch_size", 1) if settings.workload not in ("load", "speak") else []
    changes, size = [], settings.micro_batch_size
    while size > 1:
        size //= 2
        steps = settings.grad_accum_steps * -(-settings.micro_batch_size // size)
        changes.append(
            Change(
                override=f"workload.micro_batch_size={size} workload.grad_accum_steps={steps}",
                settings=replace(settings, micro_batch_size=size, grad_accum_steps=steps),
            )
        )
    return changes


def _optimizer(settings: Settings) -> list[Change]:
    if settings.workload != "train" or settings.optimizer == "sgd":
        return []
    lower = ["adamw_8bit"] if is_installed("optimizer=adamw_8bit") else []
    names = {"adamw": [*lower, "adafactor", "sgd"], "adamw_8bit": ["adafactor", "sgd"], "adafactor": ["sgd"]}[
        settings.optimizer
    ]
    return [
        Change(
            override=f"optimizer={name}", settings=replace(settings, optimizer=name, optimizer_implementation="forloop")
        )
        for name in names
    ]


def _pure(settings: Settings) -> list[Change]:
    if settings.workload != "train" or not settings.autocast or settings.precision != "bf16":
        return []
    return [Change(override="precision.pure=true", settings=with_precision(settings, settings.precision, pure=True))]


def _adapter(settings: Settings) -> list[Change]:
    if settings.workload != "train" or settings.adapter != "none" or not is_installed("adapter=lora"):
        return []
    pure = settings.precision != "fp32" and not settings.autocast
    lora = with_precision(replace(settings, adapter="lora"), settings.precision, pure=pure)
    return [Change(override="adapter=lora", settings=lora)]


def with_precision(settings: Settings, precision: str, *, pure: bool) -> Settings:
    """Return `settings` in `precision`: cast for inference; in training fp32 parameters under autocast unless pure.

    What an adapter leaves frozen is cast as for inference: it gets no updates that fp32 would be needed for.
    """
    dtype = DTYPES[precision]
    mixed = settings.workload == "train" and precision != "fp32" and not pure
    return replace(
        settings,
        precision=precision,
        parameter_dtype="float32" if mixed and settings.adapter == "none" else dtype,
        compute_dtype=dtype,
        autocast=mixed,
        grad_scaler=mixed and precision == "fp16",
    )
