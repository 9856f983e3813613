"""Load the model, and nothing more."""

from runner.workload.job import Job
from runner.workload.outcome import Outcome


def load(job: Job) -> Outcome:
    """Return what was loaded; the checks were made while loading."""
    loaded = job.loaded
    details = {
        "num_parameters": loaded.num_parameters,
        "parameter_bytes": loaded.parameter_bytes,
        "buffer_bytes": loaded.buffer_bytes,
        "kept_in_fp32": loaded.kept_in_fp32,
        "load_seconds": loaded.seconds,
    }
    return Outcome(dtype_histogram=loaded.dtype_histogram, details=details)
