"""What a workload computes, on real or on fake tensors.

Prediction traces these functions and the workloads call them, so both see the same operations. Shapes: B is
`micro_batch_size`, S is `sequence_length`. This module imports torch and transformers; import it inside functions.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from runner.adapters import adamw_8bit, add_lora
from runner.checkpoint import Checkpoint
from runner.errors import CheckpointError, RequestError
from runner.settings import Settings
from runner.speech.identity import MODEL_TYPE as SPEECH

Batch = dict[str, Tensor]
CORRUPTED = 0.15
"""share of an encoder's tokens that are replaced and predicted, as in BERT (Devlin et al., 2018)"""


def model_config(checkpoint: Checkpoint, settings: Settings) -> Any:
    """Return transformers' configuration object for config.json.

    Raises CheckpointError when this transformers does not know the model type.
    """
    values = dict(checkpoint.config)
    if checkpoint.model_type == SPEECH:
        from runner.speech.model import speech_config

        return speech_config(checkpoint)
    if "auto_map" in values and settings.trust_remote_code and checkpoint.path is not None:
        with _of_config_json():
            return transformers.AutoConfig.from_pretrained(
                checkpoint.path, trust_remote_code=True, local_files_only=True
            )
    model_type = values.pop("model_type", checkpoint.model_type)
    if model_type in transformers.CONFIG_MAPPING:
        with _of_config_json():
            return transformers.AutoConfig.for_model(model_type, **values)
    try:
        return transformers.AutoConfig.for_model(model_type, **values)
    except ValueError as error:
        raise CheckpointError(
            f"model type {model_type!r} is not known to transformers {transformers.__version__}; "
            f"a newer transformers may know it, or model.trust_remote_code=true if its code comes with it ({error})"
        ) from None


def model_class(checkpoint: Checkpoint, settings: Settings) -> Any:
    """Return the class that config.json names.

    Raises CheckpointError when this transformers has no such class.
    """
    config = checkpoint.config
    if checkpoint.model_type == SPEECH:
        from runner.speech.package import import_package

        return import_package().Qwen3TTSForConditionalGeneration
    if "auto_map" in config and settings.trust_remote_code and checkpoint.path is not None:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        references = [ref for ref in config["auto_map"].values() if str(ref).endswith(f".{checkpoint.architecture}")]
        if references:
            with _of_config_json():
                return get_class_from_dynamic_module(references[0], str(checkpoint.path), local_files_only=True)
    found = getattr(transformers, checkpoint.architecture, None)
    if found is None or not hasattr(found, "from_pretrained"):
        hint = " It comes with its own code: model.trust_remote_code=true runs it." if "auto_map" in config else ""
        raise CheckpointError(
            f"architecture {checkpoint.architecture!r} is not in transformers {transformers.__version__}.{hint}"
        )
    return found


def build(checkpoint: Checkpoint, settings: Settings) -> Any:
    """Return the real model class, tied, in parameter_dtype, its weights not initialised.

    Under torch.device("meta") or a fake-tensor mode it takes no storage.
    """
    config = model_config(checkpoint, settings)
    options: dict[str, Any] = {"dtype": getattr(torch, settings.parameter_dtype)}
    if settings.attention is not None:
        options["attn_implementation"] = settings.attention
    found = model_class(checkpoint, settings)
    with _no_initialisation(), _of_config_json() if settings.attention is None else nullcontext():
        model = found._from_config(config, **options)
    model.tie_weights()
    if getattr(model, "can_generate", lambda: False)() and getattr(model, "generation_config", None) is None:
        model.generation_config = transformers.GenerationConfig.from_model_config(config)
    return model


@contextmanager
def _of_config_json() -> Iterator[None]:
    """Tell what transformers raises for values in config.json that make no model as a CheckpointError.

    Each class checks, or fails on, its values in its own way, so any exception counts but lack of memory.
    """
    try:
        yield
    except (CheckpointError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"config.json describes no model that can be built: {said}") from error


