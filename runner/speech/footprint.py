"""What a Qwen3-TTS run needs, from headers and config.json: no torch, no weights."""

from runner.checkpoint import Checkpoint
from runner.settings import ITEMSIZE, Settings
from runner.speech import parts as sizes

CONTEXT = 25
"""frames before a chunk that the codec decodes again, as in its own chunked_decode"""
ALL = ("talker", "code_predictor", "text_embedding", "speaker_encoder", "codec_encoder", "codec_decoder")


def moments(checkpoint: Checkpoint, settings: Settings) -> dict[str, dict[str, int]]:
    """Return moment → part → bytes: while loading, while a reference is encoded, frames are made, sound is decoded."""
    weights = sizes.part_bytes(checkpoint, settings)
    if settings.text_embedding == "file":
        weights.pop("text_embedding", None)
    if settings.workload == "load" or not settings.memory_efficient:
        loaded = {name: weights[name] for name in ALL if name in weights}
    else:
        wanted = ["talker", "code_predictor", "text_embedding", "speaker_encoder"]
        wanted += ["codec_decoder"] if settings.codec == "held" else []
        loaded = {name: weights[name] for name in wanted if name in weights}
    found = {"load": dict(loaded)}
    if settings.workload == "load" or checkpoint.codec is None:
        return found
    codec = checkpoint.codec.config
    if settings.codec_encoder:
        work = int(settings.reference_seconds * sizes.encoder_bytes_per_second(codec))
        found["reference"] = {**loaded, "codec_encoder": weights.get("codec_encoder", 0), "codec_workspace": work}
    positions = settings.sequence_length + settings.max_new_tokens
    cache, hidden = sizes.frame_bytes(checkpoint.config, settings)
    vocabulary = int(checkpoint.config["talker_config"]["vocab_size"])
    found["frames"] = {
        **loaded,
        "kv_cache": positions * cache,
        "hidden_states": positions * hidden,
        "logits": settings.sequence_length * vocabulary * (ITEMSIZE[settings.compute_dtype] + ITEMSIZE["float32"]),
    }
    chunk = min(settings.codec_chunk, settings.max_new_tokens)
    context = CONTEXT if settings.max_new_tokens > settings.codec_chunk else 0
    decoding = {"codec_workspace": (chunk + context) * sizes.decoder_bytes_per_frame(codec)}
    decoder = {"codec_decoder": weights.get("codec_decoder", 0)}
    found["decode"] = {**(decoder if settings.codec == "after" else loaded), **decoding}
    return found
