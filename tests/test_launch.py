"""What jobs of a sweep share: memory, the machine's description, CPUs, and the terminal."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner import hardware
from runner.config import Workload
from runner.errors import RequestError
from runner.launch import Admission, Claim, Shared, Workers, split_work
from runner.launch.launcher import RunnerLauncher, check_launcher, register_launcher
from runner.logs import ConsoleHandler, handled_by_job, job_logging
from runner.resolve import resolve
from runner.units import GiB, MiB
from tests.makers import card, checkpoint, linear_model, processor, request


def claim(job: str = "0", **overrides: Any) -> Claim:
    """3 GiB of a host with 8 GiB."""
    values: dict[str, Any] = {"pool": "cpu", "size": 3 * GiB, "budget": 8 * GiB, "free": 8 * GiB}
    return Claim(job=job, **values | overrides)


@contextmanager
def inside(admission: Admission, *claims: Claim) -> Iterator[None]:
    with ExitStack() as stack:
        for one in claims:
            stack.enter_context(admission.admitted(one, tell=lambda sentence: pytest.fail(sentence)))
        yield


class Waiting:
    """A claim in a thread of its own, and what became of it."""

    def __init__(self, admission: Admission, one: Claim) -> None:
        self.told: list[str] = []
        self.end = ""
        self._spoke, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(admission, one))
        self._thread.start()
        assert self._spoke.wait(10)

    def _run(self, admission: Admission, one: Claim) -> None:
        def tell(sentence: str) -> None:
            self.told.append(sentence)
            self._spoke.set()

        try:
            with admission.admitted(one, tell=tell):
                self._spoke.set()
                self.end = "admitted"
        except KeyboardInterrupt:
            self.end = "interrupted"

    def join(self) -> str:
        self._thread.join(10)
        return self.end


def test_jobs_that_fit_together_are_in_memory_together() -> None:
    with inside(Admission(), claim("0"), claim("1")):
        pass


def test_a_job_that_is_alone_is_let_in_whatever_it_needs() -> None:
    with inside(Admission(), claim(size=99 * GiB)):
        pass
    with inside(Admission(), claim(size=None, budget=None, free=None)):
        pass


def test_a_job_that_does_not_fit_beside_others_waits_and_says_for_what() -> None:
    admission = Admission()
    with inside(admission, claim("0"), claim("1")):
        third = Waiting(admission, claim("2"))
        assert third.end == ""
    assert third.join() == "admitted"
    assert third.told == ["for memory of cpu: needs 3.00 GiB with its margin; of 8.00 GiB job 0, 1 may take 6.00 GiB"]


@pytest.mark.parametrize(
    "other",
    [claim("1", budget=5 * GiB), claim("1", size=None), claim("1", budget=None), claim("1", free=5 * GiB)],
    ids=["least budget", "unknown need", "unknown budget", "least free"],
)
def test_together_the_smallest_budget_holds_and_what_is_unknown_stays_alone(other: Claim) -> None:
    admission = Admission()
    with inside(admission, claim("0")):
        waiting = Waiting(admission, other)
        assert waiting.told
    assert waiting.join() == "admitted"


def test_first_come_first_served_so_that_a_large_job_is_not_passed_by_forever() -> None:
    admission = Admission()
    with inside(admission, claim("0")):
        large = Waiting(admission, claim("1", size=7 * GiB))
        small = Waiting(admission, claim("2", size=1 * GiB))
        assert "job 1 comes first" in small.told[0]
    assert (large.join(), small.join()) == ("admitted", "admitted")


def test_a_plan_is_made_beside_a_limited_job_and_before_those_that_wait() -> None:
    admission = Admission()
    with inside(admission, claim("0", size=GiB, budget=GiB)):
        waiting = Waiting(admission, claim("1"))
        with inside(admission, claim("2", size=300 * MiB, plans=True)):
            assert waiting.end == ""
    assert waiting.join() == "admitted"


def test_devices_with_memory_of_their_own_do_not_wait_for_each_other() -> None:
    with inside(Admission(), claim("0", pool="cuda:0", size=8 * GiB), claim("1", pool="cuda:1", size=8 * GiB)):
        pass


def test_who_waits_is_told_to_end() -> None:
    admission = Admission()
    with inside(admission, claim("0", size=8 * GiB)):
        waiting = Waiting(admission, claim("1"))
        admission.close()
        assert waiting.join() == "interrupted"


def test_a_claim_is_the_predicted_peak_and_the_margin_of_the_fit() -> None:
    plan = resolve(
        request(workload={"name": Workload.load}), processor(), checkpoint(), predict=linear_model(), num_layers=4
    )
    workers = Workers(job="3", shared=Shared(num_jobs=2, threads=1), asked=None)
    made = workers.claim(plan, processor())
    assert (made.job, made.pool, made.size) == ("3", "cpu", plan.footprint.peak + plan.margin)
    assert workers.claim(plan, card()).pool == "cuda:0"
    assert workers.claim(plan, card(unified=True)).pool == "cpu"


def test_threads_are_a_choice_with_its_reason() -> None:
    config = request(workload={"name": Workload.load})
    plan = resolve(config, processor(), checkpoint(), predict=linear_model(), num_layers=4)
    shared = Shared(num_jobs=2, threads=3)
    choice = Workers(job="0", shared=shared, asked=None).told(plan).choices[-1]
    assert (choice.name, choice.asked, choice.value) == ("threads", "auto", "3")
    assert "n_jobs=2" in choice.reason
    asked = Workers(job="0", shared=shared, asked=1).told(plan).choices[-1]
    assert (asked.asked, asked.value, asked.reason) == ("1", "1", "asked for")
    assert Workers(job="0", shared=Shared(), asked=None).told(plan) is plan


def test_jobs_at_once_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    assert split_work(1, {}).threads is None
    assert split_work(4, {}).threads == 4
    assert split_work(99, {}).threads == 1
    assert split_work(4, {"OMP_NUM_THREADS": "2"}).threads == 2
    assert split_work(4, {"OMP_NUM_THREADS": "8"}).threads == 4


def test_the_machine_is_asked_once_and_each_limit_is_applied_to_the_same_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = iter([16 * GiB, 3 * GiB])
    monkeypatch.setattr(hardware, "describe", lambda *_, **__: processor(budget=next(free)))
    shared = Shared()
    assert shared.describe(request()).budget == 16 * GiB
    limited = shared.describe(request(memory={"limit": "6GiB"}))
    assert (limited.budget, limited.budget_source) == (6 * GiB, "memory.limit")
    assert shared.describe(request()) == processor(budget=16 * GiB)
    assert shared.describe(request(hardware={"device": "cpu"})).budget == 3 * GiB


def test_a_limit_on_a_described_machine_is_the_one_that_detection_applies() -> None:
    config = request().hardware
    for limit in (None, 64 * MiB, 2**50):
        direct = hardware.describe(config, limit=limit)
        later = hardware.with_limit(hardware.describe(config), limit)
        assert (direct.budget_source, len(direct.notes)) == (later.budget_source, len(later.notes))


def test_describing_the_machine_touches_no_device() -> None:
    """A device that the parent had touched could not be used in a worker; NVML, and a process of its own, are asked."""
    import subprocess
    import sys

    code = (
        "import os, sys; from runner.config import HardwareConfig; from runner.hardware import describe; "
        "describe(HardwareConfig(), environment=os.environ); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [({"job": {"chdir": True}}, "share one process"), ({"job": {"env_set": {"A": "1"}}}, "in front of the command"),
     ({"launcher": {"n_jobs": 0}}, "n_jobs=0 must be at least 1")],
)  # fmt: skip
def test_what_our_launcher_cannot_do_is_told_before_anything_runs(change: dict[str, Any], message: str) -> None:
    from omegaconf import OmegaConf

    target = "hydra_plugins.runner.RunnerLauncher"
    ours = {"launcher": {"_target_": target, "n_jobs": 1}, "job": {"chdir": False, "env_set": {}}}
    check_launcher(OmegaConf.create(ours))
    with pytest.raises(RequestError, match=message):
        check_launcher(OmegaConf.merge(ours, change))
    check_launcher(OmegaConf.merge(ours, change, {"launcher": {"_target_": "another"}}))


def test_hydra_makes_our_launcher_by_its_name() -> None:
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    register_launcher()
    register_launcher()
    made = Plugins.instance()._instantiate(OmegaConf.create({"_target_": "hydra_plugins.runner.RunnerLauncher"}))
    assert isinstance(made, RunnerLauncher)


def test_the_words_of_jobs_at_once_go_to_their_own_logs_and_are_marked_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("runner.test")
    log.setLevel(logging.INFO)
    both = threading.Barrier(2)

    def work(name: str) -> None:
        handlers = (ConsoleHandler(), logging.FileHandler(tmp_path / name))
        with job_logging(handlers, f"[{name}] "):
            for number in range(50):
                both.wait(10)
                log.info("line        %s %d\nsecond line", name, number)
            log.error("wrong")

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with handled_by_job():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == sorted(
        line for name in "ab" for number in range(50)
        for line in (f"[{name}] line        {name} {number}", f"[{name}] second line")
    )  # fmt: skip
    assert sorted(shown.err.splitlines()) == ["runner: [a] wrong", "runner: [b] wrong"]
    for name in "ab":
        lines = (tmp_path / name).read_text().splitlines()
        assert lines[:2] == [f"line        {name} 0", "second line"]
        assert len(lines) == 101
