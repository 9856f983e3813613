"""What every workload is given."""

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
