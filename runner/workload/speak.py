"""Speak a text into a sound file, sentence by sentence."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner.checkpoint import Checkpoint
from runner.checkpoint.headers import read_json
from runner.errors import CheckpointError, WorkloadError
from runner.speech import Speech, check_request
from runner.speech.parts import FRAME_SECONDS
from runner.speech.sound import SILENCE, SoundFile
from runner.speech.text import weight
from runner.workload.forward import synchronize
from runner.workload.job import Job
from runner.workload.outcome import Outcome
from runner.workload.prompt import read_sentences

if TYPE_CHECKING:
    import numpy as np

SOUND = "speech.wav"
LETTERS_A_SECOND = 15.0
FASTEST, SLOWEST = 60.0, 2.0
"""letters a second that speech cannot be above or below: no rate of speaking, so a note is made"""


def speak(job: Job) -> Outcome:
    """Return the outcome of speaking all sentences; raises WorkloadError for sound that is silent or not finite."""
    speech = check_request(job.config, _checkpoint(job))
    voice = _Voice(job, speech)
    sentences = read_sentences(job.config)
    start = time.monotonic()
    if job.settings.codec == "after":
        frames = [voice.frames(index, sentence) for index, sentence in enumerate(sentences)]
        voice.change_over()
        made = iter(frames)
    else:
        made = (voice.frames(index, sentence) for index, sentence in enumerate(sentences))
    sound = SoundFile(job.folder / SOUND, voice.sample_rate)
    try:
        for piece in made:
            voice.sound(piece, sound)
    finally:
        sound.close()
    synchronize(job.settings.device)
    seconds = time.monotonic() - start
    if sound.rms < SILENCE:
        raise WorkloadError(
            f"{SOUND} is silent: {sound.seconds:.2f} s at {sound.rms:.1e} of full scale (root mean square); the codec "
            "must run in fp32, and the weights belong together"
        )
    return _outcome(job, voice, sound, sentences, seconds)


class _Voice:
    """The model while it speaks: what it has made, and what each part took."""

    def __init__(self, job: Job, speech: Speech) -> None:
        from runner.loader.speech import fill_codec

        self._job, self._speech = job, speech
        self._fill_codec = fill_codec
        self.seconds = {"reference": 0.0, "frames": 0.0, "codec_load": 0.0, "codec": 0.0}
        self.num_frames = 0
        self.lengths: list[int] = []
        codec = _checkpoint(job).codec
        self.sample_rate = int(codec.config.get("output_sample_rate", 24000)) if codec is not None else 24000
        self._total = sum(weight(sentence) for sentence in read_sentences(job.config)) / LETTERS_A_SECOND
        self._generation = _generation_settings(job)
        self._reference: Mapping[str, Any] | None = self._take_reference()

    def _take_reference(self) -> Mapping[str, Any] | None:
        from runner.speech.frames import clone_prompt

        if self._speech.reference_audio is None:
            return None
        start, job, codec = time.monotonic(), self._job, None
        if self._speech.needs_encoder:
            whole = job.loaded.codec if getattr(job.loaded.codec, "encoder", None) is not None else None
            codec = whole or self._fill_codec(_checkpoint(job), job.settings, encoder=True, decoder=False)
        found = clone_prompt(job.loaded.model, codec, self._speech)
        self.seconds["reference"] += time.monotonic() - start
        return found

    def frames(self, index: int, sentence: str) -> "np.ndarray[Any, Any]":
        """Return the frames of a sentence, those of the reference before them; each sentence has a seed of its own."""
        import numpy as np
        import torch

        from runner.speech.frames import Watch, speak_sentence

        job, start = self._job, time.monotonic()
        torch.manual_seed(job.settings.seed + index)
        before = self.num_frames
        watch = Watch(job.settings.precision, lambda done: job.tell((before + done) * FRAME_SECONDS, self._total))
        watch.on(job.loaded.model.talker)
        try:
            made = speak_sentence(
                job.loaded.model, job.loaded.tokenizer, sentence, self._speech, job.settings, self._generation,
                clone=self._reference,
            )  # fmt: skip
        finally:
            watch.off()
        if not len(made):
            raise WorkloadError(f"no sound for sentence {index + 1}, {sentence!r}: the model ended it at once")
        self.num_frames += len(made)
        self.lengths.append(len(made))
        self.seconds["frames"] += time.monotonic() - start
        codes = None if self._reference is None else self._reference["ref_code"][0]
        return made if codes is None else np.concatenate([codes.to("cpu").numpy().astype(np.int16), made])

    def change_over(self) -> None:
        """Let the talker go and bring the codec's decoder in."""
        from runner.loader import release_memory

        start, job = time.monotonic(), self._job
        job.loaded.model = None
        release_memory(job.settings.device)
        job.loaded.codec = self._fill_codec(_checkpoint(job), job.settings, encoder=False)
        self.seconds["codec_load"] += time.monotonic() - start

    def sound(self, frames: "np.ndarray[Any, Any]", to: SoundFile) -> None:
        """Decode the frames of a sentence and write its samples."""
        from runner.speech.codec import decode

        start = time.monotonic()
        codes = None if self._reference is None else self._reference["ref_code"][0]
        skip = 0 if codes is None else len(codes)
        for samples in decode(self._job.loaded.codec, frames, chunk=self._job.settings.codec_chunk, skip=skip):
            to.write(samples)
        self.seconds["codec"] += time.monotonic() - start


def _checkpoint(job: Job) -> Checkpoint:
    if job.loaded.checkpoint is None:
        raise CheckpointError("this model was not loaded to speak")
    return job.loaded.checkpoint


def _generation_settings(job: Job) -> Mapping[str, Any]:
    folder = _checkpoint(job).path
    if folder is None:
        raise CheckpointError("the checkpoint is not on disk")
    file = folder / "generation_config.json"
    return read_json(str(file), name=file.name) if file.exists() else {}


def _outcome(job: Job, voice: _Voice, sound: SoundFile, sentences: tuple[str, ...], seconds: float) -> Outcome:
    limit = job.settings.max_new_tokens
    reached = [index + 1 for index, length in enumerate(voice.lengths) if length >= limit]
    notes = []
    if reached:
        notes.append(
            f"{len(reached)} of {len(sentences)} sentences reached the limit of {limit} frames "
            f"({limit * FRAME_SECONDS:.1f} s) and are cut there: the first is number {reached[0]}; give more with "
            "workload.max_new_tokens"
        )
    for index, (sentence, length) in enumerate(zip(sentences, voice.lengths, strict=True)):
        rate = weight(sentence) / (length * FRAME_SECONDS)
        if length < limit and not SLOWEST <= rate <= FASTEST:
            notes.append(f"sentence {index + 1} has {rate:.1f} letters a second, which is no rate of speech")
    return Outcome(
        num_tokens=voice.num_frames, seconds=seconds,
        tokens_per_second=voice.num_frames / voice.seconds["frames"] if voice.seconds["frames"] else None,
        files=(SOUND,), finite=True, dtype_histogram=job.loaded.dtype_histogram,
        details={
            "audio_seconds": sound.seconds, "sample_rate": sound.rate, "num_sentences": len(sentences),
            "num_frames": voice.num_frames, "real_time_factor": seconds / sound.seconds, "rms": sound.rms,
            "reached_limit": len(reached), "seconds": dict(voice.seconds), "notes": notes,
        },
    )  # fmt: skip
