"""Which weights are shared, told from config and names."""

from typing import Any

import pytest

from runner.checkpoint.ties import UNTIED_BY_DEFAULT, find_ties, ties_word_embeddings


def ties(config: dict[str, Any], *names: str, architecture: str = "XForCausalLM") -> tuple[list[tuple[str, str]], bool]:
    return find_ties({name: (8, 4) for name in names}, config=config, architecture=architecture)


def test_a_head_that_is_not_stored_is_made_from_the_embedding() -> None:
    pairs, guessed = ties({"model_type": "qwen3", "tie_word_embeddings": True}, "model.embed_tokens.weight")
    assert pairs == [("model.embed_tokens.weight", "lm_head.weight")]
    assert not guessed


def test_an_untied_head_is_its_own() -> None:
    names = ("model.embed_tokens.weight", "lm_head.weight")
    assert ties({"model_type": "qwen3", "tie_word_embeddings": False}, *names)[0] == []


def test_a_model_without_a_head_ties_nothing() -> None:
    assert ties({"model_type": "bert"}, "embeddings.word_embeddings.weight", architecture="BertModel")[0] == []


def test_the_flag_of_the_text_part_counts_where_the_outer_one_is_absent() -> None:
    assert ties_word_embeddings({"model_type": "x", "text_config": {"tie_word_embeddings": False}}) == (False, False)
    outer_first = {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}}
    assert ties_word_embeddings(outer_first) == (True, False)


def test_an_absent_flag_takes_the_default_of_the_model_type_and_says_so() -> None:
    assert ties_word_embeddings({"model_type": "llama"}) == (False, True)
    assert ties_word_embeddings({"model_type": "gpt2"}) == (True, True)
    pairs, guessed = ties({"model_type": "gpt2"}, "wte.weight", architecture="GPT2LMHeadModel")
    assert (pairs, guessed) == ([("wte.weight", "lm_head.weight")], True)


@pytest.mark.parametrize(
    ("model_type", "architecture", "kept", "copies"),
    [
        ("t5", "T5ForConditionalGeneration", "shared.weight",
         ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]),
        ("bart", "BartForConditionalGeneration", "model.shared.weight",
         ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"]),
        ("whisper", "WhisperForConditionalGeneration", "model.decoder.embed_tokens.weight", ["proj_out.weight"]),
        ("bert", "BertForMaskedLM", "bert.embeddings.word_embeddings.weight", ["cls.predictions.decoder.weight"]),
        ("modernbert", "ModernBertForMaskedLM", "model.embeddings.tok_embeddings.weight", ["decoder.weight"]),
        ("roberta", "RobertaForMaskedLM", "roberta.embeddings.word_embeddings.weight", ["lm_head.decoder.weight"]),
        ("gpt_neox", "GPTNeoXForCausalLM", "gpt_neox.embed_in.weight", ["embed_out.weight"]),
    ],
)  # fmt: skip
def test_stored_copies_are_recognised(model_type: str, architecture: str, kept: str, copies: list[str]) -> None:
    config = {"model_type": model_type, "tie_word_embeddings": True}
    pairs, _ = ties(config, kept, *copies, architecture=architecture)
    assert {copy for _, copy in pairs} >= set(copies)
    assert {first for first, _ in pairs} == {kept}


def test_encoder_and_decoder_share_their_embedding_even_when_the_head_is_apart() -> None:
    config = {"model_type": "t5", "tie_word_embeddings": False}
    names = ("shared.weight", "encoder.embed_tokens.weight", "lm_head.weight")
    pairs, _ = ties(config, *names, architecture="T5ForConditionalGeneration")
    stored, implied = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    assert pairs == [("shared.weight", stored), ("shared.weight", implied)]


def test_tensors_of_different_shapes_are_never_one() -> None:
    shapes = {"model.embed_tokens.weight": (8, 4), "lm_head.weight": (9, 4)}
    assert find_ties(shapes, config={"tie_word_embeddings": True}, architecture="XForCausalLM")[0] == []


@pytest.mark.slow
def test_defaults_are_those_of_the_installed_transformers() -> None:
    from transformers import AutoConfig

    known = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gpt_neox", "gpt2", "bert", "t5", "gemma", "opt", "whisper")
    for model_type in known:
        config = AutoConfig.for_model(model_type)
        assert config.tie_word_embeddings is (model_type not in UNTIED_BY_DEFAULT), model_type
