import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from runner.checkpoint import Checkpoint
from runner.checkpoint.folder import inspect_folder
from runner.errors import CheckpointError, WorkloadError
from runner.loader import Loaded, load
from runner.loader.checks import check_stored, check_tensors
from runner.steps import build, generate, make_inputs, model_class, prepare
from tests.model_makers import changed, settings


def reference(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The same checkpoint through transformers alone."""
    return model_class(checkpoint, settings("load")).from_pretrained(checkpoint.path, dtype=dtype)


@pytest.mark.parametrize("name", ["qwen", "bert", "t5"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_weights_are_those_that_transformers_loads(name: str, precision: str, request: pytest.FixtureRequest) -> None:
    checkpoint = request.getfixturevalue(name)
    plan = settings("load", precision)
    with_ours = load(checkpoint, plan).model.state_dict()
    theirs = reference(checkpoint, getattr(torch, plan.parameter_dtype)).state_dict()
    assert list(with_ours) == list(theirs)
    assert all(torch.equal(with_ours[key], theirs[key]) for key in theirs)
    assert all(with_ours[key].dtype == theirs[key].dtype for key in theirs)


def test_the_loaded_model_reports_what_it_takes(qwen: Checkpoint) -> None:
    loaded = load(qwen, settings("load", "bf16"))
    assert loaded.num_parameters == qwen.num_parameters
    assert loaded.parameter_bytes == 2 * qwen.num_parameters
    assert loaded.dtype_histogram == {"bfloat16": loaded.parameter_bytes}
    assert loaded.kept_in_fp32 == []
    assert loaded.tokenizer is None


def test_t5_keeps_its_output_projections_in_float32_under_fp16_and_says_which(t5: Checkpoint) -> None:
    loaded = load(t5, settings("load", "fp16"))
    assert set(loaded.dtype_histogram) == {"float16", "float32"}
    assert loaded.kept_in_fp32
    assert all(".wo." in name for name in loaded.kept_in_fp32)


def test_without_memory_efficiency_the_plain_loader_gives_the_same(qwen: Checkpoint) -> None:
    plain = load(qwen, settings("load", "bf16", memory_efficient=False)).model.state_dict()
    ours = load(qwen, settings("load", "bf16")).model.state_dict()
    assert all(torch.equal(ours[key], plain[key]) for key in plain)


def test_loaded_weights_can_be_written_to(qwen: Checkpoint) -> None:
    loaded = load(qwen, settings("load", "bf16"))
    for parameter in loaded.model.parameters():
        parameter.data.zero_()
    again = load(qwen, settings("load", "bf16"))
    assert any(bool(parameter.any()) for parameter in again.model.parameters())


def test_tied_weights_are_one_tensor(qwen: Checkpoint) -> None:
    model = load(qwen, settings("load")).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_progress_counts_every_stored_byte(qwen: Checkpoint) -> None:
    seen: list[tuple[int, int]] = []
    load(qwen, settings("load", "fp16"), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (qwen.num_bytes, qwen.num_bytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_unloading_leaves_no_tensor_behind(qwen: Checkpoint) -> None:
    loaded = load(qwen, settings("load"))
    tensors = [weakref.ref(parameter) for parameter in loaded.model.parameters()]
    loaded.unload()
    assert loaded.model is None
    assert [tensor() for tensor in tensors if tensor() is not None] == []


def rewritten(checkpoint: Checkpoint, folder: Path, change: Any) -> Checkpoint:
    """The checkpoint with its tensors changed by `change`, a function on the state dict."""
    copy = changed(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return replace(inspect_folder(folder, source="local"), id=copy.id)


def test_missing_parameters_are_an_error_that_names_them(qwen: Checkpoint, tmp_path: Path) -> None:
    broken = rewritten(qwen, tmp_path / "m", lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(
        CheckpointError, match=r"lacks 1 parameters.*model\.layers\.1\.mlp\.up_proj\.weight.*allow_missing"
    ):
        load(broken, settings("load"))


def test_missing_parameters_may_be_allowed_and_are_noted(qwen: Checkpoint, tmp_path: Path) -> None:
    broken = rewritten(qwen, tmp_path / "m", lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    loaded = load(broken, settings("load", allow_missing=True))
    assert any("initialised at random: model.layers.1.mlp.up_proj.weight" in note for note in loaded.notes)


def test_tensors_that_the_model_does_not_use_are_noted(qwen: Checkpoint, tmp_path: Path) -> None:
    extra = rewritten(qwen, tmp_path / "m", lambda tensors: tensors.update({"something.else": torch.zeros(3)}))
    assert any("something.else" in note for note in load(extra, settings("load")).notes)


def test_a_tensor_of_another_shape_is_an_error(qwen: Checkpoint, tmp_path: Path) -> None:
    def shrink(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 64, dtype=torch.bfloat16)

    expected = r"another shape.*layers\.0\.mlp\.up_proj\.weight is \[3, 64\], the model's \["
    with pytest.raises(CheckpointError, match=expected):
        load(rewritten(qwen, tmp_path / "m", shrink), settings("load"))


def test_a_file_that_shrinks_while_it_is_read_is_an_error(qwen: Checkpoint, tmp_path: Path) -> None:
    copy = changed(qwen, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors ends at byte"):
        load(copy, settings("load"))


def test_integers_where_the_model_has_numbers_are_an_error(qwen: Checkpoint, tmp_path: Path) -> None:
    def to_bytes(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(torch.int8)

    broken = rewritten(qwen, tmp_path / "m", to_bytes)
    with torch.device("meta"):
        model = build(broken, settings("load"))
    with pytest.raises(CheckpointError, match=r"1 parameters are stored as integers.*up_proj\.weight \("):
        check_stored(model, broken)
    check_stored(model, qwen)


@pytest.mark.parametrize("text", ["[1]", "{not json", '{"eos_token_id": "x"}', '{"pad_token_id": [1.5]}'])
def test_broken_generation_settings_are_an_error(text: str, qwen: Checkpoint, tmp_path: Path) -> None:
    broken = changed(qwen, tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        load(broken, settings("load"))


def test_a_checkpoint_that_asks_for_beams_still_generates_one_sequence(qwen: Checkpoint, tmp_path: Path) -> None:
    copy = changed(qwen, tmp_path / "m")
    asked = {"num_beams": 4, "num_return_sequences": 2, "return_dict_in_generate": True, "do_sample": True}
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(asked))
    made = settings("generate")
    model = load(copy, made).model
    prepare(model, made)
    tokens, again = (generate(model, make_inputs(model, made), made) for _ in range(2))
    assert torch.equal(tokens, again)
    assert tuple(tokens.shape) == (1, made.sequence_length + made.max_new_tokens)


def test_an_architecture_that_transformers_lacks_is_an_error(qwen: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'NoSuchModel' is not in transformers"):
        load(replace(qwen, architecture="NoSuchModel"), settings("load"))


def test_a_broken_tokenizer_is_an_error(qwen: Checkpoint, tmp_path: Path) -> None:
    copy = replace(changed(qwen, tmp_path / "m"), has_tokenizer=True)
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(CheckpointError, match="tokenizer in"):
        load(copy, settings("load"))


class Small(nn.Module):
    """A module with a parameter, a buffer and rotary frequencies, each of which a test can break."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("scale", torch.ones(2), persistent=False)


def test_tensors_left_on_meta_are_named() -> None:
    model = Small()
    model.weight = nn.Parameter(torch.zeros(2, device="meta"))
    with pytest.raises(WorkloadError, match=r"1 tensors have no values.*weight"):
        check_tensors(model, settings("load"), ())


def test_buffers_that_are_not_finite_are_named() -> None:
    model = Small()
    model.scale[0] = float("nan")
    with pytest.raises(WorkloadError, match=r"buffers are not finite after loading: scale"):
        check_tensors(model, settings("load"), ())


def test_a_dtype_that_was_not_planned_is_an_error() -> None:
    with pytest.raises(WorkloadError, match=r"planned in bfloat16 and are in float32: weight"):
        check_tensors(Small(), settings("load", "bf16"), ())


def test_garbage_in_rotary_frequencies_is_an_error(qwen: Checkpoint) -> None:
    model = load(qwen, settings("load")).model
    rotary = next(module for module in model.modules() if hasattr(module, "inv_freq"))
    rotary.inv_freq.mul_(0.5)
    with pytest.raises(WorkloadError, match=r"inv_freq is .* when computed from the configuration"):
        check_tensors(model, settings("load"), ())
    rotary.inv_freq.fill_(1e22)
    with pytest.raises(WorkloadError, match="was not computed after loading"):
        check_tensors(model, settings("load"), ())


def test_a_checkpoint_without_a_folder_cannot_be_loaded(qwen: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="not on disk yet"):
        load(replace(qwen, path=None), settings("load"))


def test_loaded_is_the_only_value_that_changes() -> None:
    assert Loaded.__dataclass_params__.frozen is False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "values",
    [{"num_attention_heads": 0}, {"hidden_size": -4}, {"hidden_size": "abc"}, {"pad_token_id": 10**6}],
)
def test_a_configuration_that_makes_no_model_is_the_checkpoints_fault(qwen: Checkpoint, values: dict[str, Any]) -> None:
    broken = replace(qwen, config={**qwen.config, **values})
    with torch.device("meta"), pytest.raises(CheckpointError, match=r"config\.json describes no model"):
        build(broken, settings("load"))
