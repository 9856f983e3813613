import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from runner import steps
from runner.checkpoint import Checkpoint
from runner.config import Workload, WorkloadConfig
from runner.errors import RequestError, WorkloadError
from runner.loader import load
from runner.settings import Settings
from runner.workload import WORKLOADS
from runner.workload.generate import FiniteScores
from runner.workload.job import Job
from runner.workload.outcome import Outcome, all_finite, require_finite
from runner.workload.prompt import fit_length, prompt_batch, read_prompt
from tests.model_makers import settings


def done(checkpoint: Checkpoint, plan: Settings, folder: Path, **config: Any) -> Outcome:
    """Load, and do the plan's workload."""
    asked = WorkloadConfig(name=Workload(plan.workload), **config)
    return WORKLOADS[plan.workload](Job(loaded=load(checkpoint, plan), settings=plan, config=asked, folder=folder))


class Letters:
    """A tokenizer: one token a letter."""

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 512 for letter in text]}

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join(chr(int(token)) for token in ids)


def job(checkpoint: Checkpoint, plan: Settings, folder: Path, **config: Any) -> Job:
    """A job whose model has the letters' tokenizer."""
    loaded = load(checkpoint, plan)
    loaded.tokenizer = Letters()
    return Job(
        loaded=loaded, settings=plan, config=WorkloadConfig(name=Workload(plan.workload), **config), folder=folder
    )


def test_load_tells_what_was_loaded(qwen: Checkpoint, tmp_path: Path) -> None:
    outcome = done(qwen, settings("load", "bf16"), tmp_path)
    assert outcome.details["num_parameters"] == qwen.num_parameters
    assert outcome.dtype_histogram == {"bfloat16": 2 * qwen.num_parameters}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["qwen", "bert", "t5"])
