"""Fine-tuning a Qwen3-TTS talker on codec tokens, with a tiny model of random weights."""

from pathlib import Path
from typing import Any

import pytest

from tests.qwen3_tts_makers import headers_only, main_config, whole
from tests.test_qwen3_tts import MISSING, needs_package, run

TRAIN = ("workload=train", "workload.sequence_length=128", "workload.steps=2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("models") / "custom_voice")


def fresh() -> Any:
    """The model's class in memory, its weights random."""
    import torch

    from runner.speech.package import import_package

    models = import_package()
    torch.manual_seed(0)
    return models.Qwen3TTSForConditionalGeneration(models.Qwen3TTSConfig(**main_config()))


@pytest.mark.skipif(not MISSING, reason="qwen-tts is here")
@pytest.mark.parametrize(
    "asked", [("workload=train",), ("workload=plan", "workload.of=train")], ids=lambda asked: asked[0]
)
def test_without_the_extra_training_and_its_plan_say_what_to_type(asked: tuple[str, ...], tmp_path: Path) -> None:
    code, said, _, _ = run(tmp_path, f"model.path={headers_only(tmp_path / 'model')}", *asked)
    assert code == 2
    assert "pip install '.[qwen3-tts]'" in said


@needs_package
@pytest.mark.slow
@pytest.mark.parametrize(
    "precision",
    [("fp32",), ("bf16",), ("fp16",), ("bf16", "precision.pure=true"), ("fp16", "precision.pure=true", "optimizer=sgd")],
    ids=lambda precision: "-".join(precision),
)  # fmt: skip
def test_checkpointing_saves_what_was_predicted_and_changes_no_loss(
    precision: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    seen = {}
    for memory in ("checkpointing_off", "checkpointing_on"):
        code, said, record, _ = run(
            tmp_path / memory, f"model.path={model}", *TRAIN, f"memory={memory}", "memory.exact=true",
            f"precision={precision[0]}", *precision[1:],
        )  # fmt: skip
        assert code == 0, said
        measured, predicted = record["memory"]["work"]["peak_allocated"], record["plan"]["footprint"]["work_peak"]
        assert predicted == pytest.approx(measured, rel=1e-3)
        seen[memory] = (measured, record["outcome"]["losses"], record["outcome"]["details"]["recomputed_layers"])
    (plain, losses, none), (saving, again, recomputed) = seen["checkpointing_off"], seen["checkpointing_on"]
    assert (none, recomputed) == (0, 3)
    assert losses == again
    assert saving < 0.9 * plain


@needs_package
@pytest.mark.slow
def test_a_plan_says_what_is_not_trained_and_auto_recomputes_where_it_must(model: Path, tmp_path: Path) -> None:
    plan = (f"model.path={model}", "workload=plan", "workload.of=train", "workload.sequence_length=256")
    size, micro = "hardware=cpu_8gib", "workload.micro_batch_size=640"
    code, said, record, _ = run(tmp_path, *plan, size, micro, "memory=checkpointing_auto", "precision=fp32")
    assert code == 0, said
    choices = {choice["name"]: choice["value"] for choice in record["plan"]["choices"]}
    assert (choices["text_embedding"], choices["codec"]) == ("frozen", "not loaded")
    assert record["plan"]["footprint"]["method"] == "traced"
    assert choices["activation_checkpointing"] == "3 of 3 layers"


@needs_package
@pytest.mark.parametrize(
    ("override", "answer"),
    [("workload.sequence_length=8", "at least 16"), ("workload.sequence_length=4096", "has 2048: 2048 too many"),
     ("workload.text_file=book.txt", "trained on codec tokens")],
)  # fmt: skip
def test_what_a_talker_cannot_be_trained_on_is_told_before_it_is_loaded(
    override: str, answer: str, model: Path, tmp_path: Path
) -> None:
    tmp_path.joinpath("book.txt").write_text("Some words.")
    code, said, record, _ = run(tmp_path, f"model.path={model}", "workload=train", override)
    assert code == 2
    assert answer in said
    assert record["timing"].get("load") is None


@needs_package
def test_the_text_embedding_stays_as_it_is_and_everything_else_learns(model: Path) -> None:
    import torch

    from runner import steps
    from tests.model_makers import settings

    talker, plan = fresh(), settings("train", sequence_length=24)
    steps.prepare(talker, plan)
    before = {name: value.detach().clone() for name, value in talker.named_parameters()}
    optimizer = steps.make_optimizer(talker, plan)
    steps.train_step(talker, [steps.make_inputs(talker, plan)], optimizer, None, plan)
    same = {name for name, value in talker.named_parameters() if torch.equal(value, before[name])}
    assert same == {"talker.model.text_embedding.weight"}


@needs_package
@pytest.mark.slow
def test_a_talker_that_learned_a_sentence_speaks_it_code_by_code() -> None:
    import torch

    from runner import steps
    from runner.speech.training import embedded
    from tests.model_makers import settings

    model, plan = fresh(), settings("train", sequence_length=16, learning_rate=5e-3, weight_decay=0.0)
    steps.prepare(model, plan)
    batch, optimizer = steps.make_inputs(model, plan), steps.make_optimizer(model, plan)
    losses = [float(steps.train_step(model, [batch], optimizer, None, plan)) for _ in range(250)]
    assert losses[-1] < 0.05
    model.eval()
    talker, codes = model.talker, batch["codes"]
    with torch.no_grad():
        seen = embedded(talker, batch)[:, : -codes.shape[1] - 1]
        pad = talker.text_projection(talker.model.text_embedding(torch.tensor([[model.config.tts_pad_token_id]])))
        spoken = talker.generate(
            inputs_embeds=seen, attention_mask=torch.ones(seen.shape[:2], dtype=torch.long), trailing_text_hidden=pad,
            tts_pad_embed=pad, max_new_tokens=codes.shape[1] + 1, do_sample=False, subtalker_dosample=False,
            output_hidden_states=True, return_dict_in_generate=True, eos_token_id=-1,
        )  # fmt: skip
    made = torch.stack([states[-1] for states in spoken.hidden_states if states[-1] is not None], dim=1)
    assert torch.equal(made, codes)
    assert spoken.sequences[0, -1] == model.config.talker_config.codec_eos_token_id
