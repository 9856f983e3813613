"""A generation's probe: the scores of its first new tokens, written as they come, so that none is held in memory."""

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from runner.workload.forward import PROBE

POSITIONS = 16
VALUES = 2**21
"""scores in a probe, at most: 8 MiB; with a vocabulary of 151936 they are those of 13 tokens"""
HEADER = 256
"""bytes kept for the header in front of the scores; the format allows spaces at its end"""


class ScoresProbe:
    """A logits processor that changes nothing and writes the first row's scores, one position a call.

    The prediction knows nothing of it, and need not: on a CPU the scores are written from where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROBE
        self._part = folder / f".{PROBE}.part"
        self._file: BinaryIO | None = None
        self._positions = self._vocabulary = 0

    def __enter__(self) -> "ScoresProbe":
        self._file = self._part.open("wb")
        self._file.write(b" " * HEADER)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()
        self._part.unlink(missing_ok=True)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return `scores` (B, V), float32, and write the first row of them while the probe is small."""
        self._vocabulary = scores.shape[-1]
        if self._file is not None and self._positions < max(1, min(POSITIONS, VALUES // self._vocabulary)):
            self._file.write(memoryview(scores[0].float().cpu().contiguous().numpy()))
            self._positions += 1
        return scores

    def finish(self, new_tokens: Any) -> str:
        """Put logits (P, V) and the tokens (P,) that were chosen in place as one file, and return its name."""
        if self._file is None:
            raise ValueError("the probe is not open")
        chosen = new_tokens[: self._positions].long().cpu().contiguous().numpy()
        self._file.write(memoryview(chosen))
        scores = 4 * self._positions * self._vocabulary
        described = {
            "logits": {"dtype": "F32", "shape": [self._positions, self._vocabulary], "data_offsets": [0, scores]},
            "tokens": {"dtype": "I64", "shape": [len(chosen)], "data_offsets": [scores, scores + 8 * len(chosen)]},
        }
        header = json.dumps(described, separators=(",", ":")).encode().ljust(HEADER - 8)
        self._file.seek(0)
        self._file.write(len(header).to_bytes(8, "little") + header)
        self._file.close()
        os.replace(self._part, self._path)
        return PROBE
