from dataclasses import replace
from typing import Any

import pytest

from runner.config import Checkpointing, Optimizer, OptimizerImplementation, Precision, RunConfig, Workload
from runner.errors import RequestError
from runner.hardware import Hardware
from runner.predict import Footprint, predict
from runner.predict.overhead import first_use
from runner.resolve import Plan, margin_for, refusal, remedies, resolve
from runner.resolve.fit import MARGIN_LEAST
from runner.settings import Settings
from runner.units import GiB, KiB, MiB
from tests.makers import MILLION, card, checkpoint, footprint, linear_model, processor, request, turing
from tests.predict_makers import checkpoint as tiny_model
from tests.predict_makers import settings as some_settings

LOAD = {"name": Workload.load}
TRAIN = {"name": Workload.train}


@pytest.fixture(autouse=True)
def _nothing_optional_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "is_installed", lambda override: False)


def plan_for(config: RunConfig, machine: Hardware, *, predict: Any = None, num_layers: int = 8, **values: Any) -> Plan:
    return resolve(
        config,
        machine,
        checkpoint(**values),
        predict=predict or linear_model(),
        num_layers=num_layers,
        prompt_tokens=None,
    )


def train_settings() -> Settings:
    return some_settings(workload="train")


def reason(plan: Plan, name: str) -> str:
    return next(choice.reason for choice in plan.choices if choice.name == name)


def test_auto_takes_fp32_where_it_fits() -> None:
    plan = plan_for(request(workload=LOAD), card())
    assert (plan.settings.precision, plan.fits, plan.remedies) == ("fp32", True, ())


def test_auto_degrades_to_bf16_on_ampere_and_says_what_fp32_needs() -> None:
    plan = plan_for(request(workload=LOAD), card(budget=3 * GiB))
    assert plan.settings.parameter_dtype == plan.settings.compute_dtype == "bfloat16"
    assert "not fp32: needs 3.73 GiB" in reason(plan, "precision")


def test_auto_degrades_to_fp16_on_turing_and_never_to_emulated_bf16() -> None:
    plan = plan_for(request(workload=LOAD), turing(budget=3 * GiB))
    assert plan.settings.precision == "fp16"
    assert "not bf16: a Turing card does not compute bf16 natively" in reason(plan, "precision")
    assert "outputs are checked" in reason(plan, "precision")


def test_auto_does_not_fall_to_fp16_for_models_that_overflow_in_it() -> None:
    plan = plan_for(request(workload=LOAD), turing(budget=3 * GiB), model_type="t5")
    assert (plan.settings.precision, plan.fits) == ("fp32", False)


def test_fp32_is_skipped_when_the_stored_precision_makes_it_pointless() -> None:
    stored = {"stored_dtypes": {"bfloat16": 2000 * MILLION, "float32": MILLION}}
    plan = plan_for(request(workload=LOAD), card(), **stored)
    assert plan.settings.precision == "bf16"
    assert "adds no information" in reason(plan, "precision")


def test_training_keeps_fp32_parameters_although_the_checkpoint_is_bf16() -> None:
    plan = plan_for(request(workload=TRAIN), card(budget=64 * GiB), stored_dtypes={"bfloat16": 2000 * MILLION})
    assert plan.settings.precision == "fp32"


def test_weights_stored_in_fp16_are_tried_in_fp16_first() -> None:
    plan = plan_for(request(workload=LOAD), card(), stored_dtypes={"float16": 2000 * MILLION})
    assert plan.settings.precision == "fp16"


def test_a_cpu_without_16_bit_instructions_computes_in_fp32_and_says_why() -> None:
    plan = plan_for(request(workload=LOAD), processor(), stored_dtypes={"bfloat16": 2000 * MILLION})
    assert plan.settings.precision == "fp32"
    assert "not bf16: a CPU does not compute bf16 natively" in reason(plan, "precision")


def test_a_cpu_takes_emulated_bf16_only_as_the_last_resort() -> None:
    plan = plan_for(request(workload=LOAD), processor(budget=3 * GiB))
    assert (plan.settings.precision, plan.fits) == ("bf16", True)
    assert "emulated" in reason(plan, "precision")


def test_a_named_precision_is_kept_or_refused_but_never_changed() -> None:
    plan = plan_for(request(workload=LOAD, precision={"name": Precision.fp32}), card(budget=3 * GiB))
    assert (plan.settings.precision, plan.fits) == ("fp32", False)
    assert [(r.override, r.fits) for r in plan.remedies] == [("precision=bf16", True)]


def test_memory_efficient_false_keeps_full_precision_and_concedes_nothing() -> None:
    config = request(workload=TRAIN, memory_efficient=False, memory={"checkpointing": Checkpointing.auto})
    plan = plan_for(config, card(budget=4 * GiB))
    assert (plan.settings.precision, plan.settings.checkpointed_layers, plan.fits) == ("fp32", 0, False)
    assert plan.settings.optimizer_implementation == "foreach"


