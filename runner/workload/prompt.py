"""From the prompt to tokens."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.config import Workload, WorkloadConfig
from runner.errors import RequestError
from runner.settings import Settings
from runner.speech import Speech, split_sentences
from runner.speech.parts import FRAME_SECONDS
from runner.speech.text import LONGEST, weight

DEFAULT_PROMPT = "The with statement"
"""the embedded model was trained on Python's documentation"""


def read_prompt(config: WorkloadConfig) -> str:
    """Return the prompt: from the file, as given, or ours.

    Raises RequestError for a file that cannot be read as UTF-8, and for an empty prompt.
    """
    text = DEFAULT_PROMPT if config.prompt is None else config.prompt
    if config.prompt_file is not None:
        text = read_text(config.prompt_file, "workload.prompt_file")
    if not text.strip():
        raise RequestError("the prompt is empty; give workload.prompt='some text' or workload.prompt_file=FILE")
    return text


def check_texts(config: WorkloadConfig) -> None:
    """Read the files that the workload will read, and raise RequestError for one that cannot be used."""
    if config.planned in (Workload.generate, Workload.forward):
        read_prompt(config)
    if config.name is Workload.speak or (config.planned is Workload.speak and (config.text or config.text_file)):
        read_sentences(config)
    if config.planned is Workload.train and config.text_file is not None:
        text = read_text(config.text_file, "workload.text_file")
        if not text.strip():
            raise RequestError(f"workload.text_file={config.text_file} is empty; give a file with text to train on")


def read_sentences(config: WorkloadConfig) -> tuple[str, ...]:
    """Return the sentences to speak, from workload.text or the file; raises RequestError where there is none."""
    if config.text_file is not None:
        text, name = read_text(config.text_file, "workload.text_file"), f"workload.text_file={config.text_file}"
    else:
        text, name = config.text or "", "workload.text"
    sentences = split_sentences(text)
    if not sentences:
        what = "holds nothing that can be said" if text.strip() else "is empty"
        raise RequestError(f"{name} {what}; give workload.text='some text' or workload.text_file=FILE")
    return sentences


def read_text(path: str, name: str) -> str:
    """Return the UTF-8 text in the file that the option `name` gives."""
    file = Path(os.path.expanduser(path))
    try:
        if file.exists() and not file.is_file():
            raise RequestError(f"{name}={path} is not a regular file")
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RequestError(f"{name}={path} does not exist") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{name}={path} is not UTF-8 text: byte {error.start}") from None
    except OSError as error:
        raise RequestError(f"{name}={path} cannot be read: {error.strerror}") from None


def count_prompt_tokens(tokenizer: Any, config: WorkloadConfig) -> int | None:
    """Return the length of the tokenised prompt; None where the workload or the checkpoint has none."""
    if tokenizer is None or config.planned not in (Workload.generate, Workload.forward):
        return None
    return len(encode(tokenizer, read_prompt(config)))


LETTERS_A_TOKEN = 3
AROUND = 16
"""positions of a spoken sentence that are not its text: its frame, the language, the speaker"""


def longest_prompt(tokenizer: Any, config: WorkloadConfig, speech: Speech | None) -> int:
    """Return how many positions the longest sentence takes before its first frame; without a tokenizer, by letters."""
    sentences = read_sentences(config) if config.text or config.text_file else ("x" * LONGEST,)

    def count(text: str) -> int:
        return len(tokenizer(text)["input_ids"]) if tokenizer is not None else weight(text) // LETTERS_A_TOKEN

    reference = 0
    if speech is not None and speech.reference_text is not None:
        reference = count(speech.reference_text) + int(speech.reference_seconds / FRAME_SECONDS)
    return max(map(count, sentences)) + AROUND + reference + count(config.instruct or "")


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of `text`, with the special tokens that the model expects."""
    ids: list[int] = tokenizer(text)["input_ids"]
    if not ids:
        raise RequestError("the prompt has no tokens; give a longer one with workload.prompt='some text'")
    return ids


def prompt_batch(tokenizer: Any, config: WorkloadConfig, settings: Settings) -> Any:
    """Return the prompt's tokens (B, S), or None without a tokenizer; each row of the batch is the same."""
    import torch

    if tokenizer is None:
        return None
    ids = fit_length(encode(tokenizer, read_prompt(config)), settings.sequence_length)
    return torch.tensor([ids] * settings.micro_batch_size)


def fit_length(ids: Sequence[int], length: int) -> list[int]:
    """Return `ids` cut, or repeated, to `length`."""
    repeats = -(-length // len(ids))
    return (list(ids) * repeats)[:length]


def check_context(model: Any, num_tokens: int, what: str) -> None:
    """Raise RequestError when `num_tokens` exceed the positions that the model has."""
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if isinstance(most, int) and 0 < most < num_tokens and not getattr(config, "is_encoder_decoder", False):
        raise RequestError(
            f"{what} need {num_tokens} positions, {type(model).__name__} has {most}: {num_tokens - most} too many"
        )
