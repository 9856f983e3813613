"""What peft and bitsandbytes bring: LoRA's matrices beside a model's layers, and AdamW with states in 8 bits.

This module imports torch inside functions only; the packages are optional.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config import ALL_LINEAR
from runner.errors import RequestError
from runner.settings import Settings

if TYPE_CHECKING:
    import torch

ADAPTER = "adapter"
"""folder of a trained adapter, in a run's folder"""
PREFIX = "base_model.model."
"""what peft's files have before each name"""


def add_lora(model: Any, settings: Settings) -> None:
    """Freeze `model` and put trainable matrices of the settings' rank beside its layers.

    They are in float32, unless there is no autocast: then they are in the parameters' dtype. The second of each pair is
    zero, so that the model computes what it did. Raises RequestError when no layer has such a name, or
    layers of it are of a kind that LoRA does not know.
    """
    with _no_hub_kernels():
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

    from torch._subclasses.fake_tensor import unset_fake_temporarily

    targets = list(settings.adapter_targets)
    config = LoraConfig(
        r=settings.adapter_rank,
        lora_alpha=settings.adapter_alpha,
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets,
    )
    try:
        with unset_fake_temporarily():  # peft moves what it makes, which fake tensors do not like; on meta it does not
            inject_adapter_in_model(config, model, low_cpu_mem_usage=True)
    except ValueError as error:
        said = " ".join(str(error).split())
        raise RequestError(f"adapter.targets=[{','.join(targets)}] of {type(model).__name__}: {said}") from error
    _give_storage(model, settings)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.reset_lora_parameters("default", init_lora_weights=True)


def save_adapter(model: Any, settings: Settings, folder: Path) -> tuple[str, ...]:
    """Write a trained adapter as peft does, and return the files' names below `folder`; none without an adapter."""
    if settings.adapter == "none":
        return ()
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    (folder / ADAPTER).mkdir(exist_ok=True)
    weights = {PREFIX + name: value.contiguous() for name, value in get_peft_model_state_dict(model).items()}
    save_file(weights, folder / ADAPTER / "adapter_model.safetensors")
    model.peft_config["default"].save_pretrained(str(folder / ADAPTER))
    return (f"{ADAPTER}/adapter_model.safetensors", f"{ADAPTER}/adapter_config.json")


def adamw_8bit(parameters: Sequence[Any], **options: Any) -> "torch.optim.Optimizer":
    """Return bitsandbytes' AdamW; states of parameters below 4096 numbers stay in float32."""
    with _no_hub_kernels():
        from bitsandbytes.optim import AdamW8bit

    made: torch.optim.Optimizer = AdamW8bit(parameters, **options)
    return made


def _give_storage(model: Any, settings: Settings) -> None:
    """Replace the adapter's parameters, which are on meta, by some on the model's device."""
    import torch

    device = next(parameter.device for parameter in model.parameters() if not parameter.is_meta)
    dtype = torch.float32 if settings.autocast else getattr(torch, settings.parameter_dtype)
    for path, parameter in list(model.named_parameters()):
        if parameter.is_meta:
            owner, _, name = path.rpartition(".")
            empty = torch.empty(parameter.shape, dtype=dtype, device=device)
            model.get_submodule(owner).register_parameter(name, torch.nn.Parameter(empty))


@contextmanager
def _no_hub_kernels() -> Iterator[None]:
    """Keep bitsandbytes, which peft imports too, from asking the Hub for a kernel that no optimizer needs."""
    if "bitsandbytes" in sys.modules:
        yield
        return
    logger, there = logging.getLogger("bitsandbytes"), sys.modules.get("kernels")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it would say that the kernel is missing
    sys.modules["kernels"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        logger.setLevel(level)
        if there is None:
            del sys.modules["kernels"]
        else:
            sys.modules["kernels"] = there
