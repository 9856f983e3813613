"""What marks a Qwen3-TTS checkpoint."""

from runner.checkpoint import Checkpoint
from runner.checkpoint.value import CODEC_FOLDERS

MODEL_TYPE = "qwen3_tts"
CODEC_TYPE = "qwen3_tts_tokenizer_12hz"
"""the codec that is run here; the other one, of 25 Hz, was not published with the models that are named here"""


def is_qwen3_tts(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint is a Qwen3-TTS one, by the model type in its config.json."""
    return checkpoint.model_type == MODEL_TYPE


__all__ = ["CODEC_FOLDERS", "CODEC_TYPE", "MODEL_TYPE", "is_qwen3_tts"]