def test_mixed_precision_training_keeps_fp32_parameters_and_scales_fp16_gradients() -> None:
    plan = plan_for(request(workload=TRAIN, precision={"name": Precision.fp16}), card(budget=64 * GiB))
    settings = plan.settings
    assert (settings.parameter_dtype, settings.compute_dtype) == ("float32", "float16")
    assert settings.autocast
    assert settings.grad_scaler


def test_pure_training_stores_the_parameters_in_the_low_precision() -> None:
    config = request(workload=TRAIN, precision={"name": Precision.bf16, "pure": True})
    settings = plan_for(config, card(budget=64 * GiB)).settings
    assert (settings.parameter_dtype, settings.autocast, settings.grad_scaler) == ("bfloat16", False, False)


def test_checkpointing_auto_takes_the_fewest_layers_that_fit() -> None:
    predict = linear_model(parameters=0, per_token=0, per_layer=GiB)
    config = request(workload=TRAIN, memory={"checkpointing": Checkpointing.auto})
    for budget in range(1, 9):
        machine = card(budget=budget * GiB + margin_for(footprint(budget * GiB)))
        plan = plan_for(config, machine, predict=predict)
        assert plan.settings.checkpointed_layers == 8 - budget


def test_checkpointing_auto_that_is_not_enough_says_where_the_peak_lies_and_what_helps() -> None:
    predict = linear_model(parameters=1000 * MILLION, per_token=0, per_layer=MiB)
    config = request(workload=TRAIN, precision={"name": Precision.fp32}, memory={"checkpointing": Checkpointing.auto})
    plan = plan_for(config, processor(budget=10 * GiB), predict=predict)
    assert not plan.fits
    assert "the peak is then in forward, 14.90 GiB of it parameters" in reason(plan, "activation_checkpointing")
    assert [remedy.override for remedy in plan.remedies if remedy.fits] == ["optimizer=adafactor"]


TRACED: dict[Settings, Footprint] = {}


@pytest.mark.parametrize("budget", range(900, 1500, 40))
def test_checkpointing_auto_is_the_smallest_by_brute_force_on_a_real_model(budget: int) -> None:
    """Every number of layers is predicted on a traced model; auto must have found the first that fits."""
    made = tiny_model("qwen3", num_hidden_layers=6)
    machine = processor(budget=budget * KiB + MARGIN_LEAST + first_use(train_settings(), processor(), 0))

    def predicted(settings: Settings) -> Footprint:
        if settings not in TRACED:
            TRACED[settings] = predict(made, settings, machine, overhead=0)
        return TRACED[settings]

    config = request(
        workload={**TRAIN, "micro_batch_size": 2, "sequence_length": 24}, precision={"name": Precision.fp32},
        memory={"checkpointing": Checkpointing.auto},
    )  # fmt: skip
    plan = resolve(config, machine, made, predict=predicted, num_layers=6)
    fitting = [
        layers
        for layers in range(7)
        if predicted(replace(plan.settings, checkpointed_layers=layers)).peak + plan.margin <= (machine.budget or 0)
    ]
    assert plan.fits == bool(fitting)
    if fitting:
        assert plan.settings.checkpointed_layers == fitting[0]


def with_malloc(predict: Any, kept: int) -> Any:
    """A predictor whose runs need `kept` bytes more unless malloc is tight."""

    def predicted(settings: Settings) -> Footprint:
        found = predict(settings)
        more = kept if settings.host_allocator == "default" else 0
        return replace(found, peak=found.peak + more, overhead=more)

    return predicted


@pytest.mark.parametrize(("budget", "allocator", "layers"), [(20, "default", 0), (9, "tight", 0), (6, "tight", 3)])
def test_a_tight_malloc_is_conceded_before_any_layer_is_recomputed(budget: int, allocator: str, layers: int) -> None:
    predict = with_malloc(linear_model(parameters=0, per_token=0, per_layer=GiB), 4 * GiB)
    config = request(workload=TRAIN, memory={"checkpointing": Checkpointing.auto})
    plan = resolve(
        config, processor(budget=budget * GiB), checkpoint(), predict=predict, num_layers=8, can_tighten_malloc=True
    )
    assert plan.fits
    assert (plan.settings.host_allocator, plan.settings.checkpointed_layers) == (allocator, layers)
    named = {choice.name for choice in plan.choices}
    assert ("host_allocator" in named) == (allocator == "tight")


def test_malloc_is_left_alone_where_it_cannot_be_told_or_must_not() -> None:
    predict = with_malloc(linear_model(parameters=0, per_token=0, per_layer=GiB), 4 * GiB)
    machine = processor(budget=9 * GiB)
    for config, can in ((request(workload=TRAIN), False), (request(workload=TRAIN, memory_efficient=False), True)):
        plan = resolve(config, machine, checkpoint(), predict=predict, num_layers=8, can_tighten_malloc=can)
        assert (plan.settings.host_allocator, plan.fits) == ("default", False)


def test_checkpointing_has_no_effect_outside_training_and_the_choice_says_so() -> None:
    plan = plan_for(request(workload=LOAD, memory={"checkpointing": Checkpointing.on}), card())
    assert plan.settings.checkpointed_layers == 0
    assert "no effect" in reason(plan, "activation_checkpointing")


