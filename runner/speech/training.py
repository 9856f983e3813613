"""Fine-tune a talker on codec tokens: one batch, its loss, and which parameters learn. Imports torch.

Shapes: B sequences of S positions, of which the last F + 1 are F frames and the code that ends a sentence; G codes a
frame. A sequence is laid out as the model speaks: role, how to think, speaker, text, and then the frames.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from runner.errors import RequestError
from runner.settings import Settings
from runner.speech.parts import predictor_dtype

HEAD = 8
"""positions before the text: three of the role, three of how to think, the speaker, a pad"""
ROLE = 3
TAIL = 3
"""positions besides text and frames after it: the text's end, the first code, the last one"""
LEAST = 16
"""positions: one of text and three frames"""
TEXT_SHARE = 4
"""of so many positions one is text: a second of speech has 12.5 frames and about 4 tokens of text"""
PREDICTOR_WEIGHT = 0.3
"""of the code predictor's loss beside the talker's, as in Qwen's own script (finetuning/sft_12hz.py)"""


def prepare(model: Any, settings: Settings) -> None:
    """Keep the text embedding and the speaker encoder as they are, and the code predictor in its own dtype."""
    model.talker.model.text_embedding.requires_grad_(False)
    if model.speaker_encoder is not None:
        model.speaker_encoder.requires_grad_(False)
    dtype = getattr(torch, predictor_dtype(settings))
    for module in model.talker.code_predictor.modules():
        for name, value in module._parameters.items():
            if value is not None and value.dtype != dtype:  # Module.to() cannot do it on fake tensors
                module._parameters[name] = nn.Parameter(value.detach().to(dtype))


def begins(model: Any) -> nn.Module:
    """Return the module that a micro batch goes through first; the model itself is never called."""
    found: nn.Module = model.talker.model.text_embedding
    return found


def check_length(length: int, config: Any) -> None:
    """Raise RequestError for sequences that hold no frame, or are longer than the talker's positions."""
    if length < LEAST:
        raise RequestError(
            f"workload.sequence_length={length} has no room for a text and its frames; training a talker needs at "
            f"least {LEAST}"
        )
    most = int(config.talker_config.max_position_embeddings)
    if length > most:
        raise RequestError(f"the sequences need {length} positions, the talker has {most}: {length - most} too many")


def make_batch(config: Any, settings: Settings, generator: torch.Generator) -> dict[str, Tensor]:
    """Return seeded texts and codes: text_ids (B, S), first_codes (B, S) and codes (B, F, G)."""
    talker = config.talker_config
    batch, length = settings.micro_batch_size, settings.sequence_length
    check_length(length, config)
    text = (length - HEAD - TAIL) // TEXT_SHARE
    frames = length - HEAD - TAIL - text

    def drawn(most: int, *shape: int) -> Tensor:
        return torch.randint(0, most, (batch, *shape), generator=generator)

    codes = drawn(talker.code_predictor_config.vocab_size, frames, talker.num_code_groups)
    speaker = next(iter((talker.spk_id or {}).values()), talker.codec_pad_id)
    ends = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id, speaker, talker.codec_pad_id]
    before = [talker.codec_pad_id] * ROLE + ends + [talker.codec_pad_id] * (text + 1) + [talker.codec_bos_id]
    first = [torch.tensor([before] * batch), codes[..., 0], torch.full((batch, 1), talker.codec_eos_token_id)]
    pad = torch.full((batch, length), config.tts_pad_token_id)
    text_ids = torch.cat([drawn(talker.text_vocab_size, ROLE), pad[:, : HEAD - ROLE - 1],
                          torch.full((batch, 1), config.tts_bos_token_id), drawn(talker.text_vocab_size, text),
                          torch.full((batch, 1), config.tts_eos_token_id), pad[:, : frames + 2]], dim=1)  # fmt: skip
    return {"text_ids": text_ids, "first_codes": torch.cat(first, dim=1), "codes": codes}


def loss(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the talker's cross entropy of the first codes, and the code predictor's of the others, weighted.

    A frame is predicted from the position before it, by both: as the model speaks. qwen-tts' own
    forward_sub_talker_finetune shifts the predictor's labels once too often (Qwen3-TTS, issue 371), so its logits are
    compared here.
    """
    talker, codes = model.talker, batch["codes"]
    num_frames, last = codes.shape[1], batch["first_codes"].shape[1] - 1
    start = last - num_frames
    labels = batch["first_codes"].clone()
    labels[:, :start] = -100
    out = talker(inputs_embeds=embedded(talker, batch), labels=labels, output_hidden_states=True, use_cache=False)
    hidden = out.hidden_states[0][-1][:, start - 1 : last - 1]
    total: Tensor = out.loss + PREDICTOR_WEIGHT * _predictor_loss(talker, hidden.flatten(0, 1), codes.flatten(0, 1))
    return total


def embedded(talker: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Return what the talker sees (B, S, hidden): at each position its text and all codes of its frame, added up."""
    text = talker.text_projection(talker.model.text_embedding(batch["text_ids"]))
    codes = talker.model.codec_embedding(batch["first_codes"][:, ROLE:])
    start = batch["first_codes"].shape[1] - 1 - batch["codes"].shape[1]
    others = talker.code_predictor.get_input_embeddings()
    seen: Tensor = text + nn.functional.pad(codes, (0, 0, ROLE, 0))
    for index, book in enumerate(others, 1):
        seen = seen + nn.functional.pad(book(batch["codes"][..., index]).to(seen.dtype), (0, 0, start, 1))
    return seen


def _predictor_loss(talker: Any, hidden: Tensor, codes: Tensor) -> Tensor:
    """Return the cross entropy of the codes (N, G) but the first, each from `hidden` (N, H) and the codes before it."""
    predictor = talker.code_predictor
    books = [talker.model.codec_embedding, *predictor.get_input_embeddings()]
    dtype = predictor.lm_head[0].weight.dtype
    seen = [hidden, *(books[index](codes[:, index]) for index in range(codes.shape[1] - 1))]
    with _no_half(hidden.device.type):
        states = torch.stack([value.to(dtype) for value in seen], dim=1)
        logits = predictor.forward_finetune(inputs_embeds=states, use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), codes[:, 1:].flatten())


def _no_half(device: str) -> AbstractContextManager[Any]:
    """Leave fp16 autocast: the code predictor overflows in it."""
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.float16:
        return torch.autocast(device, enabled=False)
    return nullcontext()
