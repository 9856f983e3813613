"""Settle how a Qwen3-TTS model is run: precision first, then one part after another off the device."""

from collections.abc import Callable
from dataclasses import replace
from importlib import util

from runner.checkpoint import Checkpoint
from runner.config import Attention, Precision, RunConfig
from runner.hardware import Hardware
from runner.limit import KERNELS
from runner.predict.footprint import Footprint
from runner.resolve.fit import base_settings, margin_for
from runner.resolve.precision import rungs
from runner.resolve.remedies import find_remedies, with_precision
from runner.resolve.types import Choice, Plan, Remedy
from runner.settings import Settings
from runner.speech import Speech
from runner.units import format_size

SHORT_CHUNK = 100
"""frames, 8 s"""
CONCESSIONS: tuple[tuple[str, str | int, str], ...] = (
    ("text_embedding", "file", "of the text embedding only the rows that a sentence needs are read from the file"),
    ("codec_chunk", SHORT_CHUNK, "the codec decodes 8 s at a time; a seam in sentences that are longer"),
    ("codec", "after", "the codec comes in when the frames of all sentences are made and the talker is gone; nothing "
                       "is heard before, and the time to read the codec comes on top"),
)  # fmt: skip
"""field, value, what it means: in the order in which they are made"""

Predict = Callable[[Settings], Footprint]


def resolve_speech(
    config: RunConfig, hardware: Hardware, checkpoint: Checkpoint, *, predict: Predict, speech: Speech | None,
    prompt_tokens: int,
) -> Plan:  # fmt: skip
    """Return the plan of loading or speaking: the first precision that fits, then with one concession after another.

    `speech` is None when only loading is asked for.
    """

    def fits(footprint: Footprint) -> bool:
        return hardware.budget is None or footprint.peak + margin_for(footprint) <= hardware.budget

    ladder = rungs(config, hardware, checkpoint)
    base, attention = _base(config, hardware, prompt_tokens, speech)
    steps = CONCESSIONS if config.memory_efficient and base.workload == "speak" else ()
    if base.max_new_tokens <= SHORT_CHUNK:  # such sentences are decoded whole
        steps = tuple(step for step in steps if step[0] != "codec_chunk")
    tried: list[tuple[str, str, Settings, Footprint]] = []
    for made in range(len(steps) + 1):
        conceded = replace(base, **{name: value for name, value, _ in steps[:made]})  # type: ignore[arg-type]
        for rung in ladder:
            settings = with_precision(conceded, rung.precision, pure=False)
            tried.append((rung.precision, rung.reason, settings, predict(settings)))
            if fits(tried[-1][3]):
                break
        if fits(tried[-1][3]):
            break
    taken = tried[-1] if fits(tried[-1][3]) else min(tried, key=lambda item: item[3].peak)
    precision, reason, settings, footprint = taken
    remedies = () if fits(footprint) else _remedies(settings, config, hardware, predict, fits)
    before = [item for item in tried if item is not taken and item[2].text_embedding == base.text_embedding]
    over = [f"not {item[0]}: needs {format_size(item[3].peak)}" for item in before if item[0] != precision]
    verdict = "it fits" if fits(footprint) else "it does not fit"
    why = "; ".join([reason, *over, verdict])
    asked: Precision = config.precision.name
    return Plan(
        settings=settings,
        choices=(
            Choice(name="precision", asked=asked.value, value=precision, reason=why),
            attention,
            *_voice(config, speech),
            *_part_choices(settings),
            *_conceded(settings, base, predict),
        ),
        footprint=footprint, budget=hardware.budget, budget_source=hardware.budget_source,
        margin=margin_for(footprint), fits=fits(footprint), forced=config.memory.force and not fits(footprint),
        remedies=remedies,
    )  # fmt: skip


def _base(config: RunConfig, hardware: Hardware, prompt_tokens: int, speech: Speech | None) -> tuple[Settings, Choice]:
    asked = config.model.attention
    flash = hardware.device_type == "cuda" and util.find_spec("flash_attn") is not None
    value = asked.value if asked is not Attention.auto else "flash_attention_2" if flash else "sdpa"
    reason = "asked for" if asked is not Attention.auto else "flash-attn is installed" if flash else "always there"
    settings = replace(
        base_settings(config, hardware, prompt_tokens=None),
        sequence_length=prompt_tokens,
        attention=value,
        host_allocator="tight" if hardware.device_type == "cpu" and config.memory_efficient else "default",
        codec_encoder=speech is not None and speech.needs_encoder,
        reference_seconds=speech.reference_seconds if speech is not None else 0.0,
    )
    return settings, Choice(name="attention", asked=asked.value, value=value, reason=reason)


def _voice(config: RunConfig, speech: Speech | None) -> tuple[Choice, ...]:
    if speech is None:
        return ()
    voice = speech.speaker or (str(speech.reference_audio) if speech.reference_audio else "as described")
    first = config.workload.speaker == "auto" and speech.speaker is not None
    reason = "the model's first speaker" if first else "asked for"
    spoken = "the model finds out" if speech.language == "auto" else "asked for"
    return (
        Choice(name="speaker", asked=config.workload.speaker, value=voice, reason=reason),
        Choice(name="language", asked=config.workload.language, value=speech.language, reason=spoken),
    )


def _part_choices(settings: Settings) -> tuple[Choice, ...]:
    found = [
        Choice(name="codec_dtype", asked="auto", value="float32", reason="in 16 bits the codec is known to fall silent")
    ]
    if settings.host_allocator == "tight":
        reason = "malloc gives large blocks back at once, so that parts that are let go are gone"
        found.append(Choice(name="host_allocator", asked="auto", value="tight", reason=reason))
        reason = "oneDNN keeps no more compiled kernels, one a shape; in a chapter its 1024 would take 200 MiB"
        found.append(Choice(name="kernel_cache", asked="auto", value=str(KERNELS), reason=reason))
    if settings.parameter_dtype != "float16":
        return tuple(found)
    reason = "it overflows in fp16 (0.6B), and was seen to crash on Turing"
    return (*found, Choice(name="code_predictor_dtype", asked="auto", value="float32", reason=reason))


def _conceded(settings: Settings, base: Settings, predict: Predict) -> tuple[Choice, ...]:
    """Return a choice for each concession that was made, with what it was predicted to save."""
    found, without = [], with_precision(base, settings.precision, pure=False)
    for name, value, words in CONCESSIONS:
        if getattr(settings, name) != value:
            continue
        with_it = replace(without, **{name: value})  # type: ignore[arg-type]
        saved = predict(without).peak - predict(with_it).peak
        found.append(Choice(name=name, asked="auto", value=str(value), reason=f"{words}; saves {format_size(saved)}"))
        without = with_it
    return tuple(found)


def _remedies(
    settings: Settings, config: RunConfig, hardware: Hardware, predict: Predict, fits: Callable[[Footprint], bool]
) -> tuple[Remedy, ...]:
    found = find_remedies(settings, config, hardware, predict=predict, fits=fits)
    if config.memory_efficient or settings.workload != "speak":
        return found
    changes = {name: value for name, value, _ in CONCESSIONS}
    best = predict(replace(settings, memory_efficient=True, **changes))  # type: ignore[arg-type]
    return (Remedy(override="memory_efficient=true", peak=best.peak, fits=fits(best)), *found)
