"""What is on disk, from headers only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.settings import ITEMSIZE


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
    tokenizer_path: Path | None = None
    """folder of configuration and tokenizer, where it is not that of the weights"""
    pickle_files: Mapping[str, int] = field(default_factory=dict)
    """file → bytes of weights that only unpickling could describe; then `tensors` is empty"""

    def bytes_in(self, dtype: str) -> int:
        """Return the bytes of all tensors, tied ones once, when the floating-point ones are cast to `dtype`."""
        again = {name for _, name in self.tied}
        total = 0
        for tensor in self.tensors:
            if tensor.name not in again:
                scale = ITEMSIZE[dtype] if "float" in tensor.dtype else ITEMSIZE[tensor.dtype]
                total += tensor.num_bytes // ITEMSIZE[tensor.dtype] * scale
        return total
