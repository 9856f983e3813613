"""Inspect a checkpoint's folder: which files hold the weights, and what their headers say."""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.checkpoint.describe import describe
from runner.checkpoint.headers import read_header, read_json
from runner.checkpoint.value import CODEC_FOLDERS, Checkpoint, StoredTensor
from runner.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE_SINGLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_STATES = ("training_args", "optimizer", "scheduler", "scaler", "rng_state", "random_states")
"""what a trainer leaves beside weights, also as pickle"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Which files of a folder hold the weights."""

    format: str
    """safetensors, pickle or gguf"""
    files: tuple[str, ...] = ()
    """empty when an index names them"""
    index: str | None = None


def inspect_folder(
    folder: Path,
    *,
    source: str,
    id: str | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    tied: Sequence[tuple[str, str]] | None = None,
    notes: Sequence[str] = (),
) -> Checkpoint:
    """Return what the headers in `folder` say. Raises CheckpointError with the file and the byte."""
    names = _list(folder, asked=f"model.path={folder}" if source == "local" else str(folder))
    config = _config(folder, names)
    weights = choose_weights(names, where=str(folder), allow_pickle=allow_pickle)
    weight_map = None
    files: Sequence[str] = weights.files
    if weights.index is not None:
        weight_map = read_weight_map(read_json(os.path.join(folder, weights.index), name=weights.index), weights.index)
        files = sorted(set(weight_map.values()))
        absent = [file for file in files if not os.path.isfile(os.path.join(folder, file))]
        if absent:
            raise CheckpointError(
                f"{weights.index} names {len(files)} files, of which {some(absent)} not in {folder};"
                " download the checkpoint again"
            )
    sizes = {file: _size(folder, file) for file in files}
    said = [*notes]
    if weights.format != "safetensors":
        said.append(
            f"{weights.format} files have no header that is read here: tensors are unknown, bytes are file sizes"
        )
        tensors: list[StoredTensor] = []
    else:
        tensors = [tensor for file in files for tensor in read_header(os.path.join(folder, file), name=file)]
        said += compare_with_index(tensors, weight_map=weight_map, index=weights.index)
    found = describe(
        source=source, id=id, revision=revision, path=folder, config=config, tensors=tensors, files=sizes, names=names,
        weights_format=weights.format, tied=tied, notes=said,
    )  # fmt: skip
    codec = CODEC_FOLDERS.get(found.model_type)
    if codec is None:
        return found
    if not names.get(codec):
        raise CheckpointError(f"{folder} has no folder {codec}, which holds the codec of a {found.model_type} model")
    return with_codec(found, inspect_folder(folder / codec, source=source, id=codec, allow_pickle=allow_pickle))


def with_codec(found: Checkpoint, codec: Checkpoint) -> Checkpoint:
    """Return `found` with its codec, whose files count among its own."""
    inside = CODEC_FOLDERS[found.model_type]
    files = {f"{inside}/{name}": size for name, size in codec.files.items()}
    return replace(found, codec=codec, files={**found.files, **files})


def choose_weights(names: Mapping[str, Any], *, where: str, allow_pickle: bool) -> Weights:
    """Return the weight files among `names`, in transformers' order of preference, safetensors first.

    Raises CheckpointError when there are none, or only pickles and `allow_pickle` is false.
    """
    if SINGLE in names:
        return Weights(format="safetensors", files=(SINGLE,))
    if INDEX in names:
        return Weights(format="safetensors", index=INDEX)
    other = sorted(name for name in names if name.endswith(".safetensors"))
    if "adapter_config.json" in names:
        raise CheckpointError(f"{where} holds a LoRA adapter, not a model; merge it into its base model and save that")
    if other and "-of-" in other[0]:
        raise CheckpointError(
            f"{where} holds {some(other, verb='')} but not {INDEX}, which says what is in them; get it"
        )
    if other:
        raise CheckpointError(
            f"{where} holds {some(other, verb='')} but neither {SINGLE} nor {INDEX};"
            f" rename the one to load to {SINGLE}, or save the model again"
        )
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    pickles = sorted(name for name in names if name.endswith(_PICKLE_SUFFIXES) and not name.startswith(_STATES))
    if pickles and not allow_pickle:
        raise CheckpointError(
            f"{where} holds its weights only as pickle ({some(pickles, verb='')}), which can run code when it is"
            " loaded; convert it to safetensors, or, if you trust it, set model.allow_pickle=true"
        )
    if PICKLE_SINGLE in names:
        return Weights(format="pickle", files=(PICKLE_SINGLE,))
    if PICKLE_INDEX in names:
        return Weights(format="pickle", index=PICKLE_INDEX)
    if pickles:
        raise CheckpointError(
            f"{where} holds {some(pickles, verb='')} but neither {PICKLE_SINGLE} nor {PICKLE_INDEX};"
            f" rename the one to load to {PICKLE_SINGLE}"
        )
    if gguf:
        return Weights(format="gguf", files=tuple(gguf))
    raise CheckpointError(f"{where} holds no weights: neither {SINGLE} nor {INDEX} is there")


