"""What can be told from headers and config.json alone, without torch: weights, KV cache, a rough whole."""

from collections.abc import Mapping
from math import prod
from typing import Any

from runner.checkpoint import Checkpoint, StoredTensor
from runner.predict.footprint import Footprint
from runner.settings import ITEMSIZE, Settings

CAST = frozenset({"float64", "float32", "bfloat16", "float16"})
"""stored dtypes that loading casts to parameter_dtype; every other one stays as it is"""
KEPT_PER_LAYER = 17
"""Values that a transformer layer keeps for the backward pass, per token and hidden unit, the attention matrix not
among them: 34 bytes in 16 bit (Korthikanti et al., Reducing Activation Recomputation, 2022, section 4.1). Gated
feed-forward layers keep up to half as much again."""
LOGIT_COPIES = 3
"""float32 copies of the logits that a loss keeps at once: the upcast, its log-softmax, its gradient"""


def parameter_bytes(checkpoint: Checkpoint, settings: Settings) -> int:
    """Return the bytes of all stored tensors in parameter_dtype, tied ones once, quantized ones as stored.

    Where no header was read, the count of parameters stands in for the tensors, or, for pickled weights, the size of
    their files, taken to be in the dtype that config.json names, else float32.
    """
    if not checkpoint.tensors:
        return _num_parameters(checkpoint) * ITEMSIZE[settings.parameter_dtype]
    return sum(_loaded_bytes(tensor, checkpoint, settings) for tensor in _distinct(checkpoint))


