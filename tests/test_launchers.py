"""Sweeps through other launchers than ours: their jobs run in other processes."""

import csv
import importlib.util
from pathlib import Path

import pytest

from tests.test_run import run

PLUGINS = {"submitit_local": "hydra_submitit_launcher", "ray": "hydra_ray_launcher", "basic": None}


def installed(plugin: str | None) -> bool:
    """Whether Hydra's plugin is there."""
    if plugin is None:
        return True
    try:
        return importlib.util.find_spec(f"hydra_plugins.{plugin}") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(not installed(plugin), reason=f"{plugin} is not installed (extras slurm, ray)"),
        )
        for name, plugin in PLUGINS.items()
    ],
)
def test_a_sweep_through_another_launcher_has_its_table_and_its_exit_code(launcher: str, tmp_path: Path) -> None:
    done = run(
        tmp_path, "-m", f"hydra/launcher={launcher}", "workload=forward", "precision=fp32,bf16",
        "memory.limit=100MiB,8GiB",
    )  # fmt: skip
    assert done.code == 3, done.out + done.err
    (table,) = tmp_path.rglob("sweep.csv")
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["refused", "completed", "refused", "completed"]
    assert [row["precision"] for row in rows] == ["fp32", "fp32", "bf16", "bf16"]
    assert float(rows[3]["kl"]) > 0
    assert {row["device"] for row in rows} != {""}
    assert (table.parent / "sweep.html").exists()
    assert "job 0 refused" in done.out
