"""Where a run was started from: what was typed, and the folder that is its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run's place in the command line's world."""

    folder: Path
    """the run's folder, which exists"""
    overrides: tuple[str, ...]
    """the run's own overrides, as typed"""
    command: tuple[str, ...]
    """the whole command line"""
    config_yaml: Mapping[str, Any]
    """the composed configuration, as plain values"""
    is_sweep: bool = False
    """whether the run is one job of a sweep"""
