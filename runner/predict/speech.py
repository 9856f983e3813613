"""The footprint of a speech model, from the moments that its own room tells."""

from runner.checkpoint import Checkpoint
from runner.predict.footprint import Footprint
from runner.settings import Settings
from runner.speech.footprint import moments

WORDS = {"frames": "decode", "decode": "codec", "reference": "encode", "load": "load"}
WORKING = ("hidden_states", "logits", "codec_workspace")


def speech_footprint(checkpoint: Checkpoint, settings: Settings) -> Footprint:
    """Return the footprint of loading or speaking; exact for weights, formulas over config.json for the rest."""
    found = moments(checkpoint, settings)
    highest = max(found, key=lambda name: sum(found[name].values()))
    at_peak = found[highest]
    peak, work = sum(at_peak.values()), sum(at_peak[name] for name in WORKING if name in at_peak)
    cache = at_peak.get("kv_cache", 0)
    working = max(sum(parts.values()) for name, parts in found.items() if name != "load") if len(found) > 1 else peak
    parts: dict[str, int] = {}
    for moment in found.values():
        for name, size in moment.items():
            parts[name] = max(parts.get(name, 0), size)
    return Footprint(
        parameters=peak - work - cache, buffers=0, gradients=0, optimizer_state=0, activations=0, kv_cache=cache,
        workspace=work, overhead=0, peak=peak, load_peak=sum(found["load"].values()), work_peak=working,
        moment=WORDS[highest], module="" if highest == "load" else "the codec" if highest == "decode" else highest,
        method="headers and config.json", parts=parts,
        notes=("what convolutions and products take besides tensors is in the codec's workspace, by measurement",),
        timeline=tuple((WORDS[name], _categories(values)) for name, values in found.items()),
    )  # fmt: skip


def _categories(values: dict[str, int]) -> dict[str, int]:
    cache = values.get("kv_cache", 0)
    work = sum(values[name] for name in WORKING if name in values)
    found = {"parameters": sum(values.values()) - cache - work, "kv_cache": cache, "workspace": work}
    return {name: size for name, size in found.items() if size}
