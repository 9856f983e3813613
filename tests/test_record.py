import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.config import Workload
from runner.errors import DoesNotFit, OutOfMemory, RequestError
from runner.meter import MemoryStats
from runner.record import (
    Record,
    environment,
    new_run_id,
    prediction_error,
    read_record,
    reproduce_command,
    to_json,
    write_plan,
    write_record,
)
from runner.resolve import resolve
from runner.units import GiB
from tests.makers import card, checkpoint, linear_model, processor, request


def record(**overrides: Any) -> Record:
    """A completed record of a load on a card."""
    config = request()
    plan = resolve(config, card(), checkpoint(), predict=linear_model(), num_layers=4)
    values: dict[str, Any] = {
        "run_id": new_run_id(), "status": "completed", "command": ("runner",), "overrides": (), "config": {},
        "environment": {}, "hardware": card(), "checkpoint": checkpoint(), "plan": plan,
    }  # fmt: skip
    return Record(**values | overrides)


def test_the_record_has_the_schemas_names() -> None:
    values = to_json(record())
    assert list(values) == [
        "schema_version", "run_id", "status", "command", "overrides", "config", "reproduce", "hardware", "checkpoint",
        "plan", "memory", "prediction_error", "outcome", "timing", "timeline", "notes", "error", "environment",
    ]  # fmt: skip
    assert {"device", "device_type", "name", "total", "free", "budget_source", "dtypes", "capability", "host_total",
            "host_available"} <= set(values["hardware"])  # fmt: skip
    assert {"id", "revision", "path", "architecture", "num_parameters", "stored_dtypes", "bytes"} <= set(
        values["checkpoint"]
    )
    assert {"choices", "parameter_dtype", "compute_dtype", "activation_checkpointing", "footprint", "budget", "margin",
            "fits", "remedies"} <= set(values["plan"])  # fmt: skip
    assert set(values["plan"]["activation_checkpointing"]) == {"value", "num_layers", "of"}
    assert set(values["memory"]) == {"load", "work", "unload"}


def test_what_is_unknown_is_null_and_never_zero() -> None:
    values = to_json(record(hardware=card(total=None, free=None), memory={"load": MemoryStats()}))
    assert values["hardware"]["total"] is None
    assert set(values["memory"]["load"].values()) == {None}
    assert values["memory"]["work"] is None
    assert values["prediction_error"] == {"load": None, "work": None, "basis": None}


def test_the_prediction_error_is_signed_and_relative_to_what_was_measured() -> None:
    predicted = record().plan.footprint.load_peak  # type: ignore[union-attr]
    memory = {"load": MemoryStats(peak_allocated=predicted * 2), "work": MemoryStats(peak_allocated=predicted // 2)}
    errors = prediction_error(record(memory=memory))
    assert errors["load"] == -0.5
    assert isinstance(errors["work"], float)
    assert errors["work"] > 0.9
    assert errors["basis"] == "peak_allocated"


def test_without_allocated_bytes_the_whole_process_is_compared_and_named() -> None:
    memory = {"load": MemoryStats(peak_resident=5 * GiB, resident_base=GiB)}
    config = request(workload={"name": Workload.load})
    plan = resolve(config, processor(), checkpoint(), predict=linear_model(), num_layers=4)
    errors = prediction_error(record(memory=memory, plan=plan))
    assert errors["basis"] == "peak_resident"
    assert errors["load"] == round((plan.footprint.load_peak - 5 * GiB) / (5 * GiB), 6)


def test_a_record_is_written_whole_and_read_back(tmp_path: Path) -> None:
    path = write_record(record(), tmp_path)
    assert path.name == "record.json"
    assert read_record(tmp_path) == to_json_roundtrip(path)
    assert [item.name for item in tmp_path.iterdir()] == ["record.json"]


def to_json_roundtrip(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_failed_write_leaves_the_earlier_record_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(record(run_id="first"), tmp_path)

    def fail(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_record(record(run_id="second"), tmp_path)
    assert read_record(tmp_path)["run_id"] == "first"
    assert [item.name for item in tmp_path.iterdir()] == ["record.json"]


def test_a_record_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    path = write_record(record(), tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_not_a_number_is_written_as_a_word(tmp_path: Path) -> None:
    write_record(record(outcome={"losses": [float("nan"), float("-inf"), 1.5]}), tmp_path)
    assert read_record(tmp_path)["outcome"] == {"losses": ["nan", "-inf", 1.5]}


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "there is no record"), ("{", "not a readable record"), ('{"schema_version": 99}', "schema_version 99")],
)
def test_what_is_no_record_is_refused_with_the_reason(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "record.json").write_text(text)
    with pytest.raises(RequestError, match=message):
        read_record(tmp_path)


def test_an_error_ends_the_record_with_its_status_and_remedies() -> None:
    ended = record().with_error(
        DoesNotFit("too large", remedies=[{"override": "precision=bf16", "peak": 1, "fits": True}])
    )
    values = to_json(ended)
    assert values["status"] == "refused"
    assert values["error"] == {
        "type": "DoesNotFit",
        "message": "too large",
        "remedies": [{"override": "precision=bf16", "peak": 1, "fits": True}],
    }
    assert record().with_error(OutOfMemory("x")).status == "out_of_memory"


def test_two_runs_of_one_second_have_different_ids() -> None:
    assert len({new_run_id() for _ in range(100)}) == 100


def test_the_environment_holds_versions_but_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = environment()
    assert found["variables"]["HF_HUB_OFFLINE"] == "1"
    assert "hf_secret" not in json.dumps(found)
    assert found["packages"]["transformers"]


def test_the_git_state_is_that_of_the_folder_and_null_outside_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["git"] is None


def test_the_reproduce_line_pins_what_auto_became_and_quotes_for_the_shell() -> None:
    line = reproduce_command(
        ["precision=auto", "workload.prompt='a b'", "seed=3"], pinned={"precision": "bf16", "model.revision": "abc"}
    )
    assert line == "python -m runner 'workload.prompt='\"'\"'a b'\"'\"'' seed=3 precision=bf16 model.revision=abc"


def test_the_reproduce_line_pins_a_group_that_was_given_by_its_key() -> None:
    asked = ("precision.name=auto", "memory.checkpointing=auto", "memory.limit=6GiB")
    pinned = {"precision": "bf16", "memory": "checkpointing_on"}
    line = reproduce_command(asked, pinned=pinned)
    assert line == "python -m runner memory.limit=6GiB precision=bf16 memory=checkpointing_on"


def test_the_plan_is_written_beside_the_record(tmp_path: Path) -> None:
    plan = record().plan
    assert plan is not None
    path = write_plan(replace(plan, fits=False), tmp_path)
    values = json.loads(path.read_text())
    assert (path.name, values["fits"], values["footprint"]["peak"]) == ("plan.json", False, plan.footprint.peak)
