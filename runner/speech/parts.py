"""The bytes of a Qwen3-TTS model by part, from headers and config.json alone."""

from collections.abc import Mapping
from math import prod
from typing import Any

from runner.checkpoint import Checkpoint
from runner.settings import ITEMSIZE, Settings

FRAME_SECONDS = 0.08
"""one frame of the 12.5 Hz codec"""
COPIES = 6.0
"""Tensors of the codec's widest stage that are alive at once in its decoder: a residual unit's input, its activation's
two temporaries, the padded copy, and the convolution's reordered input or output. Measured on a CPU in fp32 as the
rise of the resident size over 25, 100 and 300 frames of the 12 Hz codec: 5.0, 4.4 and 4.3 MB a frame; 6 copies of its
widest stage, 96 channels at 1920 samples a frame, are 4.4."""
ENCODER_COPIES = 6.0
"""the same in the encoder's first stage, the widest: num_filters channels at the rate of the samples"""
CODE_BYTES = 2
"""frames that wait for the codec are kept as int16"""


def part_of(name: str) -> str:
    """Return the part that a stored tensor of the main model belongs to."""
    if name.startswith("talker.code_predictor."):
        return "code_predictor"
    if name.startswith("talker.model.text_embedding."):
        return "text_embedding"
    return "speaker_encoder" if name.startswith("speaker_encoder.") else "talker"


def predictor_dtype(settings: Settings) -> str:
    """Return the dtype of the code predictor: float32 under float16, in which it overflows."""
    return "float32" if settings.parameter_dtype == "float16" else settings.parameter_dtype


def dtype_of(name: str, settings: Settings) -> str:
    """Return the dtype in which a tensor of the main model is loaded."""
    return predictor_dtype(settings) if part_of(name) == "code_predictor" else settings.parameter_dtype


def part_bytes(checkpoint: Checkpoint, settings: Settings) -> dict[str, int]:
    """Return part → bytes once it is loaded, of every part that the checkpoint has; the codec always in float32."""
    parts: dict[str, int] = {}
    for tensor in checkpoint.tensors:
        part = part_of(tensor.name)
        parts[part] = parts.get(part, 0) + prod(tensor.shape) * ITEMSIZE[dtype_of(tensor.name, settings)]
    for tensor in () if checkpoint.codec is None else checkpoint.codec.tensors:
        part = "codec_encoder" if tensor.name.startswith("encoder.") else "codec_decoder"
        itemsize = ITEMSIZE["float32"] if "float" in tensor.dtype else ITEMSIZE[tensor.dtype]
        parts[part] = parts.get(part, 0) + prod(tensor.shape) * itemsize
    return parts


def frame_bytes(config: Mapping[str, Any], settings: Settings) -> tuple[int, int]:
    """Return what one position of the talker keeps, in bytes: keys and values, and hidden states.

    Keys and values: 2 x layers x KV heads x head_dim x itemsize (28 layers, 8 heads, 128, bf16: 112 KiB). qwen-tts
    keeps the hidden state before each layer and after the last until a sentence ends: (layers + 1) x hidden x itemsize.
    """
    talker = config["talker_config"]
    layers, hidden = int(talker["num_hidden_layers"]), int(talker["hidden_size"])
    head_dim = int(talker.get("head_dim") or hidden // int(talker["num_attention_heads"]))
    itemsize = ITEMSIZE[settings.compute_dtype]
    return 2 * layers * int(talker["num_key_value_heads"]) * head_dim * itemsize, (layers + 1) * hidden * itemsize


def decoder_bytes_per_frame(codec: Mapping[str, Any]) -> int:
    """Return the codec decoder's working set for one frame, in bytes: COPIES of its widest stage, in float32."""
    settings = codec["decoder_config"]
    length = prod(settings["upsampling_ratios"])
    channels, widest = int(settings["decoder_dim"]), 0
    for rate in settings["upsample_rates"]:
        length, channels = length * rate, channels // 2
        widest = max(widest, length * channels)
    return int(COPIES * widest * ITEMSIZE["float32"])


def encoder_bytes_per_second(codec: Mapping[str, Any]) -> int:
    """Return the codec encoder's working set for one second of a recording, in bytes."""
    filters = int(codec["encoder_config"].get("num_filters", 64))
    return int(ENCODER_COPIES * filters * int(codec.get("input_sample_rate", 24000)) * ITEMSIZE["float32"])
