"""What every workload is given."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner.config import WorkloadConfig
from runner.loader import Loaded
from runner.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A loaded model, how to run it, what was asked, and the run's folder."""

    loaded: Loaded
    settings: Settings
    config: WorkloadConfig
    folder: Path
    tell: Callable[[float, float], None] = lambda done, total: None
    """takes the seconds of sound that are made and those that are expected"""
