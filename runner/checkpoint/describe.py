"""Put config and headers together into a Checkpoint: counts, dtypes, shared weights, quantization."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.checkpoint.ties import find_ties
from runner.checkpoint.value import Checkpoint, StoredTensor
from runner.errors import CheckpointError

TOKENIZER_FILES = frozenset({
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "spm.model", "vocab.txt", "vocab.json", "vocab.bpe", "tekken.json",
})  # fmt: skip
_START = 64 * 1024


def describe(
    *,
    source: str,
    id: str | None,
    revision: str | None,
    path: Path | None,
    config: Mapping[str, Any],
    tensors: Sequence[StoredTensor],
    files: Mapping[str, int],
    names: Iterable[str],
    weights_format: str = "safetensors",
    tied: Sequence[tuple[str, str]] | None = None,
    notes: Sequence[str] = (),
) -> Checkpoint:
    """Return the Checkpoint that `config` (config.json) and `tensors` (all headers) make up.

    `names` are the files beside them; `tied` is given where it is known exactly, else it is told from names. Raises
    CheckpointError when config.json does not say which class the model has.
    """
    architecture, model_type = _identity(config)
    said = list(notes)
    if tied is None:
        tied, remarks = _shared(tensors, config=config, architecture=architecture, path=path)
        said += remarks
    copies = {copy for _, copy in tied}
    dtypes: dict[str, int] = {}
    count = 0
    for tensor in tensors:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.num_bytes
        if tensor.name not in copies:
            count += math.prod(tensor.shape)
    quantization = "gguf" if weights_format == "gguf" else _quantization(config, dtypes)
    if quantization is not None and tensors:
        said.append(
            f"num_parameters counts stored elements; {quantization} packs several weights into one or adds scales"
        )
    return Checkpoint(
        source=source,
        id=id,
        revision=revision,
        path=path,
        architecture=architecture,
        model_type=model_type,
        config=config,
        tensors=tuple(tensors),
        tied=tuple(tied),
        quantization=quantization,
        has_tokenizer=not TOKENIZER_FILES.isdisjoint(names),
        num_parameters=count,
        stored_dtypes=dict(sorted(dtypes.items(), key=lambda item: -item[1])),
        num_bytes=sum(dtypes.values()) if tensors else sum(files.values()),
        content_hash=_content_hash(config, tensors, files),
        weights_format=weights_format,
        files=dict(files),
        pickle_files=dict(files) if weights_format == "pickle" else {},
        notes=tuple(said),
    )


def _identity(config: Mapping[str, Any]) -> tuple[str, str]:
    architectures, model_type = config.get("architectures"), config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise CheckpointError('config.json has no model_type; add one, such as "model_type": "llama"')
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise CheckpointError(
            "config.json has no architectures, so the model's class is unknown;"
            ' add it, such as "architectures": ["LlamaForCausalLM"]'
        )
    return architectures[0], model_type


def _shared(
    tensors: Sequence[StoredTensor], *, config: Mapping[str, Any], architecture: str, path: Path | None
) -> tuple[list[tuple[str, str]], list[str]]:
    by_name = {tensor.name: tensor for tensor in tensors}
    pairs, guessed = find_ties(
        {name: tensor.shape for name, tensor in by_name.items()}, config=config, architecture=architecture
    )
    kept_pairs, notes = [], []
    for kept, copy in pairs:
        if path is not None and copy in by_name and not _start_alike(path, by_name[kept], by_name[copy]):
            notes.append(
                f"{copy} differs from {kept} on disk, so both are counted although the configuration ties them"
            )
            continue
        kept_pairs.append((kept, copy))
    if guessed and kept_pairs:
        notes.append(
            f"config.json does not say whether word embeddings are tied; taken as tied, the default of"
            f" {config.get('model_type')} in transformers"
        )
    return kept_pairs, notes


def _start_alike(folder: Path, one: StoredTensor, other: StoredTensor) -> bool:
    """Whether the first 64 KiB agree: transformers 5 keeps both tensors when their values differ."""
    if one.dtype != other.dtype:
        return True
    starts = []
    for tensor in (one, other):
        with open(folder / tensor.file, "rb") as file:
            file.seek(tensor.offset)
            starts.append(file.read(min(_START, tensor.num_bytes)))
    return starts[0] == starts[1]


def _quantization(config: Mapping[str, Any], dtypes: Mapping[str, int]) -> str | None:
    settings = config.get("quantization_config")
    text = config.get("text_config")
    if settings is None and isinstance(text, Mapping):
        settings = text.get("quantization_config")
    if isinstance(settings, Mapping):
        method = settings.get("quant_method")
        bits = next((bits for bits in ("4bit", "8bit") if settings.get(f"load_in_{bits}")), None)
        if method in (None, "bitsandbytes") and bits is not None:
            return f"bitsandbytes_{bits}"
        return str(method) if method is not None else "unknown"
    low = [name for name in dtypes if name.startswith(("float8", "float4"))]
    return "fp8" if any(name.startswith("float8") for name in low) else "fp4" if low else None


def _content_hash(config: Mapping[str, Any], tensors: Sequence[StoredTensor], files: Mapping[str, int]) -> str:
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    digest.update(json.dumps(sorted(files.items())).encode())
    lines = sorted(f"{tensor.name}\0{tensor.dtype}\0{tensor.shape}\0{tensor.file}\n" for tensor in tensors)
    digest.update("".join(lines).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
