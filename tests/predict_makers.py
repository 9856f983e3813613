"""Checkpoints and settings for the tests and the benchmark of prediction."""

from functools import cache
from typing import Any

from runner.checkpoint import Checkpoint, StoredTensor
from runner.settings import DTYPES, ITEMSIZE, Settings

TEXT = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": (
        "Qwen3ForCausalLM",
        TEXT | {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
    ),
    "llama": ("LlamaForCausalLM", TEXT | {"num_hidden_layers": 3, "num_key_value_heads": 2}),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 128, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}),
    "bert": ("BertForMaskedLM", TEXT | {"num_hidden_layers": 3, "max_position_embeddings": 256}),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_heads": 4,
         "decoder_start_token_id": 0},
    ),
    "vit": (
        "ViTForImageClassification",
        {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3,
         "image_size": 32, "patch_size": 8},
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        TEXT | {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16},
    ),
    "mistral": (
        "MistralForCausalLM",
        TEXT | {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", TEXT | {"num_hidden_layers": 3, "max_position_embeddings": 256}),
    "bart": (
        "BartForConditionalGeneration",
        {"vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "decoder_start_token_id": 2,
         "max_position_embeddings": 256, "forced_eos_token_id": None},
    ),
    "roberta": ("RobertaForMaskedLM", TEXT | {"num_hidden_layers": 3, "max_position_embeddings": 256}),
    "modernbert": (
        "ModernBertForMaskedLM",
        TEXT | {"num_hidden_layers": 3, "local_attention": 16, "max_position_embeddings": 256, "pad_token_id": 0},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {"vocab_size": 128, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 50,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
         "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        TEXT | {"num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "mamba": (
        "MambaForCausalLM",
        {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0},
    ),
    "vits": (
        "VitsModel",
        {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64,
         "flow_size": 32, "spectrogram_bins": 33, "upsample_initial_channel": 32, "upsample_rates": [4, 4],
         "upsample_kernel_sizes": [8, 8], "prior_encoder_num_wavenet_layers": 2,
         "posterior_encoder_num_wavenet_layers": 2, "depth_separable_num_layers": 1},
    ),
}  # fmt: skip


def settings(**overrides: Any) -> Settings:
    """Return settings of a short fp32 forward on the CPU, with `overrides`; precision sets the dtypes."""
    precision = overrides.setdefault("precision", "fp32")
    train = overrides.setdefault("workload", "forward") == "train"
    compute = DTYPES[precision]
    values: dict[str, Any] = {
        "device": "cpu", "compute_dtype": compute, "parameter_dtype": "float32" if train else compute,
        "autocast": train and precision != "fp32", "grad_scaler": train and precision == "fp16",
        "micro_batch_size": 2, "sequence_length": 24, "max_new_tokens": 8,
    }  # fmt: skip
    return Settings(**(values | overrides))


@cache
def checkpoint(model_type: str, *, architecture: str | None = None, **config: Any) -> Checkpoint:
    """Return a tiny checkpoint of a known model type, as its header would declare it in float32."""
    import torch
    from transformers import AutoConfig

    from runner import steps

    name, values = TINY.get(model_type, ("", {}))
    full = AutoConfig.for_model(model_type, **(values | config)).to_dict()
    made = Checkpoint(
        source="random", id=model_type, revision=None, path=None, architecture=architecture or name,
        model_type=model_type, config=full, tensors=(),
    )  # fmt: skip
    with torch.device("meta"):
        model = steps.build(made, settings())
    tensors, offset, seen = [], 0, set()
    for key, value in model.state_dict(keep_vars=True).items():
        if id(value) in seen:
            continue
        seen.add(id(value))
        dtype = str(value.dtype).removeprefix("torch.")
        size = value.numel() * ITEMSIZE[dtype]
        tensors.append(
            StoredTensor(
                name=key, dtype=dtype, shape=tuple(value.shape), num_bytes=size, file="model.safetensors", offset=offset
            )
        )
        offset += size
    return Checkpoint(
        source="random", id=model_type, revision=None, path=None, architecture=made.architecture,
        model_type=model_type, config=full, tensors=tuple(tensors), num_bytes=offset,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        stored_dtypes={"float32": offset},
    )  # fmt: skip
