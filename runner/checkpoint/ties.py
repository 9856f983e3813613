"""Which weights a model shares, told from config and names alone.

transformers ties when config.json says so; names and defaults are those of its model classes' `_tied_weights_keys`
and configurations, which agree between 4.57 and 5.24 for the model types below. What config.json leaves open is a
guess, and the checkpoint's notes say so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

UNTIED_BY_DEFAULT = frozenset({
    "apertus", "arcee", "bamba", "bitnet", "codegen", "deepseek_v2", "deepseek_v3", "diffllama", "dots1",
    "exaone4", "falcon_h1", "fsmt", "fuyu", "git", "glm", "glm4", "glm4_moe", "glm4v_text", "gpt_neox", "gpt_oss",
    "gptj", "granite", "granitemoe", "helium", "idefics", "idefics2", "idefics3", "imagegpt", "jamba", "llama",
    "llama4", "llama4_text", "llava", "llava_next", "mamba2", "minimax", "ministral", "mistral", "mixtral",
    "mllama_text_model", "moshi", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "persimmon", "phi", "phi3",
    "phimoe", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen3",
    "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_text", "reformer", "rembert", "rwkv",
    "seed_oss", "smolvlm", "stablelm", "xlstm",
})  # fmt: skip
"""model types whose configuration class says tie_word_embeddings=False; every other one says True"""

_INPUTS = (
    "model.embed_tokens.weight", "embed_tokens.weight", "transformer.wte.weight", "wte.weight", "shared.weight",
    "model.shared.weight", "model.decoder.embed_tokens.weight", "decoder.embed_tokens.weight",
    "model.language_model.embed_tokens.weight", "language_model.model.embed_tokens.weight",
    "gpt_neox.embed_in.weight",
)  # fmt: skip
_ENCODERS = tuple(f"{prefix}embeddings.word_embeddings.weight" for prefix in (
    "bert.", "roberta.", "xlm_roberta.", "camembert.", "distilbert.", "albert.", "electra.", "deberta.", "",
))  # fmt: skip

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "lm_head.weight": _INPUTS,
    "language_model.lm_head.weight": ("language_model.model.embed_tokens.weight",),
    "embed_out.weight": ("gpt_neox.embed_in.weight",),
    "proj_out.weight": ("model.decoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    "cls.predictions.decoder.weight": _ENCODERS,
    "lm_head.decoder.weight": _ENCODERS,
    "vocab_projector.weight": _ENCODERS,
    "predictions.decoder.weight": _ENCODERS,
    "generator_lm_head.weight": _ENCODERS,
    "decoder.weight": ("model.embeddings.tok_embeddings.weight",),
}
"""output matrix → input embeddings that it may share, tied when the configuration ties word embeddings"""
_CODERS: Mapping[str, tuple[str, ...]] = {
    f"{prefix}{part}.embed_tokens.weight": (f"{prefix}shared.weight",)
    for prefix in ("", "model.", "transformer.") for part in ("encoder", "decoder")
}  # fmt: skip
ALWAYS: Mapping[str, tuple[str, ...]] = {
    **_CODERS,
    "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    "lm_head.decoder.bias": ("lm_head.bias",),
    "predictions.decoder.bias": ("predictions.bias",),
}  # fmt: skip
"""names that share one tensor whatever the configuration says"""
_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "ForPreTraining")


def ties_word_embeddings(config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether the model shares its input and output embeddings, and whether that is a guess.

    A flag in text_config speaks where the outer one is absent, as in transformers' get_text_config.
    """
    for part in (config, config.get("text_config"), config.get("decoder")):
        if isinstance(part, Mapping) and isinstance(part.get("tie_word_embeddings"), bool):
            return part["tie_word_embeddings"], False
    return config.get("model_type") not in UNTIED_BY_DEFAULT, True


def find_ties(
    shapes: Mapping[str, Sequence[int]], *, config: Mapping[str, Any], architecture: str
) -> tuple[list[tuple[str, str]], bool]:
    """Return pairs (kept, shared with it), and whether the configuration left that open.

    `shapes` are those of the stored tensors. The second name of a pair may be absent from them: then the model makes
    it from the first.
    """
    tied, guessed = ties_word_embeddings(config)
    pairs: list[tuple[str, str]] = []
    used_guess = False
    for table, holds in ((ALWAYS, True), (OUTPUTS, tied)):
        for copy, candidates in table.items():
            kept = next((name for name in candidates if name in shapes and name != copy), None)
            if kept is None or not holds:
                continue
            if copy in shapes:
                matches = shapes[copy] == shapes[kept]
            else:
                matches = _is_implied(copy, config=config, architecture=architecture)
            if matches:
                pairs.append((kept, copy))
                used_guess |= table is OUTPUTS and guessed
    return pairs, used_guess


def _is_implied(copy: str, *, config: Mapping[str, Any], architecture: str) -> bool:
    """Whether the model has `copy` although it is not stored: its output, or a coder's look at `shared`."""
    output = _output_name(config, architecture)
    return output is not None and (
        copy.removesuffix(".bias") == output.removesuffix(".weight") or copy == output or copy in _CODERS
    )


def _output_name(config: Mapping[str, Any], architecture: str) -> str | None:
    if not architecture.endswith(_HEADS):
        return None
    by_type = {
        "bert": "cls.predictions.decoder.weight", "albert": "predictions.decoder.weight",
        "modernbert": "decoder.weight", "distilbert": "vocab_projector.weight", "whisper": "proj_out.weight",
        "electra": "generator_lm_head.weight", "roberta": "lm_head.decoder.weight",
        "xlm-roberta": "lm_head.decoder.weight", "camembert": "lm_head.decoder.weight",
    }  # fmt: skip
    return by_type.get(str(config.get("model_type")), "lm_head.weight")