def read_weight_map(index: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return tensor name → file of the index called `name`. Raises CheckpointError for files outside the folder."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{name} has no weight_map, so nobody knows which tensor is in which file")
    for file in dict.fromkeys(weight_map.values()) if _all_text(weight_map.values()) else [None]:
        if file is None:
            raise CheckpointError(f"{name}: weight_map holds something other than file names")
        parts = file.replace("\\", "/").split("/")
        if not file or "\0" in file or file.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise CheckpointError(f"{name} names the file {file!r}, which lies outside of the checkpoint's folder")
    return weight_map


def compare_with_index(
    tensors: Sequence[StoredTensor], *, weight_map: Mapping[str, str] | None, index: str | None
) -> list[str]:
    """Return notes on what the headers hold beyond the index. Raises CheckpointError where the two disagree."""
    place: dict[str, str] = {}
    for tensor in tensors:
        if tensor.name in place:
            raise CheckpointError(f"{tensor.name} is stored twice: in {place[tensor.name]} and in {tensor.file}")
        place[tensor.name] = tensor.file
    if weight_map is None:
        return []
    absent = [f"{name} ({file})" for name, file in weight_map.items() if name not in place]
    if absent:
        raise CheckpointError(
            f"{index} names {len(weight_map)} tensors, of which {some(absent)} not in the files;"
            " download or save the checkpoint again"
        )
    for name, file in weight_map.items():
        if place[name] != file:
            raise CheckpointError(f"{index} says that {name} is in {file}, but it is in {place[name]}")
    extra = [name for name in place if name not in weight_map]
    return [f"the files hold {some(extra, verb='')} beyond what {index} names"] if extra else []


def some(names: Sequence[str], *, verb: str = "auto") -> str:
    """Return the first three names and how many follow, with ``is`` or ``are`` behind them unless `verb` is empty."""
    text = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return text if not verb else f"{text} {'is' if len(names) == 1 else 'are'}"


def _list(folder: Path, *, asked: str) -> dict[str, bool]:
    """Return name → whether it is a folder. Raises CheckpointError when `folder` is no folder, or empty."""
    try:
        with os.scandir(folder) as entries:
            names = {entry.name: entry.is_dir() for entry in entries}
    except FileNotFoundError:
        raise CheckpointError(f"{asked} does not exist{_sibling(folder)}") from None
    except NotADirectoryError:
        parent = next(parent for parent in folder.parents if parent.is_dir())
        raise CheckpointError(f"{asked} is a file; give the checkpoint's folder: model.path={parent}") from None
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from error
    if not names:
        raise CheckpointError(f"{folder} is empty; give a folder with config.json and {SINGLE}")
    return names


def _sibling(folder: Path) -> str:
    parent = folder.parent
    if not parent.is_dir():
        return f", nor does {parent}"
    try:
        siblings = [entry.name for entry in os.scandir(parent) if entry.is_dir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(folder.name, siblings, n=1)
    return (
        f"; did you mean model.path={parent / close[0]}?"
        if close
        else f"; {parent.absolute()} has no folder of a similar name"
    )


def _config(folder: Path, names: Mapping[str, bool]) -> dict[str, Any]:
    if "config.json" in names:
        return read_json(os.path.join(folder, "config.json"), name="config.json")
    if "model_index.json" in names:
        raise CheckpointError(f"{folder} is a diffusers pipeline; give one of its model folders")
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        raise CheckpointError(
            f"{folder} holds a GGUF file ({some(gguf, verb='')}) without config.json; convert it to safetensors first"
        )
    inside = sorted(name for name, is_dir in names.items() if is_dir and (folder / name / "config.json").is_file())
    hint = f"; did you mean model.path={folder / inside[0]}?" if inside else ""
    raise CheckpointError(f"{folder} has no config.json, so it is not a transformers checkpoint{hint}")


def _size(folder: Path, file: str) -> int:
    try:
        return os.stat(os.path.join(folder, file)).st_size
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error


def _all_text(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)