def test_forward_works_for_every_family(
    name: str, precision: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    outcome = done(request.getfixturevalue(name), settings("forward", precision), tmp_path)
    assert outcome.finite
    assert outcome.num_tokens == 16
    (probe,) = outcome.files
    tensors = load_file(tmp_path / probe)
    expected = {"bert": ("embedding", (1, 64))}.get(name, ("logits", (16, 512)))
    assert {key: tuple(value.shape) for key, value in tensors.items()} == dict([expected])
    assert all(value.dtype == torch.float32 for value in tensors.values())


def test_the_likelihood_is_the_models_own_loss(qwen: Checkpoint, tmp_path: Path) -> None:
    plan = settings("forward")
    model = load(qwen, plan).model
    steps.prepare(model, plan)
    inputs = steps.make_inputs(model, plan)
    with torch.no_grad():
        expected = float(model(**inputs, labels=inputs["input_ids"]).loss)
    found = done(qwen, plan, tmp_path).details["negative_log_likelihood"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_generate_writes_text_where_there_is_a_tokenizer(qwen: Checkpoint, tmp_path: Path) -> None:
    plan = settings("generate", sequence_length=5)
    outcome = WORKLOADS["generate"](job(qwen, plan, tmp_path, prompt="hello"))
    assert outcome.text is not None
    assert outcome.text.startswith("hello")
    assert (tmp_path / "text.txt").read_text(encoding="utf-8") == outcome.text + "\n"
    assert outcome.num_tokens == 4
    assert outcome.time_to_first_token is not None
    assert outcome.tokens_per_second is not None


def test_generate_writes_token_ids_where_there_is_none(qwen: Checkpoint, tmp_path: Path) -> None:
    outcome = done(qwen, settings("generate"), tmp_path)
    assert (tmp_path / "tokens.txt").read_text().split() == [str(token) for token in outcome.details["tokens"]]
    assert len(outcome.details["tokens"]) == 16 + 4


def test_an_encoder_decoder_generates(t5: Checkpoint, tmp_path: Path) -> None:
    assert done(t5, settings("generate"), tmp_path).files == ("tokens.txt", "probe.safetensors")


def test_an_encoder_cannot_generate_and_the_error_says_what_works(bert: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="BertModel cannot generate; workload=forward and workload=train work"):
        done(bert, settings("generate"), tmp_path)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_seed_generates_the_same_tokens(qwen: Checkpoint, tmp_path: Path, temperature: float) -> None:
    plan = settings("generate", temperature=temperature, max_new_tokens=12)
    first, second = (done(qwen, plan, tmp_path).details["tokens"] for _ in range(2))
    other = done(qwen, replace(plan, seed=1), tmp_path).details["tokens"]
    assert first == second
    assert first != other


def test_too_many_tokens_for_the_context_are_refused_with_numbers(qwen: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"need 520 positions, Qwen3ForCausalLM has 512: 8 too many"):
        done(qwen, settings("generate", sequence_length=500, max_new_tokens=20), tmp_path)


@pytest.mark.parametrize("name", ["qwen", "bert", "t5"])
@pytest.mark.parametrize(("precision", "autocast"), [("fp32", False), ("bf16", True), ("fp16", True), ("bf16", False)])
def test_training_works_for_every_family(
    name: str, precision: str, autocast: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan = settings("train", precision, autocast=autocast, grad_scaler=autocast and precision == "fp16")
    plan = replace(plan, parameter_dtype="float32") if autocast else plan
    outcome = done(request.getfixturevalue(name), plan, tmp_path)
    assert outcome.losses is not None
    assert all(4 < loss < 8 for loss in outcome.losses)  # about ln 512 for weights that know nothing
    with (tmp_path / "losses.csv").open() as file:
        assert [float(row["loss"]) for row in csv.DictReader(file)] == list(outcome.losses)


def test_training_lowers_the_loss(qwen: Checkpoint, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("the cat sat on the mat. " * 20)
    plan = settings("train", steps=12, learning_rate=3e-3, micro_batch_size=2)
    losses = WORKLOADS["train"](job(qwen, plan, tmp_path, text_file=str(text))).losses
    assert losses is not None
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("name", ["qwen", "bert", "t5"])
def test_checkpointing_recomputes_every_layer_and_changes_no_loss(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    checkpoint = request.getfixturevalue(name)
    plan = settings("train", num_layers=4)
    most = len(steps.layers(load(checkpoint, plan).model))
    plain = done(checkpoint, plan, tmp_path)
    recomputed = done(checkpoint, replace(plan, checkpointed_layers=most), tmp_path)
    assert (plain.details["recomputed_layers"], recomputed.details["recomputed_layers"]) == (0, most)
    assert plain.losses == recomputed.losses


def test_only_the_first_layers_are_recomputed_where_fewer_were_planned(qwen: Checkpoint, tmp_path: Path) -> None:
    outcome = done(qwen, settings("train", num_layers=4, checkpointed_layers=3), tmp_path)
    assert outcome.details["recomputed_layers"] == 3


def test_checkpointing_that_does_not_act_is_an_error(
    qwen: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_checkpoint_layers", lambda model, num_layers: None)
    with pytest.raises(WorkloadError, match="was set for 4 layers of Qwen3ForCausalLM, and only 0 were computed again"):
        done(qwen, settings("train", num_layers=4, checkpointed_layers=4), tmp_path)


def test_training_without_any_gradient_is_an_error(
    qwen: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = steps.loss
    monkeypatch.setattr(steps, "loss", lambda model, inputs: real(model, inputs) * 0.0)
    with pytest.raises(WorkloadError, match="no parameter got a gradient"):
        done(qwen, settings("train"), tmp_path)


def test_the_cache_is_off_in_training(qwen: Checkpoint) -> None:
    model = load(qwen, settings("train")).model
    steps.prepare(model, settings("train"))
    assert model.config.use_cache is False


def test_the_same_seed_trains_to_the_same_bits(qwen: Checkpoint, tmp_path: Path) -> None:
    plan = settings("train", "bf16", steps=3)
    assert done(qwen, plan, tmp_path).losses == done(qwen, plan, tmp_path).losses


def test_accumulated_micro_batches_are_one_step(qwen: Checkpoint, tmp_path: Path) -> None:
    outcome = done(qwen, settings("train", grad_accum_steps=3), tmp_path)
    assert outcome.losses is not None
    assert len(outcome.losses) == 2
    assert outcome.num_tokens == 2 * 3 * 16


def test_a_text_that_is_too_short_is_refused_with_numbers(qwen: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("short")
    with pytest.raises(RequestError, match=r"has 5 tokens, one sequence needs 16: 11 short.*sequence_length=5"):
        WORKLOADS["train"](job(qwen, settings("train"), tmp_path, text_file=str(tmp_path / "text")))


def test_weights_that_overflow_in_fp16_are_told_with_the_likely_cause(qwen: Checkpoint, tmp_path: Path) -> None:
    broken = job(qwen, settings("forward", "fp16"), tmp_path, prompt="hello")
    broken.loaded.model.model.norm.weight.data.fill_(6e4)
    with pytest.raises(WorkloadError, match=r"not finite in fp16: fp16 overflows above 65504.*precision=bf16"):
        WORKLOADS["forward"](broken)


def test_scores_that_are_not_numbers_stop_a_generation(qwen: Checkpoint, tmp_path: Path) -> None:
    broken = job(qwen, settings("generate", "bf16", sequence_length=5), tmp_path, prompt="hello")
    broken.loaded.model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(WorkloadError, match="the scores are not finite in bf16: the weights"):
        WORKLOADS["generate"](broken)


def test_tokens_that_are_ruled_out_do_not_count_as_overflow() -> None:
    check = FiniteScores()
    check(None, torch.tensor([[1.0, float("-inf")]]))
    assert check.finite
    check(None, torch.tensor([[float("inf")]]))
    assert not check.finite


def test_finiteness_is_checked_in_chunks() -> None:
    values = torch.zeros(2**16 + 10)
    assert all_finite(values)
    values[-1] = float("inf")
    assert not all_finite(values)
    with pytest.raises(WorkloadError, match="x is not finite in fp32"):
        require_finite(False, "fp32", "x is")


@pytest.mark.parametrize(("ids", "length", "fitted"), [([1, 2, 3], 2, [1, 2]), ([1, 2], 5, [1, 2, 1, 2, 1])])
def test_a_prompt_is_cut_or_repeated_to_a_length(ids: list[int], length: int, fitted: list[int]) -> None:
    assert fit_length(ids, length) == fitted


def test_a_batch_holds_the_prompt_in_every_row() -> None:
    config = WorkloadConfig(prompt="abc")
    batch = prompt_batch(Letters(), config, settings("forward", micro_batch_size=2, sequence_length=3))
    assert batch.tolist() == [[97, 98, 99]] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"\xff\xfe\x00", "is not UTF-8 text: byte 0"), (b"  \n", "the prompt is empty")],
)
def test_a_prompt_file_that_cannot_be_used_is_told(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "prompt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RequestError, match=message):
        read_prompt(WorkloadConfig(prompt_file=str(file)))
