"""Architectures at true size, by their published configuration values; what is not named is transformers' default."""

from typing import Any

_QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128,
    "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
    "bos_token_id": 151643, "eos_token_id": 151645,
}  # fmt: skip
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "head_dim": 128,
    "tie_word_embeddings": False, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
_T5: dict[str, Any] = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "vocab_size": 32128,
    "is_encoder_decoder": True, "tie_word_embeddings": True, "decoder_start_token_id": 0, "pad_token_id": 0,
    "eos_token_id": 1, "relative_attention_num_buckets": 32,
}  # fmt: skip
_BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 512,
    "type_vocab_size": 2, "tie_word_embeddings": True, "pad_token_id": 0,
}  # fmt: skip

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3_0_6b": _QWEN3 | {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3_1_7b": _QWEN3 | {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3_8b": _QWEN3 | {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "llama_3_2_1b": _LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "head_dim": 64, "tie_word_embeddings": True,
    },
    "llama_3_1_8b": _LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    "llama_3_3_70b": _LLAMA | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    },
    "mistral_7b": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "sliding_window": 4096, "tie_word_embeddings": False, "rope_theta": 10000.0,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "gemma_7b": {
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "vocab_size": 256000, "hidden_size": 3072,
        "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 256, "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024,
        "n_embd": 768, "n_layer": 12, "n_head": 12, "tie_word_embeddings": True, "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    "bert_base": _BERT | {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    },
    "modernbert_base": {
        "architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert", "vocab_size": 50368,
        "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22, "num_attention_heads": 12,
        "tie_word_embeddings": True, "pad_token_id": 50283,
    },
    "t5_small": _T5 | {"d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 6, "num_heads": 8},
    "bart_large": {
        "architectures": ["BartForConditionalGeneration"], "model_type": "bart", "vocab_size": 50265, "d_model": 1024,
        "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
        "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "is_encoder_decoder": True, "tie_word_embeddings": True,
        "decoder_start_token_id": 2, "forced_eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    },
    "vit_base": {
        "architectures": ["ViTModel"], "model_type": "vit", "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224, "patch_size": 16,
    },
    "whisper_tiny": {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "vocab_size": 51865,
        "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
        "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "num_mel_bins": 80,
        "max_source_positions": 1500, "max_target_positions": 448, "is_encoder_decoder": True,
        "tie_word_embeddings": True, "decoder_start_token_id": 50258, "pad_token_id": 50257, "bos_token_id": 50257,
        "eos_token_id": 50257,
    },
    "qwen3_tiny": _QWEN3 | {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None,
    },
    "llama_tiny": _LLAMA | {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "bos_token_id": None, "eos_token_id": None,
    },
    "bert_tiny": _BERT | {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "t5_tiny": _T5 | {"vocab_size": 512, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4},
}  # fmt: skip
