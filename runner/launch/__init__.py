"""What the jobs of a sweep share while they run, and the launcher that starts them."""

from runner.launch.admission import Admission, Claim
from runner.launch.shared import Job, Shared, Stop, alone, split_work
from runner.launch.workers import Workers

__all__ = ["Admission", "Claim", "Job", "Shared", "Stop", "Workers", "alone", "split_work"]
