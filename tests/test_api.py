from dataclasses import replace
from pathlib import Path

import pytest

import runner
from runner.checkpoint import Checkpoint
from runner.errors import DoesNotFit, RequestError
from runner.units import GiB, format_size
from tests.makers import card


def test_memory_is_told_in_bytes() -> None:
    found = runner.check_memory()
    assert set(found) == {"total", "available", "host_total", "host_available"}
    assert found["total"] is not None
    assert found["available"] is not None
    assert 0 < found["available"] <= found["total"]


def test_an_estimate_has_all_precisions_and_half_costs_half(qwen: Checkpoint) -> None:
    found = runner.estimate(qwen.path or "", workload="load")
    assert list(found) == ["fp32", "bf16", "fp16"]
    assert found["fp32"].parameters == 2 * found["bf16"].parameters == 2 * found["fp16"].parameters


def test_an_estimate_prints_as_a_table(qwen: Checkpoint) -> None:
    found = runner.estimate(qwen.path or "", workload="generate")
    head, *rows = str(found).splitlines()
    assert head.split("  ")[0] == "precision"
    assert all(name in head for name in ("parameters", "kv cache", "peak"))
    assert "gradients" not in head
    assert [row.split()[0] for row in rows] == list(found)
    assert all(format_size(found[row.split()[0]].peak) in row for row in rows)


def test_a_plan_can_be_for_a_machine_that_is_not_here(qwen: Checkpoint) -> None:
    plan = runner.plan(qwen.path or "", hardware=card(budget=8 * GiB), workload="train", precision="bf16")
    assert plan.settings.device == "cuda:0"
    assert plan.fits
    assert plan.footprint.optimizer_state > 0


def test_a_model_is_loaded_and_unloaded_with_its_statistics(qwen: Checkpoint) -> None:
    with runner.load(qwen.path or "", precision="bf16") as loaded:
        assert next(loaded.model.parameters()).dtype.itemsize == 2
        assert loaded.plan is not None
        assert loaded.memory["load"].resident is not None
    assert loaded.model is None
    assert set(loaded.memory) == {"load", "unload"}


def test_the_embedded_model_is_the_default() -> None:
    with runner.load() as loaded:
        assert loaded.tokenizer("The with statement")["input_ids"]


def test_what_does_not_fit_is_refused_before_loading(qwen: Checkpoint) -> None:
    with (
        pytest.raises(DoesNotFit, match=r"100\.00 MiB may be used"),
        runner.load(qwen.path or "", memory_limit="100MiB"),
    ):
        pass


def test_nothing_can_be_loaded_on_a_machine_that_is_not_here(qwen: Checkpoint) -> None:
    there = replace(card(), is_profile=True)
    with pytest.raises(RequestError, match="is not here"), runner.load(qwen.path or "", hardware=there):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precison": "bf16"}, "unknown option 'precison'"),
        ({"precision": "int8"}, "precision='int8' is not one of auto, fp32, bf16, fp16"),
        ({"memory_limit": "lots"}, "is not a size"),
        ({"device": "cuda:7"}, "cuda"),
    ],
)
def test_a_wrong_option_is_told(options: dict[str, str], message: str, qwen: Checkpoint) -> None:
    with pytest.raises(RequestError, match=message):
        runner.plan(qwen.path or "", **options)


def test_statistics_of_this_process_are_told() -> None:
    found = runner.memory_stats()
    assert found.resident is not None
    assert found.peak_resident is not None
    assert found.peak_resident >= found.resident


def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        runner.plan(tmp_path / "no")


def test_a_machine_may_be_given_by_its_profiles_name(qwen: Checkpoint) -> None:
    made = runner.plan(str(qwen.path), workload="load", hardware="tesla_t4_16gb")
    assert made.settings.device == "cuda:0"
    with pytest.raises(RequestError, match=r"hardware='tesla' is no profile; there are .*tesla_t4_16gb"):
        runner.plan(str(qwen.path), workload="load", hardware="tesla")
