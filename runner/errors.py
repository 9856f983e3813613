"""The error tree. Each class has the exit code of the run that it ends."""

from collections.abc import Mapping, Sequence
from typing import ClassVar


class RunnerError(Exception):
    """A run that ended for a reason that its user can understand and act on."""

    exit_code: ClassVar[int] = 5
    status: ClassVar[str] = "failed"

    def __init__(self, message: str, *, remedies: Sequence[Mapping[str, object]] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.remedies = tuple(dict(remedy) for remedy in remedies)


class RequestError(RunnerError):
    """What was asked for is wrong: an unknown option, a bad value, a missing file."""

    exit_code = 2


class CheckpointError(RequestError):
    """The checkpoint is missing, truncated, inconsistent, or of a refused kind."""


class DoesNotFit(RunnerError):
    """The plan's predicted peak is over its budget, and no concession was left to make."""

    exit_code = 3
    status = "refused"


class OutOfMemory(RunnerError):
    """The device, or the host, ran out of memory while the run was going."""

    exit_code = 4
    status = "out_of_memory"


class WorkloadError(RunnerError):
    """The workload failed, or what it produced is not sane."""

    exit_code = 5


class Killed(RunnerError):
    """The worker process died of a signal that nobody here sent."""

    exit_code = 5
    status = "killed"


class Interrupted(RunnerError):
    """The user, or the system on the user's behalf, asked the run to stop."""

    exit_code = 130
    status = "interrupted"
