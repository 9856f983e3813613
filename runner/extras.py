"""Optional packages: what needs which, and whether it is there. None is imported for that."""

import importlib.util

from runner.config import Adapter, Optimizer, RunConfig, Tracker
from runner.errors import RequestError

PACKAGES = {
    "tracker=mlflow": "mlflow",
    "tracker=tensorboard": "tensorboard",
    "adapter=lora": "peft",
    "optimizer=adamw_8bit": "bitsandbytes",
}
"""what is asked for → the package that does it, by the name that pip and Python know"""


def is_installed(override: str) -> bool:
    """Whether the package that `override` needs is here."""
    spec = importlib.util.find_spec(PACKAGES[override])
    return spec is not None and spec.origin is not None  # a folder of that name is found, but has no origin


def check_installed(config: RunConfig) -> None:
    """Raise RequestError when something is asked for whose package is not installed."""
    asked = {
        f"tracker={config.tracker.name.value}": config.tracker.name is not Tracker.none,
        f"adapter={config.adapter.name.value}": config.adapter.name is not Adapter.none,
        f"optimizer={config.optimizer.name.value}": config.optimizer.name is Optimizer.adamw_8bit,
    }
    for override, is_asked in asked.items():
        if is_asked and not is_installed(override):
            raise RequestError(
                f"{override} needs a package that is not installed here: pip install {PACKAGES[override]}"
            )
