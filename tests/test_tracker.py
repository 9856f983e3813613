"""Runs told to MLflow and TensorBoard, read back with these libraries themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.record import read_record
from runner.tracker import told
from tests.extras_makers import needs
from tests.test_run import run


def flat(folder: Path) -> Path:
    """The folder of the only record below `folder`."""
    (path,) = folder.rglob("record.json")
    return path.parent


@pytest.mark.slow
def test_what_is_told_is_what_the_record_says(tmp_path: Path) -> None:
    done = run(tmp_path, "workload=train", "workload.steps=3", "workload.sequence_length=16", "precision=fp32")
    assert done.code == 0, done.err
    folder = flat(tmp_path)
    record = read_record(folder)
    said = told(record, folder, is_sweep=False)
    assert said.root == tmp_path.resolve() / "outputs"
    assert said.status == "completed"
    assert list(said.losses) == record["outcome"]["losses"]
    assert said.metrics["memory/predicted_peak"] == record["plan"]["footprint"]["peak"]
    for phase in ("load", "work", "unload"):
        assert said.metrics[f"memory/{phase}/peak_resident"] == record["memory"][phase]["peak_resident"]
    assert said.parameters["precision.name"] == "fp32"
    assert said.parameters["settings.steps"] == 3
    assert said.tags["run_id"] == record["run_id"]
    assert {path.name for path in said.files} >= {"record.json", "plan.json", "memory.svg", "losses.csv"}
    assert not any(name.startswith("tracker") for name in said.parameters)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # mlflow's own, of its libraries
@needs("mlflow")
def test_a_sweep_is_one_experiment_in_a_local_mlflow_store(tmp_path: Path) -> None:
    done = run(
        tmp_path, "-m", "tracker=mlflow", "tracker.experiment=mine", "workload=forward", "precision=fp32,bf16",
        "memory.limit=100MiB,8GiB",
    )  # fmt: skip
    assert done.code == 3, done.err
    from mlflow import MlflowClient

    (database,) = tmp_path.rglob("mlflow.db")
    assert database.parent == tmp_path / "outputs"
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("mine")
    runs = client.search_runs([experiment.experiment_id])
    records = {record["run_id"]: record for record in (read_record(p.parent) for p in tmp_path.rglob("record.json"))}
    assert {found.data.tags["run_id"] for found in runs} == set(records)
    assert len({found.data.tags["sweep"] for found in runs}) == 1
    for found in runs:
        record = records[found.data.tags["run_id"]]
        completed = record["status"] == "completed"
        assert found.info.status == ("FINISHED" if completed else "FAILED")
        assert found.data.params["precision.name"] == record["config"]["precision"]["name"]
        assert found.data.metrics["memory/predicted_peak"] == record["plan"]["footprint"]["peak"]
        names = {item.path for item in client.list_artifacts(found.info.run_id)}
        assert {"record.json", "plan.json", "memory.svg"} <= names
        if completed and found.data.params["precision.name"] == "bf16":
            assert found.data.metrics["fidelity/kl"] > 0


@pytest.mark.slow
@needs("mlflow")
def test_a_store_that_cannot_be_reached_costs_a_warning_and_no_run(tmp_path: Path) -> None:
    done = run(tmp_path, "tracker=mlflow", "tracker.uri=http://127.0.0.1:9", "workload=load")
    assert done.code == 0, done.err
    assert done.record["status"] == "completed"
    assert "not told to mlflow, the record is complete" in done.out + done.err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@needs("tensorboard")
def test_a_run_has_its_losses_in_tensorboard(tmp_path: Path) -> None:
    done = run(
        tmp_path, "tracker=tensorboard", "workload=train", "workload.steps=3", "workload.sequence_length=16",
        "precision=fp32",
    )  # fmt: skip
    assert done.code == 0, done.err
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(flat(tmp_path)))
    events.Reload()
    losses = done.record["outcome"]["losses"]
    assert [point.step for point in events.Scalars("loss")] == [1, 2, 3]
    assert [point.value for point in events.Scalars("loss")] == pytest.approx(losses, rel=1e-6)
    (peak,) = events.Scalars("memory/predicted_peak")
    assert peak.value == pytest.approx(done.record["plan"]["footprint"]["peak"], rel=1e-6)
    assert not json.dumps(done.record["config"]["tracker"]).count("null")
