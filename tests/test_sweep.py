"""Whole sweeps, through the command line: nothing is lost, whatever happens to a job or to all of them."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.sweep_makers import Sweep, can_limit_groups, twelve_jobs

pytestmark = pytest.mark.slow

TRAIN = ("workload=train", "precision=fp32", "workload.sequence_length=16")


def test_jobs_at_once_have_the_peaks_of_the_same_jobs_alone_and_logs_of_their_own(tmp_path: Path) -> None:
    axes = ("workload=forward,train", "precision=fp32", "hardware.threads=1", "workload.sequence_length=16")
    together = Sweep(tmp_path / "together", "-m", *axes, "hydra.launcher.n_jobs=2").wait(0)
    for number, workload in enumerate(("forward", "train")):
        alone = Sweep(tmp_path / workload, f"workload={workload}", *axes[1:]).wait(0)
        (record,) = alone.records
        beside = together.records[number]
        for phase in ("load", "work"):
            assert beside["memory"][phase]["peak_resident"] == pytest.approx(
                record["memory"][phase]["peak_resident"], rel=0.01
            )
        assert beside["plan"]["footprint"]["peak"] == pytest.approx(record["plan"]["footprint"]["peak"], rel=0.01)
        log = (together.folder / str(number) / "run.log").read_text()
        assert f"[{number}]" not in log
        assert beside["plan"]["choices"][0]["reason"] in log
        assert log.count("predicted   ") == 1
        assert log.rstrip().endswith(str(together.folder / str(number) / "record.json"))
    assert re.search(r"^\[0\] load peak ", together.out, re.MULTILINE)
    assert re.search(r"^\[1\] losses ", together.out, re.MULTILINE)
    assert all("times are not those of this job alone" in record["notes"][0] for record in together.records)


def test_jobs_at_once_share_the_cpus_and_say_so_in_record_and_reproduce_line(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, "-m", "workload=load", "seed=0,1", "hydra.launcher.n_jobs=2", OMP_NUM_THREADS="1").wait(0)
    for record in sweep.records:
        choice = next(choice for choice in record["plan"]["choices"] if choice["name"] == "threads")
        assert (choice["asked"], choice["value"]) == ("auto", "1")
        assert record["reproduce"].endswith("hardware.threads=1")


def test_a_job_waits_until_its_predicted_memory_fits_beside_the_others(tmp_path: Path) -> None:
    sweep = Sweep(
        tmp_path, "-m", *TRAIN, "workload.steps=2", "seed=0,1", "memory.limit=700MiB", "hydra.launcher.n_jobs=2"
    ).wait(0)
    waited = [line for line in sweep.out.splitlines() if "waits       for memory of cpu" in line]
    assert len(waited) == 1
    assert "of 700.00 MiB job" in waited[0]


@pytest.mark.parametrize("launcher", ["runner", "basic"])
def test_a_verdict_does_not_depend_on_the_launcher_or_the_place_in_the_sweep(launcher: str, tmp_path: Path) -> None:
    axes = ("workload=load,forward", "memory.limit=auto,100MiB")
    sweep = Sweep(tmp_path, "-m", *axes, f"hydra/launcher={launcher}").wait(3)
    assert [record["status"] for record in sweep.records] == ["completed", "refused"] * 2
    if launcher == "runner":
        assert len({record["hardware"]["free"] for record in sweep.records}) == 1


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_job_whose_worker_dies_has_its_record_and_the_others_go_on(number: int, at_once: int, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, "-m", *TRAIN, "workload.steps=2,100000,3", f"hydra.launcher.n_jobs={at_once}")
    os.kill(sweep.worker(1, beside=(0, 2) if at_once > 1 else ()), number)
    sweep.wait(5)
    assert [record["status"] for record in sweep.records] == ["completed", "killed", "completed"]
    name = signal.Signals(number).name
    assert sweep.records[1]["error"]["message"] == f"the worker was killed in work by {name}"
    assert f"killed in work by {name}" in (sweep.folder / "1" / "run.log").read_text()
    assert f"job 1 killed: the worker was killed in work by {name}" in sweep.out
    rows = json.loads((sweep.folder / "sweep.json").read_text())["rows"]
    assert [row["status"] for row in rows] == ["completed", "killed", "completed"]


def test_when_the_workers_server_is_killed_its_jobs_are_recorded_and_the_next_has_a_new_one(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, "-m", *TRAIN, "workload.steps=1000,2")
    worker = sweep.worker(0)
    server = psutil.Process(worker).parent()
    assert server is not None
    server.kill()
    sweep.wait(5)
    assert [record["status"] for record in sweep.records] == ["killed", "completed"]
    assert "the workers' server was killed" in sweep.records[0]["error"]["message"]
    assert not psutil.pid_exists(worker)


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_is_whole_and_can_be_resumed(number: int, at_once: int, tmp_path: Path) -> None:
    axes = ("workload.steps=4,100000,100001", "seed=0,1")
    sweep = Sweep(tmp_path, "-m", *TRAIN, *axes, f"hydra.launcher.n_jobs={at_once}")
    worker = sweep.worker(2)
    sweep.process.send_signal(number)
    sweep.wait(130)
    statuses = [record["status"] for record in sweep.records]
    assert statuses == ["completed", "completed", "interrupted", "interrupted"][: 2 + at_once]
    assert not psutil.pid_exists(worker)
    assert "Traceback" not in sweep.out + sweep.err
    assert sweep.err.rstrip().endswith("runner: interrupted")
    rows = json.loads((sweep.folder / "sweep.json").read_text())["rows"]
    assert [row["status"] for row in rows] == statuses
    assert "job 2 interrupted: " in sweep.out


@pytest.mark.parametrize("at_once", [1, 2])
def test_however_often_ctrl_c_is_pressed_no_record_is_lost(at_once: int, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, "-m", *TRAIN, "workload.steps=100000", "seed=0,1", f"hydra.launcher.n_jobs={at_once}")
    sweep.worker(0)
    for _ in range(5):
        sweep.process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    out, err = sweep.process.communicate(timeout=60)
    assert sweep.process.returncode == 130, out + err
    assert {record["status"] for record in sweep.records} == {"interrupted"}


@pytest.mark.parametrize("at_once", [1, 2])
def test_resuming_runs_what_is_missing_or_failed_and_cleans_up_before(at_once: int, tmp_path: Path) -> None:
    first = Sweep(tmp_path, "-m", "workload=load,forward", "seed=0,1").wait(0)
    record = first.folder / "2" / "record.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "running"}))
    (first.folder / "2" / "losses.csv").write_text("of another attempt")
    (first.folder / "2" / ".plan.json.0a1b2c3d.part").touch()
    shutil.rmtree(first.folder / "1")
    ids = [made["run_id"] for made in first.records]
    again = Sweep(tmp_path, f"sweep.resume={first.folder}", f"hydra.launcher.n_jobs={at_once}").wait(0)
    assert [made["run_id"] in ids for made in again.records] == [True, False, False, True]
    assert again.out.count("completed before") == 2
    assert not (first.folder / "2" / "losses.csv").exists()
    assert list(first.folder.rglob("*.part")) == []


def test_another_sweep_cannot_be_resumed_here_and_does_no_harm_by_trying(tmp_path: Path) -> None:
    first = Sweep(tmp_path, "-m", "workload=load", "seed=0,1").wait(0)
    wrong = Sweep(tmp_path, "-m", f"sweep.resume={first.folder}", "workload=train", "seed=0,1").wait(2)
    assert "holds another job" in wrong.err
    assert [record["status"] for record in wrong.records] == ["completed", "completed"]
    right = Sweep(tmp_path, f"sweep.resume={first.folder}").wait(0)
    assert right.out.count("completed before") == 2


def test_the_same_command_again_goes_on_where_the_first_began_a_folder(tmp_path: Path) -> None:
    command = ("-m", "sweep.resume=here", "workload=load", "seed=0,1")
    assert len(Sweep(tmp_path, *command, folder=tmp_path / "here").wait(0).records) == 2
    assert Sweep(tmp_path, *command, folder=tmp_path / "here").wait(0).out.count("completed before") == 2


@pytest.mark.skipif(not can_limit_groups(), reason="needs root and a writable cgroup v1 memory hierarchy")
def test_twelve_jobs_one_refused_one_killed_by_its_cgroup_one_with_a_bad_model(tmp_path: Path) -> None:
    """The demonstration; `python tests/benchmarks/sweep.py demo` prints it."""
    sweep = twelve_jobs(tmp_path, *TRAIN)
    sweep.wait(4)
    expected = ["completed"] * 12
    expected[3], expected[5], expected[8] = "refused", "out_of_memory", "failed"
    assert [record["status"] for record in sweep.records] == expected
    wrong = [line for line in sweep.out.splitlines() if re.match(r"job \d+ (refused|out_of_memory|failed): ", line)]
    assert [line.split(":")[0] for line in wrong] == ["job 3 refused", "job 5 out_of_memory", "job 8 failed"]
    assert "out-of-memory killer" in wrong[1]
    assert "model.safetensors" in wrong[2]
    for name in ("sweep.json", "sweep.csv", "sweep.html"):
        assert (sweep.folder / name).exists()
