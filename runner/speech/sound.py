"""Write samples to a .wav file as they come, and notice what is wrong with them."""

import math
import wave
from pathlib import Path
from typing import Any

import numpy as np

from runner.errors import WorkloadError

SILENCE = 1e-4
"""root mean square below which a recording is taken for silent: -80 dB of full scale, three steps of 16-bit PCM"""
FULL_SCALE = 32767


class SoundFile:
    """A mono 16-bit PCM file that grows; it holds no sample in memory."""

    def __init__(self, path: Path, rate: int) -> None:
        self.rate, self.num_samples = rate, 0
        self._squares = 0.0
        self._file = wave.open(str(path), "wb")  # noqa: SIM115 - closed by close(), after the last sentence
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(rate)

    def write(self, samples: np.ndarray[Any, Any]) -> None:
        """Append float samples in -1 … 1. Raises WorkloadError when one of them is not finite."""
        if not bool(np.isfinite(samples).all()):
            raise WorkloadError(
                f"the sound is not finite after {self.seconds:.2f} s: the codec's weights, or the frames, may be broken"
            )
        self._squares += float(np.square(samples, dtype=np.float64).sum())
        self.num_samples += len(samples)
        self._file.writeframes(np.round(np.clip(samples, -1.0, 1.0) * FULL_SCALE).astype("<i2").tobytes())

    def close(self) -> None:
        """Complete the file's header."""
        self._file.close()

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.num_samples / self.rate

    @property
    def rms(self) -> float:
        """Root mean square of all samples, 1 being full scale."""
        return math.sqrt(self._squares / self.num_samples) if self.num_samples else 0.0
