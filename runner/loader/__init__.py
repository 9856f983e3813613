"""Fill a model with what the plan says. The only room that loads weights."""

import ctypes
import gc
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.checkpoint import Checkpoint
from runner.errors import CheckpointError, WorkloadError
from runner.settings import Settings
from runner.speech import is_qwen3_tts

if TYPE_CHECKING:
    from runner.meter import MemoryStats
    from runner.resolve import Plan

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Loaded:
    """A model on its device. The only value of a run that changes: unload() empties it. Sizes are bytes."""

    model: Any
    tokenizer: Any
    """None where the checkpoint has none"""
    device: str
    num_parameters: int
    parameter_bytes: int
    buffer_bytes: int
    dtype_histogram: dict[str, int]
    """dtype → parameters' bytes"""
    kept_in_fp32: list[str]
    """parameters that the model's class keeps in float32"""
    seconds: float
    notes: tuple[str, ...] = ()
    plan: "Plan | None" = None
    memory: "dict[str, MemoryStats]" = field(default_factory=dict)
    """phase → what was measured"""
    codec: Any = None
    """a speech model's codec, where it is on the device from the start"""
    checkpoint: Checkpoint | None = None
    """where a speech model's other parts come from, when they are due"""

    def unload(self) -> None:
        """Give the model's memory back to the device and to the system."""
        self.model = self.tokenizer = self.codec = None
        gc.collect()
        release_memory(self.device)


def load(checkpoint: Checkpoint, settings: Settings, *, progress: Callable[[int, int], None] | None = None) -> Loaded:
    """Return the model of the plan, filled, checked and on its device.

    Its memory peaks at its own bytes and a few blocks: the file is read a block at a time. Raises CheckpointError
    for weights that do not match the model; WorkloadError when what came out is not what was planned.
    """
    from runner import steps
    from runner.loader.checks import check_keys, check_tensors

    if checkpoint.path is None:
        raise CheckpointError(f"the weights of {checkpoint.id} are not on disk yet")
    if is_qwen3_tts(checkpoint) and settings.workload in ("load", "speak", "train"):
        from runner.loader.speech import load_speech

        return load_speech(checkpoint, settings, progress=progress)  # type: ignore[no-any-return]
    start = time.monotonic()
    model_class = steps.model_class(checkpoint, settings)
    kept = _kept_in_fp32(model_class, settings)
    options = _options(checkpoint, settings)
    try:
        if settings.memory_efficient and checkpoint.tensors and checkpoint.quantization is None:
            model, info = _read(checkpoint, settings, model_class, kept, options, progress)
        else:
            model, info = model_class.from_pretrained(checkpoint.path, **options)
    except (RuntimeError, ValueError) as error:
        if "size mismatch" in str(error) or "ignore_mismatched_sizes" in str(error):
            raise CheckpointError(
                f"tensors have another shape than the model's: {_shapes(checkpoint, settings)}"
            ) from None
        raise
    except ImportError as error:
        raise CheckpointError(f"this checkpoint needs a package that is not installed: {error}") from None
    _set_generation(model, checkpoint)
    model.to(settings.device)
    notes = check_keys(info, settings)
    allowed = check_tensors(model, settings, kept)
    histogram: dict[str, int] = {}
    for parameter in model.parameters():
        dtype = str(parameter.dtype).removeprefix("torch.")
        histogram[dtype] = histogram.get(dtype, 0) + parameter.numel() * parameter.element_size()
    _synchronize(settings.device)
    return Loaded(
        model=model,
        tokenizer=load_tokenizer(checkpoint, trust_remote_code=settings.trust_remote_code),
        device=settings.device,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        parameter_bytes=sum(histogram.values()),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in model.buffers()),
        dtype_histogram=histogram,
        kept_in_fp32=allowed,
        seconds=time.monotonic() - start,
        notes=notes,
    )


