import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runner.compare import collect
from runner.config import Precision, Workload
from runner.fidelity import embedding_fidelity, logits_fidelity
from runner.record import write_record
from runner.resolve import resolve
from tests.makers import card, checkpoint, linear_model, request
from tests.test_record import record


def saved(folder: Path, job: str, precision: str, *, probe: dict[str, Any] | None = None, losses: Any = None) -> None:
    """Write a completed run in a precision, with what it left."""
    config = request(precision={"name": Precision(precision)}, workload={"name": Workload.forward})
    plan = resolve(config, card(), checkpoint(), predict=linear_model(), num_layers=0)
    (folder / job).mkdir(parents=True)
    write_record(record(plan=plan, outcome={"losses": losses, "details": {}}), folder / job)
    if probe is not None:
        save_file(probe, folder / job / "probe.safetensors")


def test_equal_distributions_are_at_zero_and_agree() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    assert logits_fidelity(logits, logits + 3.0) == (pytest.approx(0.0, abs=1e-9), 1.0)


def test_the_divergence_is_the_formulas() -> None:
    reference = np.log(np.array([[0.5, 0.5]], np.float32))
    run = np.log(np.array([[0.25, 0.75]], np.float32))
    kl, agreement = logits_fidelity(reference, run)
    assert kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-6)
    assert agreement == 0.0


def test_the_cosine_is_the_least_of_the_batch() -> None:
    a = np.array([[1.0, 0.0], [1.0, 0.0]], np.float32)
    b = np.array([[2.0, 0.0], [1.0, 1.0]], np.float32)
    assert embedding_fidelity(a, b) == pytest.approx(math.sqrt(0.5))


def test_a_sweep_compares_each_precision_with_the_highest(tmp_path: Path) -> None:
    exact = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    saved(tmp_path, "0", "bf16", probe={"logits": exact + 0.01})
    saved(tmp_path, "1", "fp32", probe={"logits": exact})
    saved(tmp_path, "2", "fp16", probe={"logits": -exact})
    rows = {row.job: row for row in collect([tmp_path])}
    assert rows["1"].kl is None
    assert rows["0"].kl == pytest.approx(0.0, abs=1e-9)
    assert rows["2"].kl is not None
    assert rows["2"].kl > 0.1
    assert rows["2"].top1_agreement == 0.0


def test_training_runs_are_compared_by_their_losses(tmp_path: Path) -> None:
    saved(tmp_path, "0", "fp32", losses=[3.0, 2.0])
    saved(tmp_path, "1", "bf16", losses=[3.1, 1.8])
    rows = {row.job: row for row in collect([tmp_path])}
    assert rows["1"].loss_difference == pytest.approx(0.2)


def test_what_has_no_counterpart_is_not_compared(tmp_path: Path) -> None:
    saved(tmp_path, "0", "fp32", probe={"logits": np.zeros((2, 3), np.float32)})
    saved(tmp_path, "1", "bf16", probe={"logits": np.zeros((2, 4), np.float32)})
    saved(tmp_path, "2", "fp16")
    assert all(row.kl is None and row.cosine is None for row in collect([tmp_path]))
