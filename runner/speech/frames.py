"""From a sentence to the codec's frames, through qwen-tts' own generation. Imports torch."""

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from runner.errors import CheckpointError, WorkloadError
from runner.settings import Settings
from runner.speech.request import Speech

DEFAULTS: Mapping[str, Any] = {
    "do_sample": True, "top_k": 50, "top_p": 1.0, "temperature": 0.9, "repetition_penalty": 1.05,
    "subtalker_dosample": True, "subtalker_top_k": 50, "subtalker_top_p": 1.0, "subtalker_temperature": 0.9,
}  # fmt: skip
"""what qwen-tts takes where generation_config.json says nothing"""


@dataclass(slots=True)
class Watch:
    """Follows the talker's calls: one a frame. Raises WorkloadError for scores that are not finite."""

    precision: str
    tell: Callable[[int], None]
    frames: int = 0
    _handles: list[Any] = field(default_factory=list)

    def on(self, talker: Any) -> "Watch":
        """Follow `talker` until off() is called."""
        self._handles.append(talker.register_forward_hook(self._seen))
        return self

    def off(self) -> None:
        """Stop following."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _seen(self, module: Any, arguments: Any, output: Any) -> None:
        logits = output.logits[:, -1]
        if bool(logits.isnan().any()) or bool(logits.isposinf().any()):
            hint = "; fp16 overflows above 65504: try precision=bf16 or fp32" if self.precision == "fp16" else ""
            raise WorkloadError(f"the talker's scores are not finite in {self.precision} at frame {self.frames}{hint}")
        if output.hidden_states[-1] is not None:  # the prefill has no frame
            self.frames += 1
            self.tell(self.frames)


def prompt_text(sentence: str) -> str:
    """Return a sentence as the model was taught to see it."""
    return f"<|im_start|>assistant\n{sentence}<|im_end|>\n<|im_start|>assistant\n"


def speak_sentence(
    model: Any, tokenizer: Any, sentence: str, speech: Speech, settings: Settings, generation: Mapping[str, Any],
    *, clone: Mapping[str, Any] | None = None,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Return the frames of one sentence, int16 (frames, codebooks), settings.max_new_tokens of them at most."""

    def ids(text: str) -> torch.Tensor:
        return torch.tensor([tokenizer(text)["input_ids"]], device=settings.device)

    options: dict[str, Any] = {name: generation.get(name, value) for name, value in DEFAULTS.items()}
    if settings.temperature > 0:
        options |= {"temperature": settings.temperature, "subtalker_temperature": settings.temperature}
    if speech.instruct is not None:
        options["instruct_ids"] = [ids(f"<|im_start|>user\n{speech.instruct}<|im_end|>\n")]
    if speech.speaker is not None:
        options["speakers"] = [speech.speaker]
    if clone is not None:
        options["voice_clone_prompt"] = dict(clone)
        if speech.reference_text is not None:
            options["ref_ids"] = [ids(f"<|im_start|>assistant\n{speech.reference_text}<|im_end|>\n")]
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        # the last token is never made a frame of
        codes, _ = model.generate(
            input_ids=[ids(prompt_text(sentence))], languages=[speech.language],
            non_streaming_mode=clone is None, max_new_tokens=settings.max_new_tokens + 1, **options,
        )  # fmt: skip
    return codes[0].to("cpu", torch.int16).numpy()  # type: ignore[no-any-return]


def clone_prompt(model: Any, codec: Any, speech: Speech) -> dict[str, Any]:
    """Return the voice of the reference audio, and its frames where its text is known; `codec` may then not be None."""
    import librosa  # type: ignore[import-not-found,unused-ignore]

    rate = int(model.speaker_encoder_sample_rate)
    sound, _ = librosa.load(str(speech.reference_audio), sr=rate, mono=True)
    if model.speaker_encoder is None:
        raise CheckpointError("a Base model without a speaker encoder cannot take a voice from a recording")
    device, dtype = model.device, next(model.speaker_encoder.parameters()).dtype
    model.speaker_encoder.float()  # the spectrogram's range is not for 16 bits; it is small and runs once
    with torch.no_grad():
        voice = _speaker_vector(model, sound, rate).to(dtype)
    model.speaker_encoder.to(dtype)
    codes = None
    if speech.needs_encoder:
        with torch.no_grad():
            values = torch.from_numpy(sound).float()[None].to(device)
            codes = codec.encode(values, torch.ones_like(values, dtype=torch.long), return_dict=True).audio_codes[0]
    return {
        "ref_code": [codes], "ref_spk_embedding": [voice],
        "x_vector_only_mode": [codes is None], "icl_mode": [codes is not None],
    }  # fmt: skip


def _speaker_vector(model: Any, sound: Any, rate: int) -> torch.Tensor:
    from qwen_tts.core.models.modeling_qwen3_tts import (  # type: ignore[import-not-found,unused-ignore]
        mel_spectrogram,
    )

    mels = mel_spectrogram(
        torch.from_numpy(sound).float()[None], n_fft=1024, num_mels=128, sampling_rate=rate, hop_size=256,
        win_size=1024, fmin=0, fmax=12000,
    ).transpose(1, 2)  # fmt: skip
    vector: torch.Tensor = model.speaker_encoder(mels.to(model.device))[0]
    return vector
