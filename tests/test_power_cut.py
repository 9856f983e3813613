"""Power cuts: everything is killed at 50 random moments (40 + 8 + 2), and every file is whole after each."""

import contextlib
import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.files import write_whole
from runner.picture import memory_picture
from runner.record import write_plan, write_record
from runner.report import write_sweep
from tests.compare_makers import run, training
from tests.sweep_makers import Sweep, check_whole

pytestmark = pytest.mark.slow

WRITERS, PLANNING = 40, 8
SEED = 4


def write_for_ever(folder: Path, number: int) -> None:
    """What the parent and its launcher write in a sweep, again and again and never the same."""
    record = run(training("bf16"))
    while True:
        number += 1
        place = folder / str(number % 3)
        place.mkdir(exist_ok=True)
        changed = replace(record, run_id=f"run-{number}", notes=("x" * (number % 7) * 1000,))
        assert changed.plan is not None
        write_plan(changed.plan, place)
        write_record(changed, place)
        write_whole(place / "memory.svg", memory_picture(changed))
        write_sweep(folder)


def test_the_writers_leave_whole_files_whenever_they_are_killed(tmp_path: Path) -> None:
    moments = random.Random(SEED)
    files = 0
    for number in range(WRITERS):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                write_for_ever(tmp_path, number * 1000)
            os._exit(1)
        time.sleep(0.03 + 0.1 * moments.random())
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        files = max(files, check_whole(tmp_path))
    assert files == 3 * 3 + 3


@pytest.mark.parametrize("at_once", [1, 2])
def test_sweeps_of_plans_are_whole_whenever_they_are_killed_and_can_be_finished(at_once: int, tmp_path: Path) -> None:
    moments = random.Random(SEED + at_once)
    seen = []
    asked = ("-m", "workload=plan", "workload.of=load", "seed=0,1,2,3,4,5", f"hydra.launcher.n_jobs={at_once}")
    for number in range(PLANNING // 2):
        place = tmp_path / str(number)
        sweep = Sweep(place, *asked, f"hydra.sweep.dir={place / 'sweep'}", folder=place / "sweep")
        _until(place / "sweep" / ".hydra" / "overrides.yaml", sweep)
        time.sleep(0.7 * moments.random())
        sweep.kill_all()
        check_whole(place / "sweep")
        seen.append(len(sweep.records))
        again = Sweep(place, f"sweep.resume={place / 'sweep'}", folder=place / "sweep").wait(0)
        assert [record["status"] for record in again.records] == ["completed"] * 6
        assert list((place / "sweep").rglob("*.part")) == []
        check_whole(place / "sweep")
    assert len(set(seen)) > 1, "every sweep was killed at the same place"


@pytest.mark.parametrize("at_once", [1, 2])
def test_sweeps_that_work_are_whole_whenever_they_are_killed_and_can_be_finished(at_once: int, tmp_path: Path) -> None:
    moments = random.Random(SEED + at_once)
    asked = ("-m", "workload=forward,generate", "workload.max_new_tokens=4", f"hydra.launcher.n_jobs={at_once}")
    place = tmp_path / "sweep"
    sweep = Sweep(tmp_path, *asked, f"hydra.sweep.dir={place}", folder=place)
    _until(place / "0" / "plan.json", sweep)
    time.sleep(moments.random())
    sweep.kill_all()
    check_whole(place)
    again = Sweep(tmp_path, f"sweep.resume={place}", folder=place).wait(0)
    assert [record["status"] for record in again.records] == ["completed"] * 2
    assert check_whole(place) >= 2 * 4 + 3


def _until(path: Path, sweep: Sweep) -> None:
    while not path.exists():
        assert sweep.process.poll() is None, json.dumps(sweep.process.communicate())
        time.sleep(0.005)