def test_checkpointing_a_model_without_layers_is_refused() -> None:
    config = request(workload=TRAIN, memory={"checkpointing": Checkpointing.on})
    with pytest.raises(RequestError, match="no repeated layers"):
        plan_for(config, card(), num_layers=0)


def test_each_remedy_fits_when_it_is_applied() -> None:
    predict = linear_model(parameters=200 * MILLION, per_token=2 * MiB, per_layer=GiB // 4)
    config = request(workload={**TRAIN, "micro_batch_size": 8, "sequence_length": 256})
    machine = processor(budget=6 * GiB)
    plan = plan_for(config, machine, predict=predict)
    assert not plan.fits
    fitting = [remedy for remedy in plan.remedies if remedy.fits]
    assert {"workload.micro_batch_size=1 workload.grad_accum_steps=8", "workload.sequence_length=32"} <= {
        r.override for r in fitting
    }
    for remedy in fitting:
        changed = dict(item.split("=") for item in remedy.override.split())
        workload = {k.split(".")[1]: int(v) for k, v in changed.items() if k.startswith("workload.")}
        again = request(workload={**TRAIN, "micro_batch_size": 8, "sequence_length": 256, **workload})
        assert plan_for(again, machine, predict=predict).fits
        assert plan_for(again, machine, predict=predict).footprint.peak == remedy.peak


def test_remedies_add_up_where_none_alone_is_enough() -> None:
    predict = linear_model(parameters=100 * MILLION, per_token=8 * MiB, per_layer=GiB // 2)
    config = request(workload={**TRAIN, "micro_batch_size": 8, "sequence_length": 1024})
    plan = plan_for(config, processor(budget=3 * GiB), predict=predict)
    (remedy,) = plan.remedies
    assert remedy.fits
    assert remedy.override.startswith("memory=checkpointing_on ")
    assert "workload.micro_batch_size=" in remedy.override


def test_a_refusal_says_wish_fact_gap_and_that_nothing_helps() -> None:
    plan = plan_for(request(workload=LOAD), card(budget=GiB))
    message = refusal(plan, card(budget=GiB)).message
    assert message.startswith(
        "needs 1.86 GiB on cuda:0; 1.00 GiB may be used (free device memory), 64.00 MiB is kept clear"
    )
    assert "947.35 MiB short" in message
    assert "The peak is in forward, 1.86 GiB of it parameters" in message
    assert "Nothing here makes it smaller" in message


def test_a_refusal_names_each_remedy_with_its_peak() -> None:
    config = request(workload=LOAD, precision={"name": Precision.fp32})
    error = refusal(plan_for(config, card(budget=3 * GiB)), card())
    assert "Fits with precision=bf16 (1.86 GiB)" in error.message
    assert error.remedies == ({"override": "precision=bf16", "peak": 2000 * MILLION, "fits": True},)


def test_force_keeps_the_verdict_and_says_that_it_was_overruled() -> None:
    plan = plan_for(request(workload=LOAD, memory={"force": True}), card(budget=GiB))
    assert (plan.fits, plan.forced) == (False, True)
    assert plan.shortfall == plan.footprint.peak + plan.margin - GiB


def test_an_unknown_budget_refuses_nothing() -> None:
    plan = plan_for(request(workload=LOAD), card(budget=None))
    assert (plan.fits, plan.shortfall) == (True, 0)


def test_the_optimizer_is_fused_on_an_accelerator_and_a_loop_on_a_cpu() -> None:
    assert plan_for(request(workload=TRAIN), card(budget=64 * GiB)).settings.optimizer_implementation == "fused"
    assert plan_for(request(workload=TRAIN), processor(budget=64 * GiB)).settings.optimizer_implementation == "forloop"


def test_a_fused_adafactor_is_refused() -> None:
    optimizer = {"name": Optimizer.adafactor, "implementation": OptimizerImplementation.fused}
    with pytest.raises(RequestError, match="adafactor has none"):
        plan_for(request(workload=TRAIN, optimizer=optimizer), card())


@pytest.mark.parametrize(("asked", "prompt", "length"), [("auto", 7, 7), (32, 7, 32), ("auto", None, 128)])
def test_the_prompt_sets_the_length_unless_one_was_asked_for(asked: Any, prompt: int | None, length: int) -> None:
    config = request(workload={"name": Workload.generate, "sequence_length": asked})
    plan = resolve(config, card(), checkpoint(), predict=linear_model(), num_layers=0, prompt_tokens=prompt)
    assert plan.settings.sequence_length == length


def test_every_choice_has_what_was_asked_and_a_reason() -> None:
    plan = plan_for(request(workload=TRAIN), card(budget=64 * GiB))
    names = [choice.name for choice in plan.choices]
    assert names == ["precision", "activation_checkpointing", "device", "sequence_length", "optimizer_implementation"]
    assert all(choice.asked and choice.value and choice.reason for choice in plan.choices)
