"""How one job starts its workers: with its share of the CPUs, and only where there is memory for them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from runner.hardware import Hardware
from runner.isolate import Send, run_isolated
from runner.launch.admission import Claim
from runner.launch.shared import Shared
from runner.predict.overhead import LIBRARIES
from runner.resolve import Choice, Plan
from runner.worker import with_threads

EVERY_WORKERS = (
    "runner.worker", "runner.limit", "runner.loader", "runner.loader.checks", "runner.loader.source",
    "runner.predict.dry_run", "runner.steps", "runner.workload", "runner.workload.suits",
    "transformers.models.auto.tokenization_auto", "transformers.tokenization_utils_fast",
    "transformers.tokenization_utils_tokenizers", "transformers.convert_slow_tokenizer",
    "transformers.integrations.mistral",
)  # fmt: skip
"""what each of them would import by itself, by the version of transformers; the server passes over what is not there"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers of one job."""

    job: str
    shared: Shared
    asked: int | None
    """CPU threads that the job itself asks for; None: its share"""
    preload: tuple[str, ...] = ()

    @property
    def threads(self) -> int | None:
        """CPU threads that torch computes with; None: its own choice."""
        return self.asked or self.shared.threads

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the record should know of its neighbours."""
        if self.shared.num_jobs == 1:
            return ()
        return (f"up to {self.shared.num_jobs} jobs ran at once: times are not those of this job alone",)

    def run(self, task: Callable[..., Any], *arguments: Any, on_message: Send, phase: str) -> Any:
        """Return what `task` returns in a worker of its own; raises what run_isolated raises."""
        return run_isolated(
            with_threads, self.threads, task, *arguments,
            on_message=on_message, phase=phase, preload=(*EVERY_WORKERS, *self.preload), stop=self.shared.stop.event,
        )  # fmt: skip

    def told(self, plan: Plan) -> Plan:
        """Return the plan with the threads among its choices, where they are not torch's own."""
        if self.threads is None:
            return plan
        reason = "asked for" if self.asked else f"its share of the CPUs: hydra.launcher.n_jobs={self.shared.num_jobs}"
        asked = "auto" if self.asked is None else str(self.asked)
        choice = Choice(name="threads", asked=asked, value=str(self.threads), reason=reason)
        return dataclasses.replace(plan, choices=(*plan.choices, choice))

    def claim(self, plan: Plan, machine: Hardware) -> Claim:
        """Return what the plan's run will take: the predicted peak, and the margin that the fit keeps clear."""
        return Claim(
            job=self.job,
            pool=_pool(machine),
            size=plan.footprint.peak + plan.margin,
            budget=plan.budget,
            free=machine.free,
        )

    @contextlib.contextmanager
    def room_to_plan(self, machine: Hardware, *, tell: Callable[[str], None]) -> Iterator[None]:
        """Hold the host memory that a worker takes which traces on fake tensors: its libraries, at most."""
        if machine.is_profile:  # says nothing about the host that plans
            yield
            return
        free = machine.host_available
        claim = Claim(job=self.job, pool="cpu", size=LIBRARIES, budget=free, free=free, plans=True)
        with self.shared.admission.admitted(claim, tell=tell):
            yield


def _pool(machine: Hardware) -> str:
    return "cpu" if machine.device_type == "cpu" or machine.unified else machine.device
