"""Inspect a checkpoint folder: config.json and the headers of its weights."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from runner.checkpoint.headers import check_index, read_header, read_index, read_json
from runner.checkpoint.tied import tied_pairs
from runner.checkpoint.value import Checkpoint, StoredTensor
from runner.errors import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5")
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "vocab.txt", "vocab.json",
)  # fmt: skip


def inspect_folder(
    folder: Path, *, source: str, allow_pickle: bool = False, id: str | None = None, revision: str | None = None
) -> Checkpoint:
    """Return what is in `folder`, from headers alone.

    Raises CheckpointError that names the file, and the byte or the line, where something is missing or wrong.
    """
    _check_exists(folder)
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else _no_config(folder)
    files, tensors = _weights(folder, allow_pickle)
    has_tokenizer = any((folder / name).exists() for name in TOKENIZER_FILES)
    return describe(
        config, tensors, source=source, id=id, revision=revision, path=folder, has_tokenizer=has_tokenizer, files=files
    )


def describe(
    config: Mapping[str, Any],
    tensors: Sequence[StoredTensor],
    *,
    source: str,
    id: str | None,
    revision: str | None,
    path: Path | None,
    has_tokenizer: bool,
    files: Mapping[str, int] | None = None,
) -> Checkpoint:
    """Return a Checkpoint from a configuration and a list of tensors; `files` are weights without headers."""
    architecture, model_type = _architecture(config)
    names = frozenset(tensor.name for tensor in tensors)
    tied = tied_pairs(config, model_type, names)
    again = {name for _, name in tied}
    stored: dict[str, int] = {}
    num_parameters = 0
    for tensor in tensors:
        stored[tensor.dtype] = stored.get(tensor.dtype, 0) + tensor.num_bytes
        if tensor.name not in again:
            num_parameters += _num_elements(tensor)
    pickled = dict(files or {})
    return Checkpoint(
        source=source,
        id=id,
        revision=revision,
        path=path,
        architecture=architecture,
        model_type=model_type,
        config=config,
        tensors=tuple(tensors),
        tied=tied,
        quantization=_quantization(config, stored),
        has_tokenizer=has_tokenizer,
        num_parameters=num_parameters,
        stored_dtypes=stored,
        num_bytes=sum(stored.values()) + sum(pickled.values()),
        content_hash=_content_hash(config, tensors),
        pickle_files=pickled,
    )


def _check_exists(folder: Path) -> None:
    if folder.is_file():
        raise CheckpointError(
            f"model.path={folder} is a file; give the folder that holds it and its config.json: "
            f"model.path={folder.parent}"
        )
    if folder.is_dir():
        return
    siblings = [item.name for item in folder.parent.iterdir() if item.is_dir()] if folder.parent.is_dir() else []
    near = get_close_matches(folder.name, siblings, n=1)
    hint = f"; did you mean {folder.parent / near[0]}?" if near else ""
    raise CheckpointError(f"model.path={folder} does not exist{hint}")


def _no_config(folder: Path) -> dict[str, Any]:
    nested = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
    hint = f"; {folder / nested[0]} has one" if nested else ""
    what = "is empty" if not any(folder.iterdir()) else f"has no {CONFIG}, so it is no checkpoint"
    raise CheckpointError(f"model.path={folder} {what}{hint}")


def _weights(folder: Path, allow_pickle: bool) -> tuple[dict[str, int], tuple[StoredTensor, ...]]:
    if (folder / INDEX).exists():
        weight_map = read_index(folder / INDEX)
        absent = sorted(shard for shard in set(weight_map.values()) if not (folder / shard).exists())
        if absent:
            raise CheckpointError(
                f"{INDEX} names {len(set(weight_map.values()))} shards, {len(absent)} are not in {folder}: "
                f"{', '.join(absent[:3])}"
            )
        shards = {shard: read_header(folder / shard) for shard in sorted(set(weight_map.values()))}
        check_index(weight_map, shards, INDEX)
        return {}, tuple(tensor for tensors in shards.values() for tensor in tensors)
    if (folder / WEIGHTS).exists():
        return {}, read_header(folder / WEIGHTS)
    others = sorted(item.name for item in folder.iterdir())
    pickles = {name: (folder / name).stat().st_size for name in others if name.endswith(PICKLES)}
    loadable = {name: size for name, size in pickles.items() if name.endswith(".bin")}
    if loadable and allow_pickle:
        return loadable, ()
    if pickles:
        raise CheckpointError(
            f"{folder} has only pickled weights ({', '.join(list(pickles)[:3])}), which can run code when loaded; "
            f"convert them to safetensors, or trust their author and set model.allow_pickle=true"
        )
    stray = [name for name in others if name.endswith((".safetensors", ".gguf"))]
    found = f"; it has {', '.join(stray[:3])}" if stray else ""
    raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}{found}")


def _architecture(config: Mapping[str, Any]) -> tuple[str, str]:
    architectures, model_type = config.get("architectures"), config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError(f"{CONFIG} has no model_type, so no class of transformers can be chosen")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise CheckpointError(
            f'{CONFIG} (model type {model_type}) names no architectures, such as ["Qwen3ForCausalLM"]'
        )
    return architectures[0], model_type


def _quantization(config: Mapping[str, Any], stored: Mapping[str, int]) -> str | None:
    values = config.get("quantization_config")
    if isinstance(values, Mapping):
        method = str(values.get("quant_method") or "unknown")
        if method == "bitsandbytes":
            method += "_4bit" if values.get("load_in_4bit") else "_8bit"
        return method
    return "fp8" if any(dtype.startswith("float8") for dtype in stored) else None


def _num_elements(tensor: StoredTensor) -> int:
    count = 1
    for length in tensor.shape:
        count *= length
    return count


def _content_hash(config: Mapping[str, Any], tensors: Sequence[StoredTensor]) -> str:
    """Return a sha256 over the configuration and the headers; it does not read the weights themselves."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for tensor in tensors:
        digest.update(f"{tensor.name}|{tensor.dtype}|{tensor.shape}|{tensor.file}|{tensor.offset}\n".encode())
    return digest.hexdigest()
