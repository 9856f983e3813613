"""Whether a workload can be done with a model at all: told from the model without storage, before it is loaded."""

from typing import Any

from runner.config import WorkloadConfig
from runner.errors import CheckpointError, RequestError
from runner.settings import Settings
from runner.speech.identity import MODEL_TYPE as SPEECH
from runner.workload.prompt import check_context, encode, read_prompt, read_text


def check_suits(model: Any, tokenizer: Any, config: WorkloadConfig, settings: Settings) -> None:
    """Raise RequestError or CheckpointError for what the workload would run into.

    `model` may be on the meta device; `tokenizer` is None where the checkpoint has none.
    """
    from runner import steps

    workload = settings.workload
    if workload == "train" and model.config.model_type == SPEECH:
        from runner.speech.training import check_length

        if config.text_file is not None:
            raise RequestError("workload.text_file: a talker is trained on codec tokens, here on synthetic ones only")
        check_length(settings.sequence_length, model.config)
        return
    if workload == "generate" and not getattr(model, "can_generate", lambda: False)():
        raise RequestError(f"{type(model).__name__} cannot generate; workload=forward and workload=train work with it")
    if workload == "generate" and not getattr(model.config, "is_encoder_decoder", False):
        check_context(model, settings.sequence_length + settings.max_new_tokens, "prompt and new tokens")
    elif workload != "load":
        check_context(model, settings.sequence_length, "the sequences")
    if workload == "train" and settings.sequence_length < 2 and steps.is_causal(model):
        raise RequestError("workload.sequence_length=1 leaves no next token to predict; training needs at least 2")
    if workload in ("generate", "forward") and tokenizer is not None:
        _check_ids(model, encode(tokenizer, read_prompt(config)))
    if workload == "train" and config.text_file is not None:
        _check_training_text(model, tokenizer, config.text_file, settings.sequence_length)


def _check_training_text(model: Any, tokenizer: Any, file: str, length: int) -> None:
    if tokenizer is None:
        raise RequestError("workload.text_file needs a tokenizer, which this checkpoint does not have")
    ids = encode(tokenizer, read_text(file, "workload.text_file"))
    _check_ids(model, ids)
    if len(ids) < length:
        shorter = f", or workload.sequence_length={len(ids)}" if len(ids) > 1 else ""
        raise RequestError(
            f"workload.text_file={file} has {len(ids)} tokens, one sequence needs {length}: {length - len(ids)} short. "
            f"Give more text{shorter}"
        )


def _check_ids(model: Any, ids: list[int]) -> None:
    """Raise CheckpointError when the tokenizer gives ids that the model has no embedding for."""
    most = getattr(model.get_input_embeddings(), "num_embeddings", None)
    if isinstance(most, int) and max(ids) >= most:
        raise CheckpointError(
            f"the tokenizer gives token {max(ids)}, and {type(model).__name__} has embeddings for {most}: "
            f"tokenizer and weights do not belong together"
        )