def layers(model: nn.Module) -> list[nn.Module]:
    """Return the repeated layers whose activations can be recomputed, in the order of the modules."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def prepare(model: Any, settings: Settings) -> None:
    """Put `model` into the state that the workload needs: mode, gradients, checkpointing, no cache in training."""
    training = settings.workload == "train"
    model.train(training)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(training)
    if training:
        model.config.use_cache = False
    if training and _speaks(model):
        from runner.speech import training as speech

        speech.prepare(model, settings)
    if training and settings.adapter == "lora":
        add_lora(model, settings)
    _checkpoint_layers(model, settings.checkpointed_layers if training else 0)


def make_inputs(model: Any, settings: Settings, *, tokens: Tensor | None = None, step: int = 0) -> Batch:
    """Return one micro batch on the settings' device.

    Text models get input_ids (B, S): `tokens` when given, else synthetic ones from seed and `step`. Others get
    seeded normal numbers in the shape that their configuration asks for.
    """
    generator = torch.Generator("cpu").manual_seed((settings.seed << 20) + step)
    name, config = model.main_input_name, model.config
    if _speaks(model):
        from runner.speech.training import make_batch

        batch = make_batch(config, settings, generator)
    elif name == "input_ids":
        if tokens is None:
            tokens = _random_tokens(model, settings, generator)
        batch = {"input_ids": tokens}
    elif name in ("pixel_values", "input_features", "input_values"):
        values = torch.randn(_input_shape(name, config, settings), generator=generator)
        batch = {name: values.to(getattr(torch, settings.parameter_dtype))}
    else:
        raise RequestError(f"{type(model).__name__} takes {name}, which no workload here can make")
    if settings.workload != "generate" and not _speaks(model):
        if _is_encoder_decoder(model):
            decoder = tokens if tokens is not None else _random_tokens(model, settings, generator)
            batch["labels" if settings.workload == "train" else "decoder_input_ids"] = decoder
        if settings.workload == "train" and not is_causal(model) and not _is_encoder_decoder(model):
            batch |= _targets(model, batch, generator)
    device = torch.device(settings.device)
    return {key: value.to(device) for key, value in batch.items()}


def forward(model: Any, inputs: Batch, settings: Settings) -> Any:
    """Return the model's outputs for one micro batch, without gradients."""
    with torch.no_grad(), autocast(settings):
        return model(**inputs)


def loss(model: Any, inputs: Batch) -> Tensor:
    """Return the training loss, a scalar.

    Causal: next-token cross entropy. Encoder-decoder: cross entropy of the labels. Encoders: cross entropy of the
    replaced tokens, through the model's own head, or through its input embeddings where it has none (so that a
    headless encoder can be trained too). Models without tokens and labels: the mean square of the last hidden state.
    A talker: its own loss and its code predictor's.
    """
    if _speaks(model):
        from runner.speech import training as speech

        return speech.loss(model, inputs)
    if is_causal(model):
        return model(**inputs, labels=inputs["input_ids"]).loss  # type: ignore[no-any-return]
    if "labels" in inputs and _accepts_labels(model):
        return model(**inputs).loss  # type: ignore[no-any-return]
    labels = inputs.get("labels")
    hidden = model(**{key: value for key, value in inputs.items() if key != "labels"})[0]
    if labels is None:
        return hidden.float().pow(2).mean()  # type: ignore[no-any-return]
    logits = nn.functional.linear(hidden, model.get_input_embeddings().weight.to(hidden.dtype))
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)


def begins(model: nn.Module) -> nn.Module:
    """Return the module whose call begins the training loss: the model itself, or what a talker's batch meets first."""
    if _speaks(model):
        from runner.speech import training as speech

        return speech.begins(model)
    return model


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return the optimizer over all parameters that need gradients; it has no state before its first step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    how = settings.optimizer_implementation
    options: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, foreach=how == "foreach", **options)
    if settings.optimizer == "adamw_8bit":
        return adamw_8bit(parameters, **options)
    options |= {"foreach": how == "foreach", "fused": how == "fused"}
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=settings.momentum, **options)
    return torch.optim.AdamW(parameters, **options)


def make_scaler(settings: Settings) -> torch.amp.GradScaler | None:
    """Return the gradient scaler that fp16 autocast needs, or None."""
    return torch.amp.GradScaler(torch.device(settings.device).type) if settings.grad_scaler else None


def train_step(
    model: Any,
    micro_batches: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    settings: Settings,
) -> Tensor:
    """Add up the gradients of the micro batches, update the parameters, and return the mean loss, a scalar."""
    total: Tensor | None = None
    for inputs in micro_batches:
        with autocast(settings):
            value = loss(model, inputs) / len(micro_batches)
        torch.autograd.backward(value if scaler is None else scaler.scale(value))
        total = value.detach() if total is None else total + value.detach()
        del value
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if total is None:
        raise RequestError("a training step needs at least one micro batch")
    return total


