"""Whole runs on an accelerator. They are skipped, with the reason, where there is none."""

from pathlib import Path

import pytest

from tests.test_run import run, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("workload", ["load", "forward", "generate", "train"])
def test_a_run_uses_the_accelerator_and_measures_its_allocator(workload: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"workload={workload}", "workload.max_new_tokens=8")
    assert done.code == 0, done.err
    record = done.record
    assert record["hardware"]["device_type"] != "cpu"
    assert record["memory"]["work"]["peak_allocated"] > 0
    assert record["memory"]["work"]["peak_reserved"] >= record["memory"]["work"]["peak_allocated"]
    assert record["prediction_error"]["basis"] == "peak_allocated"


def test_a_limit_is_enforced_by_the_allocator(tmp_path: Path) -> None:
    done = run(
        tmp_path, "workload=train", "workload.micro_batch_size=16", "workload.sequence_length=512", "precision=fp32",
        "memory.limit=1GiB", "memory.force=true",
    )  # fmt: skip
    assert done.code == 4, done.out + done.err
    assert done.record["status"] == "out_of_memory"


def test_memory_is_given_back_after_unloading(tmp_path: Path) -> None:
    done = run(tmp_path, *tiny("workload=forward"))
    assert done.code == 0, done.err
    assert done.record["memory"]["unload"]["allocated"] < done.record["memory"]["work"]["allocated"]
