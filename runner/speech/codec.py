"""From frames to samples, a chunk at a time. Imports torch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from runner.speech.footprint import CONTEXT


def decode(codec: Any, frames: np.ndarray[Any, Any], *, chunk: int, skip: int = 0) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the float32 samples of `frames` (F, codebooks), those of the first `skip` frames left out.

    `chunk` frames are decoded at a time, each with CONTEXT frames before it, as qwen-tts does with 300.
    """
    decoder = codec.decoder
    samples = int(codec.decode_upsample_rate)
    device = next(decoder.parameters()).device
    for start in range(0, len(frames), chunk):
        context = min(start, CONTEXT)
        piece = torch.from_numpy(frames[start - context : start + chunk].astype(np.int64)).to(device)
        with torch.inference_mode():
            wave = decoder(piece.clamp(min=0).T[None])[0, 0, context * samples :]
        wave = wave.float().cpu().numpy()
        left_out = max(0, skip - start) * samples
        if left_out < len(wave):
            yield wave[left_out:]
