import dataclasses
from typing import Any

import pytest
import torch

from runner.checkpoint import Checkpoint
from runner.config import Workload, WorkloadConfig
from runner.errors import CheckpointError, RequestError
from runner.steps import build
from runner.workload.suits import check_suits
from tests.model_makers import settings


def meta(checkpoint: Checkpoint) -> Any:
    """The model without storage."""
    with torch.device("meta"):
        return build(checkpoint, settings("load"))


class Words:
    """A tokenizer that gives one token a word: its number."""

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        return {"input_ids": [int(word) for word in text.split()]}


def check(checkpoint: Checkpoint, workload: str, *, tokenizer: Any = None, **options: Any) -> None:
    """Ask whether `workload` suits the model; options of Settings and of WorkloadConfig."""
    names = {field.name for field in dataclasses.fields(WorkloadConfig)}
    texts = {name: options.pop(name) for name in list(options) if name in names and isinstance(options[name], str)}
    check_suits(
        meta(checkpoint), tokenizer, WorkloadConfig(name=Workload(workload), **texts), settings(workload, **options)
    )


def test_an_encoder_cannot_generate(bert: Checkpoint) -> None:
    with pytest.raises(RequestError, match="BertModel cannot generate; workload=forward"):
        check(bert, "generate")
    check(bert, "forward")


def test_prompt_and_new_tokens_stay_within_the_context(bert: Checkpoint, qwen: Checkpoint) -> None:
    longest = meta(qwen).config.max_position_embeddings
    check(qwen, "generate", sequence_length=longest - 4)
    with pytest.raises(RequestError, match=str(longest)):
        check(qwen, "generate", sequence_length=longest - 3)
    with pytest.raises(RequestError, match=str(meta(bert).config.max_position_embeddings)):
        check(bert, "forward", sequence_length=10**6)
    check(qwen, "load", sequence_length=10**9)


def test_one_token_cannot_be_trained_on_by_a_causal_model(qwen: Checkpoint, bert: Checkpoint) -> None:
    with pytest.raises(RequestError, match="training needs at least 2"):
        check(qwen, "train", sequence_length=1)
    check(qwen, "train", sequence_length=2)
    check(bert, "train", sequence_length=1)


def test_a_tokenizer_of_another_model_is_told(qwen: Checkpoint) -> None:
    most = meta(qwen).get_input_embeddings().num_embeddings
    check(qwen, "forward", tokenizer=Words(), prompt=f"1 2 {most - 1}")
    with pytest.raises(CheckpointError, match=f"gives token {most}, and .* has embeddings for {most}"):
        check(qwen, "forward", tokenizer=Words(), prompt=f"1 2 {most}")


def test_a_training_text_must_fill_one_sequence(qwen: Checkpoint, tmp_path: Any) -> None:
    text = tmp_path / "text"
    text.write_text("1 2 3 4 5")
    check(qwen, "train", tokenizer=Words(), text_file=str(text), sequence_length=5)
    with pytest.raises(RequestError, match=r"has 5 tokens, one sequence needs 8: 3 short.*sequence_length=5"):
        check(qwen, "train", tokenizer=Words(), text_file=str(text), sequence_length=8)
    with pytest.raises(RequestError, match="needs a tokenizer"):
        check(qwen, "train", text_file=str(text))
