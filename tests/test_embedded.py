import json
import math
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner.checkpoint.folder import inspect_folder
from runner.embedded import FOLDER
from runner.embedded.make import QUICK, Recipe, documents, make

TEXT = (
    "The with statement is used to wrap the execution of a block with methods defined by a context manager. "
    "If the value is None, the default is used. Return a new list of the items in the sequence."
)
WORDS = {"the", "statement", "is", "a", "if", "name", "block", "code", "module", "class", "function", "used", "of"}


def test_the_folder_is_small_and_a_checkpoint_like_any_other() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8_000_000
    found = inspect_folder(FOLDER, source="embedded")
    assert (found.architecture, found.has_tokenizer) == ("Qwen3ForCausalLM", True)
    assert set(found.stored_dtypes) == {"bfloat16"}
    assert found.num_parameters == 3_739_264
    assert "lm_head.weight" not in {tensor.name for tensor in found.tensors}


def test_both_generations_of_transformers_read_its_configuration() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_has_learned_the_text_in_every_precision(dtype: torch.dtype) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=dtype)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert loss < 4.6 < math.log(tokenizer.vocab_size)  # weights that know nothing are at ln 1536 = 7.3


def test_it_continues_a_prompt_with_english_words() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    ids = torch.tensor([tokenizer("The with statement")["input_ids"]])
    new = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=48, do_sample=False)[0]
    text = tokenizer.decode(new[ids.shape[1] :], skip_special_tokens=True)
    assert text.replace("\n", " ").isprintable()
    assert len(WORDS & set(re.findall(r"[a-z]+", text.lower()))) >= 4


def test_special_tokens_add_nothing_to_a_prompt_and_name_the_end() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer(TEXT)["input_ids"] == tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    generation = json.loads((FOLDER / "generation_config.json").read_text())
    assert generation["eos_token_id"] == generation["pad_token_id"] == tokenizer.eos_token_id
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|endoftext|>"


def test_any_text_survives_the_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for text in ("naïve café", "日本語", "tab\tand\nline", "x = {'a': [1, 2]}"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.slow
def test_the_script_trains_and_gives_the_same_bits_again(tmp_path: Path) -> None:
    recipe = Recipe(steps=30, batch=4, length=64, vocabulary=320, warmup=5, most_documents=300)
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        figures = make(tmp_path / "a", recipe, QUICK)
        again = make(tmp_path / "b", recipe, QUICK)
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])
    assert figures == again
    assert figures["last_loss"] < figures["first_loss"] - 0.3
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_the_training_text_is_pythons_own_and_in_a_fixed_order() -> None:
    texts = documents()
    assert len(texts) > 1000
    assert texts == documents()
