"""Known architectures at true size: the values of config.json that make them.

Sizes are those of the published checkpoints' configurations, spelled out so that a change of a library's default
changes nothing here. The `_tiny` ones are small enough for tests.
"""

import copy
import difflib
from collections.abc import Mapping
from typing import Any

from runner.errors import RequestError

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_act": "silu",
    "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "attention_bias": False,
    "initializer_range": 0.02, "tie_word_embeddings": True, "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
_LLAMA3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "head_dim": 128,
    "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
    "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False, "initializer_range": 0.02,
    "tie_word_embeddings": False, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
_GEMMA: dict[str, Any] = {
    "vocab_size": 256000, "head_dim": 256, "max_position_embeddings": 8192, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6, "attention_bias": False, "initializer_range": 0.02, "tie_word_embeddings": True,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
_BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522, "hidden_size": 768,
    "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
    "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "initializer_range": 0.02,
    "tie_word_embeddings": True, "pad_token_id": 0,
}  # fmt: skip
_T5: dict[str, Any] = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 32128, "d_model": 512,
    "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 8,
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "feed_forward_proj": "relu",
    "is_encoder_decoder": True, "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1,
    "decoder_start_token_id": 0,
}  # fmt: skip

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "qwen3_0_6b": _QWEN3 | {"hidden_size": 1024, "intermediate_size": 3072},
    "qwen3_1_7b": _QWEN3 | {"hidden_size": 2048, "intermediate_size": 6144},
    "qwen3_8b": _QWEN3 | {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "llama_3_2_1b": _LLAMA3 | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "head_dim": 64, "tie_word_embeddings": True, "rope_scaling": _LLAMA3["rope_scaling"] | {"factor": 32.0},
    },
    "llama_3_1_8b": _LLAMA3 | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    "llama_3_3_70b": _LLAMA3 | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    },
    "mistral_7b": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 32768, "sliding_window": 4096,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "gemma_7b": _GEMMA | {
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
        "hidden_act": "gelu_pytorch_tanh",
    },
    "gemma2_2b": _GEMMA | {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096, "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024,
        "n_embd": 768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02, "tie_word_embeddings": True, "bos_token_id": 50256, "eos_token_id": 50256,
    },
    "bert_base": _BERT,
    "modernbert_base": {
        "architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert", "vocab_size": 50368,
        "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22, "num_attention_heads": 12,
        "max_position_embeddings": 8192, "global_attn_every_n_layers": 3, "local_attention": 128,
        "initializer_range": 0.02, "tie_word_embeddings": True, "pad_token_id": 50283, "bos_token_id": 50281,
        "eos_token_id": 50282, "cls_token_id": 50281, "sep_token_id": 50282,
    },
    "t5_small": _T5,
    "bart_large": {
        "architectures": ["BartForConditionalGeneration"], "model_type": "bart", "vocab_size": 50265, "d_model": 1024,
        "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
        "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024,
        "activation_function": "gelu", "init_std": 0.02, "is_encoder_decoder": True, "tie_word_embeddings": True,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
    },
    "vit_base": {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
        "image_size": 224, "patch_size": 16, "num_channels": 3, "qkv_bias": True, "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    },
    "whisper_tiny": {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "vocab_size": 51865,
        "num_mel_bins": 80, "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
        "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "max_source_positions": 1500,
        "max_target_positions": 448, "activation_function": "gelu", "init_std": 0.02, "is_encoder_decoder": True,
        "tie_word_embeddings": True, "pad_token_id": 50257, "bos_token_id": 50257, "eos_token_id": 50257,
        "decoder_start_token_id": 50258,
    },
    "vits": {
        "architectures": ["VitsModel"], "model_type": "vits", "vocab_size": 38, "hidden_size": 192,
        "num_hidden_layers": 6, "num_attention_heads": 2, "ffn_dim": 768, "flow_size": 192, "spectrogram_bins": 513,
        "upsample_initial_channel": 512, "sampling_rate": 16000, "initializer_range": 0.02,
    },
    "qwen3_tiny": _QWEN3 | {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "bos_token_id": None, "eos_token_id": None,
    },
    "llama_tiny": _LLAMA3 | {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "rope_scaling": None, "bos_token_id": None, "eos_token_id": None,
    },
    "bert_tiny": _BERT | {
        "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128,
    },
    "t5_tiny": _T5 | {
        "vocab_size": 512, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": 4,
    },
}  # fmt: skip
_ALIASES = {"mms_tts": "vits"}


def architecture_name(name: str | None) -> str:
    """Return our spelling of an architecture's name. Raises RequestError that lists the known ones."""
    known = ", ".join(ARCHITECTURES)
    if name is None:
        raise RequestError(f"model=random needs model.architecture; known are {known}")
    spelled = name.strip().lower().replace("-", "_").replace(".", "_")
    spelled = _ALIASES.get(spelled, spelled)
    if spelled not in ARCHITECTURES:
        close = difflib.get_close_matches(spelled, [*ARCHITECTURES, *_ALIASES], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise RequestError(f"model.architecture={name} is unknown; {hint}known are {known}")
    return spelled


def architecture_config(name: str) -> dict[str, Any]:
    """Return config.json of the architecture called `name`, a key of ARCHITECTURES."""
    return copy.deepcopy(dict(ARCHITECTURES[name])) | {"dtype": "bfloat16"}
