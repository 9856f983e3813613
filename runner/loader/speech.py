"""Fill a Qwen3-TTS model part by part: the talker in the plan's dtype, the codec in float32, each when it is due."""

import contextlib
import gc
import io
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runner.checkpoint import Checkpoint, StoredTensor
from runner.errors import CheckpointError
from runner.loader.checks import names
from runner.loader.source import SourceTensor, open_sources
from runner.settings import Settings
from runner.speech import parts
from runner.speech.model import RowsFromFile, build_codec, build_talker, guard_predictor

Tell = Callable[[int, int], None] | None


def fill_talker(checkpoint: Checkpoint, settings: Settings, *, progress: Tell = None) -> Any:
    """Return the model without its codec, in the plan's dtypes, on its device; the text embedding may stay on disk."""
    model = build_talker(checkpoint, settings)
    wanted = dict(checkpoint_tensors(checkpoint))
    if settings.text_embedding == "file":
        stored = wanted.pop("talker.model.text_embedding.weight")
        rows = RowsFromFile(Path(checkpoint.path or "") / stored.file, stored, settings)
        model.talker.model.text_embedding = rows
    _fill(model, checkpoint, wanted, lambda name: parts.dtype_of(name, settings), progress)
    model.to(settings.device)
    if parts.predictor_dtype(settings) != settings.parameter_dtype:
        guard_predictor(model, getattr(torch, settings.parameter_dtype))
    return model.eval()


def fill_codec(checkpoint: Checkpoint, settings: Settings, *, encoder: bool, decoder: bool = True) -> Any:
    """Return the codec in float32 on the plan's device, of its two halves those that are asked for."""
    codec = checkpoint.codec
    if codec is None or codec.path is None:
        raise CheckpointError("the checkpoint has no codec on disk")
    model = build_codec(codec, settings, encoder=encoder, decoder=decoder)
    halves = (("encoder.",) if encoder else ()) + (("decoder.",) if decoder else ())
    wanted = {name: tensor for name, tensor in checkpoint_tensors(codec).items() if name.startswith(halves)}
    _fill(model, codec, wanted, lambda name: "float32", None)
    return model.to(settings.device).eval()


def plain(checkpoint: Checkpoint, settings: Settings) -> tuple[Any, Any]:
    """Return model and codec as qwen-tts loads them: everything in one dtype, at once."""
    from runner.speech.package import import_package

    models = import_package()
    from qwen_tts.inference.qwen3_tts_model import Qwen3TTSModel  # type: ignore[import-not-found,unused-ignore]

    del models
    with contextlib.redirect_stdout(io.StringIO()):
        wrapper = Qwen3TTSModel.from_pretrained(
            str(checkpoint.path), dtype=getattr(torch, settings.parameter_dtype), attn_implementation=settings.attention
        )
    wrapper.model.to(settings.device)
    return wrapper.model.eval(), wrapper.model.speech_tokenizer.model.float().to(settings.device).eval()


def load_speech(checkpoint: Checkpoint, settings: Settings, *, progress: Tell = None) -> Any:
    """Return the Loaded of a Qwen3-TTS checkpoint: what the plan wants on the device from the start.

    Training works on the codec's tokens and never takes the codec in, which qwen-tts' own loading cannot leave out.
    """
    from runner.loader import Loaded, load_tokenizer

    start = time.monotonic()
    if settings.memory_efficient or settings.workload == "train":
        model = fill_talker(checkpoint, settings, progress=progress)
        whole = settings.workload == "load"
        held = whole or (settings.workload == "speak" and settings.codec == "held")
        codec = fill_codec(checkpoint, settings, encoder=whole) if held else None
    else:
        model, codec = plain(checkpoint, settings)
    histogram: dict[str, int] = {}
    modules = [module for module in (model, codec) if module is not None]
    for parameter in (p for module in modules for p in module.parameters()):
        dtype = str(parameter.dtype).removeprefix("torch.")
        histogram[dtype] = histogram.get(dtype, 0) + parameter.numel() * parameter.element_size()
    buffers = [b for module in modules for b in module.buffers()]
    return Loaded(
        model=model, tokenizer=load_tokenizer(checkpoint), device=settings.device,
        num_parameters=sum(p.numel() for module in modules for p in module.parameters()),
        parameter_bytes=sum(histogram.values()),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in buffers),
        dtype_histogram=histogram, kept_in_fp32=_kept(settings, codec), seconds=time.monotonic() - start,
        codec=codec, checkpoint=checkpoint,
    )  # fmt: skip


def _kept(settings: Settings, codec: Any) -> list[str]:
    kept = ["codec"] if codec is not None and settings.parameter_dtype != "float32" else []
    return [*kept, "talker.code_predictor"] if settings.parameter_dtype == "float16" else kept


def checkpoint_tensors(checkpoint: Checkpoint) -> Mapping[str, StoredTensor]:
    """Return name → stored tensor."""
    return {tensor.name: tensor for tensor in checkpoint.tensors}


def _fill(
    model: nn.Module,
    checkpoint: Checkpoint,
    wanted: Mapping[str, StoredTensor],
    dtype: Callable[[str], str],
    tell: Tell,
) -> None:
    """Put each stored tensor in the place of the model's of its name, read a block at a time."""
    places = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    places = {name: place for name, place in places.items() if name in model.state_dict()}
    missing = [name for name in places if name not in wanted]
    if missing:
        raise CheckpointError(f"the checkpoint lacks {len(missing)} parameters of the model: {names(missing)}")
    unlike = [name for name in places if tuple(places[name].shape) != wanted[name].shape]
    if unlike:
        raise CheckpointError(f"{len(unlike)} tensors have another shape than the model's: {names(unlike)}")
    used = replace(checkpoint, tensors=tuple(wanted[name] for name in places))
    used = replace(used, num_bytes=sum(tensor.num_bytes for tensor in used.tensors))
    with open_sources(
        used, Path(checkpoint.path or ""), dtype=torch.float32, kept_in_fp32=(), progress=tell
    ) as sources:
        for name in places:
            _put(model, name, sources[name].as_dtype(getattr(torch, dtype(name))))
    gc.collect()


def _put(model: nn.Module, name: str, source: SourceTensor) -> None:
    inside, _, leaf = name.rpartition(".")
    module = model.get_submodule(inside)
    value = source[...]
    if leaf in module._parameters:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
    else:
        module._buffers[leaf] = value
