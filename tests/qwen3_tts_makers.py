"""A Qwen3-TTS checkpoint of a few hundred thousand parameters: the folder's layout as published, the weights random."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.checkpoint_makers import entries, safetensors

STAND_INS = Path(__file__).with_name("stand_ins")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
SPEAKERS = {"serena": 300, "ryan": 301}
LANGUAGES = {"english": 310, "german": 311, "beijing_dialect": 312}
LAYER = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "hidden_act": "silu"}


def talker_config(**overrides: Any) -> dict[str, Any]:
    """Two layers of 32 units, a code predictor of one layer, four codebooks."""
    predictor = {
        **LAYER, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64,
        "num_code_groups": 16, "max_position_embeddings": 64, "layer_types": ["full_attention"],
    }  # fmt: skip
    values = {
        **LAYER, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 1088,
        "text_vocab_size": 300, "text_hidden_size": 40, "num_code_groups": 16, "max_position_embeddings": 2048,
        "rope_scaling": {"interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default", "type": "default"},
        "codec_bos_id": 320, "codec_eos_token_id": 321, "codec_think_id": 322, "codec_nothink_id": 323,
        "codec_pad_id": 324, "codec_think_bos_id": 325, "codec_think_eos_id": 326, "spk_id": SPEAKERS,
        "spk_is_dialect": dict.fromkeys(SPEAKERS, False), "codec_language_id": LANGUAGES,
        "code_predictor_config": predictor, "initializer_range": 0.02,
    }  # fmt: skip
    return values | overrides


def main_config(kind: str = "custom_voice", **overrides: Any) -> dict[str, Any]:
    """config.json of the whole model."""
    first = 256
    ids = {name: first + index for index, name in enumerate(SPECIAL)}
    talker = talker_config() if kind == "custom_voice" else talker_config(spk_id={}, spk_is_dialect={})
    values: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"], "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz", "tts_model_size": "1b7", "tts_model_type": kind,
        "im_start_token_id": ids["<|im_start|>"], "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"], "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"], "talker_config": talker,
    }  # fmt: skip
    if kind == "base":
        values["speaker_encoder_config"] = {
            "enc_dim": 32, "sample_rate": 24000, "enc_channels": [16, 16, 16, 16, 48], "enc_attention_channels": 8,
            "enc_se_channels": 8, "enc_res2net_scale": 4,
        }  # fmt: skip
    return values | overrides


def codec_config(**overrides: Any) -> dict[str, Any]:
    """config.json of the codec: one layer of 16 units on each side."""
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    encoder = {
        **heads, "model_type": "mimi", "num_filters": 4, "hidden_size": 16, "intermediate_size": 32, "codebook_dim": 8,
        "upsampling_ratios": [8, 6, 5, 4], "vector_quantization_hidden_dimension": 8, "num_quantizers": 16,
        "codebook_size": 64, "upsample_groups": 16, "sliding_window": 20,
    }  # fmt: skip
    decoder = {
        **heads, "latent_dim": 16, "codebook_dim": 16, "codebook_size": 64, "decoder_dim": 32, "hidden_size": 16,
        "intermediate_size": 32, "sliding_window": 20, "num_quantizers": 16, "num_semantic_quantizers": 1,
        "semantic_codebook_size": 64, "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 16,
    }  # fmt: skip
    values = {
        "architectures": ["Qwen3TTSTokenizerV2Model"], "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": 16, "input_sample_rate": 24000, "output_sample_rate": 24000,
        "decode_upsample_rate": 1920, "encode_downsample_rate": 1920, "encoder_config": encoder,
        "decoder_config": decoder,
    }  # fmt: skip
    return values | overrides


HEADERS = {
    "talker.model.text_embedding.weight": (300, 40), "talker.model.layers.0.mlp.up_proj.weight": (48, 32),
    "talker.code_predictor.lm_head.0.weight": (64, 24), "speaker_encoder.fc.weight": (32, 8),
}  # fmt: skip
CODEC_HEADERS = {"encoder.conv.weight": (4, 1, 7), "decoder.pre_conv.weight": (16, 16, 3)}


def headers_only(folder: Path, kind: str = "custom_voice", **config: Any) -> Path:
    """A folder that can be inspected and planned for, and not loaded: a few tensors of each part, all zero."""
    inside = folder / "speech_tokenizer"
    inside.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(main_config(kind, **config)))
    (folder / "model.safetensors").write_bytes(safetensors(entries(HEADERS)))
    (inside / "config.json").write_text(json.dumps(codec_config()))
    (inside / "model.safetensors").write_bytes(safetensors(entries(CODEC_HEADERS, dtype="F32")))
    return folder


def whole(folder: Path, kind: str = "custom_voice", *, loudness: float = 1.0) -> Path:
    """A folder that speaks; needs qwen-tts. `loudness` scales the codec's last layer: 0 makes it silent."""
    sys.path.append(str(STAND_INS))
    import torch
    from safetensors.torch import save_file

    from runner.speech.package import import_package

    models = import_package()
    from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model

    headers_only(folder, kind)
    torch.manual_seed(0)
    model = models.Qwen3TTSForConditionalGeneration(models.Qwen3TTSConfig(**main_config(kind)))
    codec = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**codec_config()))
    for name, value in codec.state_dict().items():
        if value.is_floating_point() and value.dim() > 1:  # loud enough to be heard after a dozen layers
            value.normal_(std=1.0 if name.endswith("_sum") else value[0].numel() ** -0.5)
        if name.startswith(f"decoder.decoder.{len(codec.decoder.decoder) - 1}."):
            value.mul_(0.1 * loudness)
    state = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    kept = {name: value.contiguous().clone() for name, value in codec.state_dict().items()}
    save_file(kept, folder / "speech_tokenizer" / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.9}))
    (folder / "preprocessor_config.json").write_text(json.dumps({"processor_class": "Qwen3TTSProcessor"}))
    extractor = {"feature_extractor_type": "EncodecFeatureExtractor", "feature_size": 1, "sampling_rate": 24000}
    (folder / "speech_tokenizer" / "preprocessor_config.json").write_text(json.dumps(extractor))
    return folder


def _tokenizer(folder: Path) -> None:
    """One token a byte, in the files that Qwen2Tokenizer reads."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    (folder / "vocab.json").write_text(json.dumps({letter: index for index, letter in enumerate(alphabet)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    added = {
        str(256 + index): {
            "content": name, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True,
        }
        for index, name in enumerate(SPECIAL)
    }  # fmt: skip
    values = {
        "tokenizer_class": "Qwen2Tokenizer", "processor_class": "Qwen3TTSProcessor", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "unk_token": None, "bos_token": None, "added_tokens_decoder": added, "model_max_length": 4096,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