def generate(
    model: Any, inputs: Batch, settings: Settings, *, streamer: Any = None, processors: Sequence[Any] = ()
) -> Tensor:
    """Return the token ids (B, prompt and new) that transformers' generate gives, greedy or sampled."""
    config = copy.deepcopy(model.generation_config)
    config.max_new_tokens, config.max_length, config.min_length = settings.max_new_tokens, None, 0
    config.num_beams = config.num_return_sequences = 1
    config.return_dict_in_generate = False
    config.do_sample = settings.temperature > 0
    config.temperature = settings.temperature if config.do_sample else None
    if not config.do_sample:
        config.top_p = config.top_k = None
    if config.pad_token_id is None:
        eos = config.eos_token_id
        config.pad_token_id = eos[0] if isinstance(eos, list) else eos if eos is not None else 0
    options: dict[str, Any] = {} if streamer is None else {"streamer": streamer}
    if "use_model_defaults" in inspect.signature(model.generate).parameters:
        options["use_model_defaults"] = False  # transformers 4 would put the checkpoint's own in place of ours
    if processors:
        options["logits_processor"] = transformers.LogitsProcessorList(processors)
    if "input_ids" in inputs:
        options["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad(), autocast(settings):
        return model.generate(**inputs, generation_config=config, **options)  # type: ignore[no-any-return]


def autocast(settings: Settings) -> AbstractContextManager[Any]:
    """Return the autocast region that the settings ask for, or one that does nothing."""
    if not settings.autocast:
        return nullcontext()
    return torch.autocast(torch.device(settings.device).type, dtype=getattr(torch, settings.compute_dtype))


def is_causal(model: Any) -> bool:
    """Whether the model predicts the next token from the tokens before it, with a head of its own."""
    name = type(model).__name__
    return not _is_encoder_decoder(model) and name.endswith(("ForCausalLM", "LMHeadModel"))


def _no_initialisation() -> AbstractContextManager[Any]:
    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # transformers 4
        from transformers.modeling_utils import no_init_weights
    return no_init_weights()  # type: ignore[no-any-return, no-untyped-call, unused-ignore]


def _checkpoint_layers(model: Any, num_layers: int) -> None:
    found = layers(model)
    if num_layers == 0:
        if any(getattr(layer, "gradient_checkpointing", False) for layer in found):
            model.gradient_checkpointing_disable()
        return
    if not found:
        raise RequestError(f"{type(model).__name__} has no repeated layers that could be checkpointed")
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for index, layer in enumerate(found):
        layer.gradient_checkpointing = index < num_layers  # type: ignore[assignment]


def _speaks(model: Any) -> bool:
    return getattr(getattr(model, "config", None), "model_type", None) == SPEECH


def _is_encoder_decoder(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _accepts_labels(model: Any) -> bool:
    return "labels" in inspect.signature(model.forward).parameters


def _random_tokens(model: Any, settings: Settings, generator: torch.Generator) -> Tensor:
    vocabulary = model.config.get_text_config().vocab_size
    shape = (settings.micro_batch_size, settings.sequence_length)
    return torch.randint(0, vocabulary, shape, generator=generator)


def _input_shape(name: str, config: Any, settings: Settings) -> tuple[int, ...]:
    batch = settings.micro_batch_size
    if name == "pixel_values":
        size = config.image_size
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        return (batch, getattr(config, "num_channels", 3), height, width)
    if name == "input_features":
        frames = (
            2 * config.max_source_positions if hasattr(config, "max_source_positions") else settings.sequence_length
        )
        bins = int(getattr(config, "num_mel_bins", 0) or getattr(config, "feature_size", 80))
        return (batch, bins, frames)
    return (batch, settings.sequence_length)


def _targets(model: Any, batch: Mapping[str, Tensor], generator: torch.Generator) -> Batch:
    """Return what an encoder has to predict: the replaced tokens, or seeded classes for a classifier."""
    num_labels = getattr(model.config, "num_labels", 2)
    classes = type(model).__name__.endswith("Classification")
    if "input_ids" not in batch or classes:
        size = next(iter(batch.values())).shape[0]
        return {"labels": torch.randint(0, num_labels, (size,), generator=generator)} if classes else {}
    tokens = batch["input_ids"]
    replaced = torch.rand(tokens.shape, generator=generator) < CORRUPTED
    replaced[:, 0] = True
    noise = torch.randint(0, model.config.get_text_config().vocab_size, tokens.shape, generator=generator)
    return {
        "input_ids": torch.where(replaced, noise, tokens),
        "labels": torch.where(replaced, tokens, torch.full_like(tokens, -100)),
    }
