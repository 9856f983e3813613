"""What other rooms get to know of a checkpoint."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import CheckpointError
from runner.settings import ITEMSIZE

CODEC_FOLDERS = {"qwen3_tts": "speech_tokenizer"}
"""model type → folder inside the checkpoint that holds a second model, the codec, with a config.json of its own"""

Progress = Callable[[int, int], None]
"""called with the bytes that are done and the bytes in all"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor as a header declares it."""

    name: str
    dtype: str
    """torch's name of it: bfloat16, float32, …"""
    shape: tuple[int, ...]
    num_bytes: int
    file: str
    """name of the file in the checkpoint's folder"""
    offset: int
    """of its first byte in the file"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Weights on disk (or on the Hub, or not written yet), described without loading them."""

    source: str
    """embedded, hf, local or random"""
    id: str | None
    """Hub id, or the architecture of a random checkpoint"""
    revision: str | None
    """commit hash of a Hub checkpoint"""
    path: Path | None
    """its folder; None while it is only on the Hub or not written yet"""
    architecture: str
    """class name in transformers, from config.json"""
    model_type: str
    """transformers' model type, from config.json"""
    config: Mapping[str, Any]
    """config.json"""
    tensors: tuple[StoredTensor, ...]
    tied: tuple[tuple[str, str], ...] = ()
    """pairs (kept, stored or implied again) of names that share one tensor"""
    quantization: str | None = None
    """method of a quantized checkpoint, such as bitsandbytes_4bit, gptq, awq, gguf"""
    has_tokenizer: bool = False
    num_parameters: int = 0
    """tied weights counted once"""
    stored_dtypes: Mapping[str, int] = field(default_factory=dict)
    """dtype → bytes"""
    num_bytes: int = 0
    """of all tensors, as stored"""
    content_hash: str | None = None
    """sha256 over config and headers; identifies what was inspected"""
    weights_format: str = "safetensors"
    """safetensors, pickle or gguf; only safetensors headers are read, so `tensors` is empty for the others"""
    files: Mapping[str, int] = field(default_factory=dict)
    """weight file → bytes of the whole file"""
    notes: tuple[str, ...] = ()
    """what was guessed or left out"""
    tokenizer_path: Path | None = None
    """folder of configuration and tokenizer, where it is not that of the weights"""
    pickle_files: Mapping[str, int] = field(default_factory=dict)
    """file → bytes of weights that only unpickling could describe; then `tensors` is empty"""

    codec: "Checkpoint | None" = None
    """the codec that comes with a speech model; its files are in `files` too, under its folder's name"""

    def bytes_in(self, dtype: str) -> int:
        """Return the bytes of all tensors, tied ones once, when the floating-point ones are cast to `dtype`."""
        return tensors_bytes(self, dtype)


def tensors_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """Return the bytes of all tensors once floating ones are cast to `dtype` (torch's name), shared ones once.

    Integer, boolean and complex tensors keep their size. Raises CheckpointError where headers do not tell:
    quantized weights, whose elements are not the model's, and formats other than safetensors.
    """
    if checkpoint.weights_format != "safetensors" or checkpoint.quantization is not None:
        kind = checkpoint.quantization or checkpoint.weights_format
        raise CheckpointError(f"the headers of a {kind} checkpoint do not tell its size in {dtype}")
    copies = {copy for _, copy in checkpoint.tied}
    itemsize = ITEMSIZE[dtype]
    return sum(
        math.prod(tensor.shape) * itemsize if "float" in tensor.dtype else tensor.num_bytes
        for tensor in checkpoint.tensors
        if tensor.name not in copies
    )
