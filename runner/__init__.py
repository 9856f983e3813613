"""Run a model on the memory there is: resolve, predict, load, work, record."""

from typing import Any

__version__ = "0.1.0"

__all__ = ["check_memory", "estimate", "load", "memory_stats", "plan"]


def __getattr__(name: str) -> Any:
    """Fetch the Python door's functions when they are first used, so that importing does nothing."""
    if name in __all__:
        from runner import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