def load_tokenizer(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> Any:
    """Return the checkpoint's tokenizer, or None where it has none.

    Raises CheckpointError when it has one that cannot be loaded.
    """
    folder = checkpoint.path or checkpoint.tokenizer_path
    if not checkpoint.has_tokenizer or folder is None:
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as error:  # each tokenizer class fails on broken files in its own way
        raise CheckpointError(f"the tokenizer in {folder} cannot be loaded: {error}") from None


def release_memory(device: str) -> None:
    """Return freed memory to the device and, with glibc, to the system."""
    import torch

    if not device.startswith("cpu"):
        torch.accelerator.synchronize()
        torch.accelerator.memory.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def _options(checkpoint: Checkpoint, settings: Settings) -> dict[str, Any]:
    import torch

    options: dict[str, Any] = {
        "dtype": getattr(torch, settings.parameter_dtype),
        "local_files_only": True,
        "output_loading_info": True,
        "trust_remote_code": settings.trust_remote_code,
    }
    if checkpoint.tensors:
        options["use_safetensors"] = True
    if settings.attention is not None:
        options["attn_implementation"] = settings.attention
    if not settings.device.startswith("cpu"):
        options["device_map"] = {"": settings.device}
    return options


def _read(
    checkpoint: Checkpoint,
    settings: Settings,
    model_class: Any,
    kept: tuple[str, ...],
    options: dict[str, Any],
    progress: Callable[[int, int], None] | None,
) -> tuple[Any, Any]:
    """Fill the model through transformers' own loader, from tensors that are read when it asks for them."""
    import torch

    from runner import steps
    from runner.loader.source import open_sources

    folder = Path(checkpoint.path or "")
    dtype = getattr(torch, settings.parameter_dtype)
    with open_sources(checkpoint, folder, dtype=dtype, kept_in_fp32=kept, progress=progress) as state:
        config = steps.model_config(checkpoint, settings)
        return model_class.from_pretrained(None, config=config, state_dict=state, **options)  # type: ignore[no-any-return]


def _shapes(checkpoint: Checkpoint, settings: Settings) -> str:
    """Return which stored tensors have another shape than the model's of the same name."""
    import torch

    from runner import steps
    from runner.loader.checks import names

    with torch.device("meta"):
        wanted = steps.build(checkpoint, settings).state_dict()
    found = names(
        f"{tensor.name} is {list(tensor.shape)}, the model's {list(wanted[tensor.name].shape)}"
        for tensor in checkpoint.tensors
        if tensor.name in wanted and tuple(wanted[tensor.name].shape) != tuple(tensor.shape)
    )
    return found or "under names that transformers converts while loading"


def _kept_in_fp32(model_class: Any, settings: Settings) -> tuple[str, ...]:
    """Return the modules that the class keeps in float32: some only from float16, the strict ones always."""
    strict = tuple(getattr(model_class, "_keep_in_fp32_modules_strict", None) or ())
    loose = tuple(getattr(model_class, "_keep_in_fp32_modules", None) or ())
    if settings.parameter_dtype == "float32":
        return ()
    return (*strict, *loose) if settings.parameter_dtype == "float16" else strict


def _set_generation(model: Any, checkpoint: Checkpoint) -> None:
    """Take the checkpoint's generation settings, which come from a file of their own."""
    from transformers import GenerationConfig

    if checkpoint.path is None or not getattr(model, "can_generate", lambda: False)():
        return
    if (checkpoint.path / "generation_config.json").exists():
        try:
            model.generation_config = GenerationConfig.from_pretrained(checkpoint.path, local_files_only=True)
        except (OSError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"generation_config.json cannot be used: {error}") from None
        for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
            value = getattr(model.generation_config, name, None)
            items = value if isinstance(value, list) else [] if value is None else [value]
            if any(type(item) is not int for item in items):
                raise CheckpointError(f"generation_config.json has {name} {value!r}, which is no token id")
    elif model.generation_config is None:
        raise WorkloadError(f"{type(model).__name__} came without generation settings")


def _synchronize(device: str) -> None:
    import torch

    if not device.startswith("cpu"):
        torch.accelerator.synchronize()
