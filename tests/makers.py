"""Values for tests, each a default with overrides."""

from dataclasses import replace
from typing import Any

from runner.checkpoint import Checkpoint
from runner.config import RunConfig
from runner.hardware import Hardware
from runner.predict.footprint import Footprint
from runner.settings import ITEMSIZE, Settings
from runner.units import GiB, MiB

MILLION = 10**6


def processor(**overrides: Any) -> Hardware:
    """A CPU without 16-bit instructions, 16 GiB of it free."""
    values: dict[str, Any] = {
        "device": "cpu", "device_type": "cpu", "name": "a CPU", "total": 24 * GiB, "free": 16 * GiB,
        "budget": 16 * GiB, "budget_source": "MemAvailable", "dtypes": ("float32",),
        "emulated_dtypes": ("bfloat16", "float16"), "backend": "cpu",
    }  # fmt: skip
    return Hardware(**values | overrides)


def card(**overrides: Any) -> Hardware:
    """An Ampere card with 8 GiB, all of it free."""
    values: dict[str, Any] = {
        "device": "cuda:0", "device_type": "cuda", "name": "an Ampere card", "total": 8 * GiB, "free": 8 * GiB,
        "budget": 8 * GiB, "budget_source": "free device memory", "dtypes": ("bfloat16", "float16", "float32"),
        "capability": (8, 6), "backend": "cuda",
    }  # fmt: skip
    return Hardware(**values | overrides)


def turing(**overrides: Any) -> Hardware:
    """A Turing card: float16 is native, bfloat16 is not."""
    return card(name="a Turing card", dtypes=("float16", "float32"), capability=(7, 5), **overrides)


def checkpoint(**overrides: Any) -> Checkpoint:
    """A causal language model of 1000 M parameters, stored in float32."""
    values: dict[str, Any] = {
        "source": "local", "id": None, "revision": None, "path": None, "architecture": "Qwen3ForCausalLM",
        "model_type": "qwen3", "config": {}, "tensors": (), "num_parameters": 1000 * MILLION,
        "stored_dtypes": {"float32": 4000 * MILLION}, "num_bytes": 4000 * MILLION,
    }  # fmt: skip
    return Checkpoint(**values | overrides)


def footprint(peak: int, **overrides: Any) -> Footprint:
    """A footprint whose peak is all parameters."""
    values: dict[str, Any] = {
        "parameters": peak, "buffers": 0, "gradients": 0, "optimizer_state": 0, "activations": 0, "kv_cache": 0,
        "workspace": 0, "overhead": 0, "peak": peak, "load_peak": peak, "work_peak": peak, "moment": "forward",
        "method": "made for a test",
    }  # fmt: skip
    return Footprint(**values | overrides)


def linear_model(*, parameters: int = 1000 * MILLION, per_token: int = MiB, per_layer: int = 0) -> Any:
    """A predictor whose figures can be worked out by hand.

    Parameters, and unless they are frozen their gradients and AdamW states, in parameter_dtype; `per_token` bytes for each token of the
    batch; `per_layer` bytes for each layer that is not checkpointed.
    """

    def predict(settings: Settings) -> Footprint:
        size = parameters * ITEMSIZE[settings.parameter_dtype]
        tokens = settings.micro_batch_size * settings.sequence_length
        if settings.workload == "train":
            states = {"adamw": 4, "adamw_8bit": 3, "adafactor": 2, "sgd": 2}[settings.optimizer]
            size *= states if settings.adapter == "none" else 1
            size += per_layer * (settings.num_layers - settings.checkpointed_layers)
        if settings.workload == "generate":
            tokens += settings.max_new_tokens
        if settings.workload != "load":
            size += per_token * tokens
        return footprint(size)

    return predict


def request(**groups: dict[str, Any]) -> RunConfig:
    """A run config with some fields of some groups changed: request(memory={"limit": "6GiB"})."""
    config = RunConfig()
    changes = {
        name: replace(getattr(config, name), **values) if isinstance(values, dict) else values
        for name, values in groups.items()
    }
    return replace(config, **changes)
