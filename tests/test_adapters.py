"""LoRA and AdamW with states in 8 bits: what they train, what they take, and how it is predicted."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runner.config import Adapter, Optimizer, OptimizerImplementation, Precision
from runner.errors import RequestError
from runner.predict import trace
from runner.resolve import remedies
from runner.settings import Settings
from runner.units import GiB, MiB
from tests.extras_makers import needs
from tests.makers import MILLION, card, linear_model, processor, request
from tests.predict_makers import checkpoint, settings
from tests.predict_measured import measure
from tests.test_resolve import TRAIN, plan_for, reason
from tests.test_run import run

lora = needs("peft")
eight_bit = needs("bitsandbytes")
WHOLE = ("workload=train", "workload.steps=2", "workload.sequence_length=32")


def with_adapter(precision: str, *, checkpointed_layers: int = 0) -> Settings:
    """A training step of an adapter, the model frozen in the precision itself."""
    base = settings(workload="train", precision=precision, micro_batch_size=2, sequence_length=24)
    return replace(base, adapter="lora", checkpointed_layers=checkpointed_layers, parameter_dtype=base.compute_dtype)


@lora
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("layers", [0, 99])
@pytest.mark.parametrize("model_type", ["llama", "bert", "t5"])
def test_an_adapters_step_is_predicted(model_type: str, precision: str, layers: int) -> None:
    asked = with_adapter(precision, checkpointed_layers=layers)
    found = trace(checkpoint(model_type), asked)
    assert found.peak.total == pytest.approx(measure(checkpoint(model_type), asked), rel=0.0005)
    assert found.peak.by_category["optimizer_state"] < found.peak.by_category["parameters"]


@eight_bit
@pytest.mark.slow
@pytest.mark.parametrize("pure", [False, True])
def test_eight_bit_states_are_predicted(pure: bool) -> None:
    asked = settings(workload="train", precision="bf16", micro_batch_size=2, sequence_length=24, optimizer="adamw_8bit")
    if pure:
        asked = replace(asked, parameter_dtype="bfloat16", autocast=False)
    found = trace(checkpoint("llama"), asked)
    assert found.peak.total == pytest.approx(measure(checkpoint("llama"), asked), rel=0.001)
    whole = trace(checkpoint("llama"), replace(asked, optimizer="adamw"))
    assert 0 < found.peak.by_category["optimizer_state"] < 0.7 * whole.peak.by_category["optimizer_state"]


@lora
@pytest.mark.slow
def test_a_trained_adapter_is_written_and_changes_what_the_model_says(tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from runner.embedded import FOLDER

    done = run(tmp_path, *WHOLE, "adapter=lora", "adapter.rank=4", "precision=bf16", "memory.exact=true",
               "memory=checkpointing_on", "hydra.run.dir=here", "optimizer.learning_rate=0.01")  # fmt: skip
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "here" / "record.json").read_text())
    assert record["plan"]["parameter_dtype"] == "bfloat16"
    assert abs(record["prediction_error"]["work"]) < 0.001
    assert 0 < record["outcome"]["details"]["trained_parameters"] < 0.05 * record["checkpoint"]["num_parameters"]
    assert "adapter/adapter_model.safetensors" in record["outcome"]["files"]
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        before = model(ids).logits.clone()
        adapted = PeftModel.from_pretrained(model, tmp_path / "here" / "adapter")
        assert not torch.equal(adapted(ids).logits, before)


@lora
@pytest.mark.slow
def test_layers_that_the_model_does_not_have_are_told_before_loading(tmp_path: Path) -> None:
    done = run(tmp_path, *WHOLE, "adapter=lora", "adapter.targets=[nonsense]")
    assert done.code == 2
    assert "adapter.targets=[nonsense]" in done.err
    assert "Traceback" not in done.err


@eight_bit
@pytest.mark.slow
def test_eight_bit_training_asks_nobody_for_a_kernel() -> None:
    """On processors with bf16 bitsandbytes would fetch one from the Hub, through the package `kernels`."""
    code = (
        "import sys, types; kernels = sys.modules['kernels'] = types.ModuleType('kernels'); "
        "kernels.get_kernel = lambda *a, **k: sys.exit('asked for a kernel'); import torch; "
        "from runner.adapters import adamw_8bit; adamw_8bit([torch.nn.Parameter(torch.zeros(8))]); "
        "assert sys.modules['kernels'] is kernels"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@eight_bit
@pytest.mark.slow
def test_a_run_with_eight_bit_states_has_the_memory_that_was_said(tmp_path: Path) -> None:
    done = run(tmp_path, *WHOLE, "optimizer=adamw_8bit", "memory.exact=true", "hydra.run.dir=here")
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "here" / "record.json").read_text())
    assert abs(record["prediction_error"]["work"]) < 0.001
    assert record["outcome"]["finite"]


def test_an_adapter_has_no_effect_where_nothing_is_trained_and_the_plan_says_so() -> None:
    plan = plan_for(request(adapter={"name": Adapter.lora}), processor())
    assert plan.settings.adapter == "none"
    assert "no effect: generate trains nothing" in reason(plan, "adapter")


def test_what_an_adapter_leaves_frozen_has_no_copy_in_fp32() -> None:
    for name, dtype in ((Adapter.none, "float32"), (Adapter.lora, "bfloat16")):
        config = request(workload=TRAIN, precision={"name": Precision.bf16}, adapter={"name": name})
        plan = plan_for(config, card(budget=64 * GiB))
        assert plan.settings.parameter_dtype == dtype
        assert plan.settings.autocast


def test_what_is_installed_is_among_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "is_installed", lambda override: True)
    predict = linear_model(parameters=1000 * MILLION, per_token=0, per_layer=MiB)
    config = request(workload=TRAIN, precision={"name": Precision.bf16})
    plan = plan_for(config, card(budget=10 * GiB), predict=predict)
    tried = [remedy.override for remedy in plan.remedies]
    assert "adapter=lora" in tried, tried


def test_eight_bit_states_come_with_one_implementation() -> None:
    how = {"name": Optimizer.adamw_8bit, "implementation": OptimizerImplementation.foreach}
    with pytest.raises(RequestError, match="adamw_8bit has one form"):
        plan_for(request(workload=TRAIN, optimizer=how), card())
