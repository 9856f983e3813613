"""What has to be true of a model after loading, whatever the loader said."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from runner.checkpoint import Checkpoint
from runner.errors import CheckpointError, WorkloadError
from runner.settings import Settings

MOST_NAMES = 5


def check_keys(info: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """Return notes on names that the model does not use.

    Raises CheckpointError for parameters that the checkpoint lacks (unless they may be initialised) and for
    tensors of another shape than the model's.
    """
    mismatched = [str(item[0] if isinstance(item, (tuple, list)) else item) for item in info.get("mismatched_keys", ())]
    if mismatched:
        raise CheckpointError(f"{len(mismatched)} tensors have another shape than the model's: {names(mismatched)}")
    errors = [str(item) for item in info.get("error_msgs", ())]
    if errors:
        raise CheckpointError(f"transformers could not load the weights: {errors[0]}")
    missing = sorted(info.get("missing_keys", ()))
    if missing and not settings.allow_missing:
        raise CheckpointError(
            f"the checkpoint lacks {len(missing)} parameters of the model: {names(missing)}; another class may fit "
            f"it (architectures in config.json), or model.allow_missing=true initialises them at random"
        )
    notes = [f"{len(missing)} parameters were initialised at random: {names(missing)}"] if missing else []
    unexpected = sorted(info.get("unexpected_keys", ()))
    if unexpected:
        notes.append(f"{len(unexpected)} stored tensors are not used by the model: {names(unexpected)}")
    return tuple(notes)


def check_stored(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Compare the headers with a model built without storage, before anything is loaded.

    Raises CheckpointError for integers where the model has numbers: a loader would cast them, to garbage.
    """
    if checkpoint.quantization is not None:
        return
    wanted = model.state_dict()
    wrong = [
        f"{tensor.name} ({tensor.dtype})"
        for tensor in checkpoint.tensors
        if "float" not in tensor.dtype and tensor.name in wanted and wanted[tensor.name].is_floating_point()
    ]
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} parameters are stored as integers, and config.json names no quantization: {names(wrong)}"
        )


def check_tensors(model: nn.Module, settings: Settings, kept_in_fp32: Iterable[str]) -> list[str]:
    """Return the parameters that stay in float32 although the plan is a lower dtype.

    Raises WorkloadError that names tensors without values, of another dtype than planned, or not finite.
    """
    empty = [name for name, tensor in _tensors(model) if tensor.is_meta]
    if empty:
        raise WorkloadError(f"{len(empty)} tensors have no values after loading (on meta): {names(empty)}")
    planned = getattr(torch, settings.parameter_dtype)
    other = [name for name, p in model.named_parameters() if p.is_floating_point() and p.dtype != planned]
    kept = set(kept_in_fp32)
    allowed = [name for name in other if kept and any(part in kept for part in _parts(name))]
    wrong = sorted(set(other) - set(allowed))
    if wrong:
        dtypes = {str(model.get_parameter(name).dtype).removeprefix("torch.") for name in wrong}
        raise WorkloadError(
            f"{len(wrong)} parameters were planned in {settings.parameter_dtype} and are in "
            f"{', '.join(sorted(dtypes))}: {names(wrong)}"
        )
    broken = [name for name, b in model.named_buffers() if b.is_floating_point() and not bool(torch.isfinite(b).all())]
    if broken:
        raise WorkloadError(f"{len(broken)} buffers are not finite after loading: {names(broken)}")
    _check_rotary(model)
    return allowed


def _check_rotary(model: nn.Module) -> None:
    """Compare rotary frequencies with freshly computed ones.

    They are not stored, and classes that are not transformers' own can come out of its loader with garbage here:
    finite, no error, and wrong output.
    """
    for name, module in model.named_modules():
        frequencies, config = getattr(module, "inv_freq", None), getattr(module, "config", None)
        if not isinstance(frequencies, torch.Tensor) or frequencies.numel() == 0:
            continue
        if bool((frequencies <= 0).any()) or float(frequencies.max()) > 1.0 + 1e-6:
            raise WorkloadError(f"{name}.inv_freq was not computed after loading: {frequencies.flatten()[:3].tolist()}")
        if config is None:
            continue
        fresh = getattr(type(module)(config), "inv_freq", None)
        here = frequencies.detach().float().cpu()
        if fresh is not None and (fresh.shape != here.shape or not torch.allclose(fresh.float(), here, rtol=1e-2)):
            raise WorkloadError(
                f"{name}.inv_freq is {here.flatten()[:3].tolist()} after loading, and {fresh.flatten()[:3].tolist()} "
                f"when computed from the configuration"
            )


def names(values: Iterable[str]) -> str:
    """Return up to five names, and how many more there are."""
    listed = list(values)
    more = f" and {len(listed) - MOST_NAMES} more" if len(listed) > MOST_NAMES else ""
    return ", ".join(listed[:MOST_NAMES]) + more


def _tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _parts(name: str) -> list[str]:
    """Return every run of whole components of a dotted name: a.b.c → a, a.b, a.b.c, b, b.c, c."""
    pieces = name.split(".")
    return [".".join(pieces[i:j]) for i in range(len(pieces)) for j in range(i + 1, len(pieces) + 1)]
