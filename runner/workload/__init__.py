"""What can be done with a loaded model."""

from collections.abc import Callable

from runner.workload.forward import forward
from runner.workload.generate import generate
from runner.workload.job import Job
from runner.workload.load import load
from runner.workload.outcome import Outcome
from runner.workload.speak import speak
from runner.workload.train import train

WORKLOADS: dict[str, Callable[[Job], Outcome]] = {
    "load": load,
    "forward": forward,
    "generate": generate,
    "train": train,
    "speak": speak,
}
