"""Weights that share one tensor: which names mean the same bytes, without building the model."""

from collections.abc import Mapping
from typing import Any

TIED_NAMES: dict[str, tuple[str, ...]] = {
    # the first is kept; the others are the same tensor
    "decoder": ("model.embed_tokens.weight", "lm_head.weight"),
    "gpt2": ("transformer.wte.weight", "wte.weight", "lm_head.weight"),
    "t5": ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
    "bart": (
        "model.shared.weight", "shared.weight", "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
        "lm_head.weight",
    ),
    "whisper": ("model.decoder.embed_tokens.weight", "proj_out.weight"),
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "roberta": ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    "modernbert": ("model.embeddings.tok_embeddings.weight", "decoder.weight"),
}  # fmt: skip

FAMILIES = {
    "gpt2": "gpt2", "t5": "t5", "mt5": "t5", "umt5": "t5", "longt5": "t5", "bart": "bart", "mbart": "bart",
    "pegasus": "bart", "whisper": "whisper", "bert": "bert", "roberta": "roberta", "modernbert": "modernbert",
}  # fmt: skip
"""model type → entry of TIED_NAMES; any other is taken for a decoder"""

TIED_BY_DEFAULT = frozenset({
    "gpt2", "t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "whisper", "bert", "roberta", "modernbert",
    "gemma", "gemma2", "gemma3", "gemma3_text",
})  # fmt: skip
"""model types that tie when config.json is silent; the class defaults of transformers 4.57 and 5.24"""

ALWAYS_SHARED = {"t5": ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")}
"""names that are one tensor even where the head is not tied"""


def tied_pairs(config: Mapping[str, Any], model_type: str, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """Return (kept, the same again) for the names in a checkpoint that mean one tensor.

    `names` are those that the checkpoint stores. A name that is implied but not stored is returned too.
    """
    family = FAMILIES.get(model_type, "decoder")
    group = TIED_NAMES[family] if _ties(config, model_type) else ALWAYS_SHARED.get(family, ())
    present = [name for name in group if name in names]
    if not present:
        return ()
    kept = present[0]
    return tuple((kept, name) for name in group if name != kept and (name in names or name == group[-1]))


def _ties(config: Mapping[str, Any], model_type: str) -> bool:
    text = config.get("text_config")
    for values in (config, text if isinstance(text, Mapping) else {}):
        if "tie_word_embeddings" in values:
            return bool(values["tie_word_embeddings"])
    return model_type in TIED_BY_DEFAULT