def kv_cache_bytes(config: Mapping[str, Any], settings: Settings, dtype: str | None = None) -> int:
    """Return the bytes of keys and values after the last new token went through the model.

    2 x layers x KV heads x head_dim x itemsize for each token (32 layers, 8 KV heads, head_dim 128, bfloat16: 128 KiB),
    times prompt and new tokens but the last, which is never fed back. A sliding layer holds its window less one.
    0 when config.json does not say how many heads there are.
    """
    text = text_config(config)
    layers, hidden = _number(text, "layers"), _number(text, "hidden")
    heads = _number(text, "heads")
    kv_heads = _number(text, "kv_heads") or heads
    head_dim = _number(text, "head_dim") or (hidden // heads if heads else 0)
    tokens = settings.micro_batch_size * 1
    length = settings.sequence_length + settings.max_new_tokens - 1
    per_token = 2 * kv_heads * head_dim * ITEMSIZE[dtype or settings.compute_dtype]
    window = _window(text)
    kinds = text.get("layer_types") or ["sliding_attention" if window else "full_attention"] * layers
    held = sum(min(length, window - 1) if kind == "sliding_attention" and window else length for kind in kinds)
    return per_token * tokens * held


def load_footprint(checkpoint: Checkpoint, settings: Settings) -> Footprint:
    """Return the footprint of loading and nothing else.

    The file is read a block at a time into the model's own memory, so the model itself is the peak.
    """
    parameters = parameter_bytes(checkpoint, settings)
    if not checkpoint.tensors:
        return _unread_footprint(parameters, checkpoint)
    return Footprint(
        parameters=parameters, buffers=0, gradients=0, optimizer_state=0, activations=0, kv_cache=0, workspace=0,
        overhead=0, peak=parameters, load_peak=parameters, work_peak=parameters, moment="load",
        method="headers", notes=("buffers that are not stored, such as rotary frequencies, are not counted",),
    )  # fmt: skip


def _num_parameters(checkpoint: Checkpoint) -> int:
    if checkpoint.num_parameters:
        return checkpoint.num_parameters
    named = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
    return checkpoint.num_bytes // ITEMSIZE.get(str(named), ITEMSIZE["float32"])


def _unread_footprint(parameters: int, checkpoint: Checkpoint) -> Footprint:
    """Return the footprint of loading files whose headers tell nothing: they are read whole beside the model."""
    peak = parameters + checkpoint.num_bytes
    return Footprint(
        parameters=parameters, buffers=0, gradients=0, optimizer_state=0, activations=0, kv_cache=0,
        workspace=checkpoint.num_bytes, overhead=0, peak=peak, load_peak=peak, work_peak=parameters, moment="load",
        method="estimated: pickled weights have no header",
        notes=("the sizes of pickled files stand in for their tensors, and are counted once more while they are read",),
    )  # fmt: skip


def estimate(checkpoint: Checkpoint, settings: Settings, *, why: str) -> Footprint:
    """Return a footprint by formulas for a model that could not be traced; `why` becomes part of its method.

    Its error is tens of percent in what is not weights: the formulas know sizes, not the model's code.
    """
    parameters = parameter_bytes(checkpoint, settings)
    parts = {"gradients": 0, "optimizer_state": 0, "activations": 0, "kv_cache": 0, "workspace": 0}
    text = text_config(checkpoint.config)
    tokens = settings.micro_batch_size * settings.sequence_length
    itemsize = ITEMSIZE[settings.compute_dtype]
    layers, hidden, vocabulary = _number(text, "layers"), _number(text, "hidden"), _number(text, "vocabulary")
    inner = _number(text, "inner") or 4 * hidden
    moment = settings.workload
    if settings.workload == "train":
        parts |= _training_parts(checkpoint, settings, parameters)
        recomputed = min(settings.checkpointed_layers, layers)
        kept = KEPT_PER_LAYER * (layers - recomputed) + recomputed + (KEPT_PER_LAYER if recomputed else 0)
        activations = tokens * (kept * hidden * itemsize + LOGIT_COPIES * vocabulary * 4)
        if activations >= parts["workspace"]:
            parts |= {"activations": activations, "workspace": 0}
        moment = "backward" if parts["activations"] else "optimizer_step"
    elif settings.workload in ("forward", "generate"):
        new_only = settings.workload == "generate"
        logits = (settings.micro_batch_size if new_only else tokens) * vocabulary * (itemsize + 4 * new_only)
        parts["workspace"] = max(logits, tokens * (3 * inner + 2 * hidden) * itemsize)
        parts["kv_cache"] = kv_cache_bytes(checkpoint.config, settings) if new_only else 0
        moment = "decode" if new_only else "forward"
    work = parameters + sum(parts.values())
    return Footprint(
        parameters=parameters, buffers=0, gradients=parts["gradients"], optimizer_state=parts["optimizer_state"],
        activations=parts["activations"], kv_cache=parts["kv_cache"], workspace=parts["workspace"], overhead=0,
        peak=work, load_peak=parameters,
        work_peak=work, moment=moment, method=f"estimated: {why}",
        notes=("weights are exact, everything else is a formula over config.json's sizes",),
    )  # fmt: skip


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of config.json that describes the language model; the whole where there is no such part."""
    for name in ("text_config", "talker_config", "decoder", "thinker_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping) and _number(inner, "layers"):
            return inner
    return config


def _training_parts(checkpoint: Checkpoint, settings: Settings, parameters: int) -> dict[str, int]:
    """Gradients and optimizer state are as large as the parameters, once each; a step's temporary is the workspace."""
    itemsize = ITEMSIZE[settings.parameter_dtype]
    if settings.optimizer == "adafactor":
        state = sum((prod(t.shape[:-1]) + prod(t.shape[:-2]) * t.shape[-1]) * itemsize if len(t.shape) > 1
                    else prod(t.shape) * itemsize for t in _distinct(checkpoint))  # fmt: skip
    else:
        state = parameters * (2 if settings.optimizer == "adamw" else int(settings.momentum > 0))
    largest = max((_loaded_bytes(tensor, checkpoint, settings) for tensor in checkpoint.tensors), default=0)
    temporary = {"foreach": parameters, "fused": 0}.get(settings.optimizer_implementation, 2 * largest)
    return {"gradients": parameters, "optimizer_state": state, "workspace": temporary}


def _distinct(checkpoint: Checkpoint) -> list[StoredTensor]:
    again = {implied for _, implied in checkpoint.tied}
    return [tensor for tensor in checkpoint.tensors if tensor.name not in again]


def _loaded_bytes(tensor: StoredTensor, checkpoint: Checkpoint, settings: Settings) -> int:
    if tensor.dtype not in CAST or checkpoint.quantization is not None:
        return tensor.num_bytes
    return prod(tensor.shape) * ITEMSIZE[settings.parameter_dtype]


_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim", "d_kv"),
    "inner": ("intermediate_size", "d_ff", "n_inner", "ffn_dim", "decoder_ffn_dim"),
    "vocabulary": ("vocab_size",),
}
"""how the model families name the same size in config.json"""


def _number(config: Mapping[str, Any], quantity: str) -> int:
    for name in _NAMES[quantity]:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _window(config: Mapping[str, Any]) -> int:
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return window if isinstance(window, int) else 0
