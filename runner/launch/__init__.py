"""What the jobs of a sweep share while they run, and the launcher that starts them."""

from runner.launch.admission import Admission, Claim
from runner.launch.shared import SWEEP_OVERRIDES, Job, Shared, Stop, alone, keep_overrides, split_work
from runner.launch.workers import Workers

__all__ = [
    "SWEEP_OVERRIDES",
    "Admission",
    "Claim",
    "Job",
    "Shared",
    "Stop",
    "Workers",
    "alone",
    "keep_overrides",
    "split_work",
]
