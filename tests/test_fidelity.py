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


def saved(
    folder: Path,
    job: str,
    precision: str,
    *,
    probe: dict[str, Any] | None = None,
    losses: Any = None,
    model: Any = None,
) -> None:
    """Write a completed run in a precision, with what it left."""
    config = request(precision={"name": Precision(precision)}, workload={"name": Workload.forward})
    plan = resolve(config, card(), checkpoint(), predict=linear_model(), num_layers=0)
    (folder / job).mkdir(parents=True)
    made = record(plan=plan, outcome={"losses": losses, "details": {}}, checkpoint=model or checkpoint())
    write_record(made, folder / job)
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


def test_a_logit_that_is_not_a_number_is_never_taken_for_agreement() -> None:
    logits = np.zeros((2, 3), np.float32)
    broken = logits.copy()
    broken[0, 1] = np.nan
    assert math.isnan(logits_fidelity(logits, broken)[0])


def test_a_token_that_the_reference_rules_out_adds_nothing_and_one_that_the_run_rules_out_is_infinitely_far() -> None:
    logits, ruled_out = np.zeros((1, 3), np.float32), np.array([[0.0, 0.0, -np.inf]], np.float32)
    assert logits_fidelity(ruled_out, ruled_out)[0] == 0
    assert logits_fidelity(ruled_out, logits)[0] == pytest.approx(math.log(1.5))
    assert logits_fidelity(logits, ruled_out)[0] == math.inf


def test_runs_in_the_references_precision_are_compared_too_and_the_reference_is_named(tmp_path: Path) -> None:
    for job, precision, moved in (("0", "bf16", 0.5), ("1", "fp32", 0.0), ("2", "fp32", 0.0)):
        saved(tmp_path, job, precision, losses=[3.0, 2.0 + moved])
    rows = {row.job: row for row in collect([tmp_path])}
    assert [rows[job].reference for job in "012"] == ["1", "1", "1"]
    assert [rows[job].loss_difference for job in "012"] == [0.5, None, 0.0]
    assert {row.compared for row in rows.values()} == {"losses"}


def test_a_run_without_outputs_is_no_reference(tmp_path: Path) -> None:
    exact = np.ones((2, 3), np.float32)
    saved(tmp_path, "0", "fp32")
    saved(tmp_path, "1", "bf16", probe={"embedding": exact})
    saved(tmp_path, "2", "fp16", probe={"embedding": exact})
    rows = {row.job: row for row in collect([tmp_path])}
    assert rows["0"].reference is None
    assert (rows["2"].reference, rows["2"].cosine) == ("1", pytest.approx(1.0))


@pytest.mark.parametrize("content", [b"", b"\x08", b"\xff" * 64])
def test_a_probe_that_is_not_whole_is_unknown(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path, "0", "fp32", probe={"logits": np.zeros((2, 3), np.float32)})
    saved(tmp_path, "1", "bf16")
    (tmp_path / "1" / "probe.safetensors").write_bytes(content)
    assert all(row.kl is None for row in collect([tmp_path]))


def test_models_in_other_folders_are_other_models_though_their_headers_are_the_same(tmp_path: Path) -> None:
    for job, precision, folder in (("0", "fp32", "base"), ("1", "bf16", "tuned"), ("2", "fp16", "base")):
        saved(tmp_path, job, precision, losses=[1.0], model=checkpoint(path=Path("/models") / folder, content_hash="a"))
    assert [row.loss_difference for row in collect([tmp_path])] == [None, None, 0.0]


def test_a_loss_that_is_not_a_number_is_not_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, "0", "fp32", losses=[3.0, 2.0])
    saved(tmp_path, "1", "bf16", losses=[3.0, float("nan")])
    difference = collect([tmp_path])[1].loss_difference
    assert difference is not None
    assert math.isnan(difference)


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
