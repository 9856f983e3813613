"""What is to be said, by whom and how: checked against what the checkpoint's config.json says that there is."""

import wave
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.checkpoint import Checkpoint
from runner.config import AUTO, WorkloadConfig
from runner.errors import CheckpointError, RequestError
from runner.speech.identity import CODEC_TYPE

KINDS = {"custom_voice": "CustomVoice", "voice_design": "VoiceDesign", "base": "Base"}
LONGEST_REFERENCE = 60.0
"""seconds; the encoder takes the whole recording at once"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """One voice, settled."""

    kind: str
    """custom_voice, voice_design or base"""
    speaker: str | None
    language: str
    """auto, or one that the model names"""
    instruct: str | None
    reference_audio: Path | None
    reference_text: str | None
    reference_seconds: float = 0.0

    @property
    def needs_encoder(self) -> bool:
        """Whether the codec's encoder is needed: the reference is continued, not only taken the voice from."""
        return self.reference_audio is not None and self.reference_text is not None


def check_request(config: WorkloadConfig, checkpoint: Checkpoint) -> Speech:
    """Return the voice that `config` asks for. Raises RequestError that names what there is for what there is not."""
    settings = checkpoint.config
    kind, talker = str(settings.get("tts_model_type")), settings.get("talker_config")
    if kind not in KINDS or not isinstance(talker, Mapping):
        raise CheckpointError(f"config.json has tts_model_type {kind!r}; known are {', '.join(KINDS)}")
    if checkpoint.codec is not None and checkpoint.codec.model_type != CODEC_TYPE:
        raise CheckpointError(f"the codec is {checkpoint.codec.model_type}; only {CODEC_TYPE} is run here")
    audio, seconds = _reference(config, kind)
    return Speech(
        kind=kind,
        speaker=_speaker(config.speaker, kind, talker),
        language=_language(config.language, talker),
        instruct=_instruct(config.instruct, kind, settings),
        reference_audio=audio,
        reference_text=config.reference_text if audio is not None else None,
        reference_seconds=seconds,
    )


def _speaker(asked: str, kind: str, talker: Mapping[str, Any]) -> str | None:
    there = [str(name) for name in talker.get("spk_id") or {}]
    if kind != "custom_voice":
        if asked != AUTO:
            means = "workload.reference_audio=FILE" if kind == "base" else "workload.instruct='a calm, deep voice'"
            raise RequestError(
                f"workload.speaker={asked}: a {KINDS[kind]} model has no named speakers; say the voice with {means}"
            )
        return None
    if asked == AUTO and there:
        return there[0]
    if asked.lower() not in there:
        raise RequestError(f"workload.speaker={asked}: this model has no such speaker; there are {', '.join(there)}")
    return asked.lower()


def _language(asked: str, talker: Mapping[str, Any]) -> str:
    there = [str(name) for name in talker.get("codec_language_id") or {} if "dialect" not in str(name)]
    if asked != AUTO and asked.lower() not in there:
        raise RequestError(
            f"workload.language={asked}: the model does not speak it; there are auto, {', '.join(there)}"
        )
    return asked.lower()


def _instruct(asked: str | None, kind: str, settings: Mapping[str, Any]) -> str | None:
    if kind == "voice_design" and not (asked or "").strip():
        raise RequestError(
            "a VoiceDesign model makes its voice from words: give workload.instruct='a calm, deep voice'"
        )
    if asked is None or not asked.strip():
        return None
    if kind == "base":
        raise RequestError("workload.instruct: a Base model takes no instruction; CustomVoice 1.7B and VoiceDesign do")
    if kind == "custom_voice" and settings.get("tts_model_size") == "0b6":
        raise RequestError("workload.instruct: the 0.6B model takes no instruction; CustomVoice 1.7B does")
    return asked


def _reference(config: WorkloadConfig, kind: str) -> tuple[Path | None, float]:
    asked = config.reference_audio
    if kind != "base":
        if asked is not None or config.reference_text is not None:
            raise RequestError(
                f"workload.reference_audio: a {KINDS[kind]} model has voices of its own; only a Base model takes one "
                "from a recording (model=qwen3_tts_1_7b_base)"
            )
        return None, 0.0
    if asked is None:
        raise RequestError("a Base model speaks in the voice of a recording: give workload.reference_audio=FILE")
    path = Path(asked).expanduser()
    if not path.is_file():
        raise RequestError(f"workload.reference_audio={asked} {'is no file' if path.exists() else 'does not exist'}")
    seconds = _seconds(path, asked)
    if not 0.0 < seconds <= LONGEST_REFERENCE:
        raise RequestError(
            f"workload.reference_audio={asked} lasts {seconds:.1f} s; give more than 0 and at most "
            f"{LONGEST_REFERENCE:.0f} s"
        )
    return path, seconds


def _seconds(path: Path, asked: str) -> float:
    """Return how long the recording lasts: by the standard library for .wav, else by soundfile."""
    try:
        with wave.open(str(path)) as sound:
            return float(sound.getnframes() / sound.getframerate())
    except (wave.Error, EOFError, ZeroDivisionError):
        pass
    try:
        import soundfile  # type: ignore[import-not-found,unused-ignore]

        return float(soundfile.info(str(path)).duration)
    except ImportError:
        raise RequestError(f"workload.reference_audio={asked} is no PCM .wav; soundfile reads others") from None
    except RuntimeError as error:
        raise RequestError(f"workload.reference_audio={asked} cannot be read: {error}") from None
