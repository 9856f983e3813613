"""Train the embedded model: `python -m runner.embedded.make OUT`.

The text is what every Python installation carries: the topics of `help()` and the docstrings of the standard
library. The same Python, torch and machine give the same bits: one thread, seeded, on the CPU.
"""

import argparse
import ast
import copy
import inspect
import json
import math
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

END = "<|endoftext|>"
HELD_OUT = 50
"""every 50th document is kept out of training"""
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip"}
SHORTEST_DOCSTRING = 60

CONFIG: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
}
QUICK: dict[str, Any] = CONFIG | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How long and on what to train."""

    steps: int = 2400
    batch: int = 8
    length: int = 512
    vocabulary: int = 1536
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.1
    seed: int = 0
    most_documents: int | None = None


def documents() -> list[str]:
    """Return the training text: help() topics, then docstrings, both in a fixed order."""
    import pydoc_data.topics

    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    return [text for text in (_tidy(item) for item in [*topics, *_docstrings()]) if text]


def _docstrings() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        if SKIPPED & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                if len(text) >= SHORTEST_DOCSTRING and text not in seen:
                    seen.add(text)
                    yield text


def _tidy(text: str) -> str:
    """Return the text without rules of repeated marks and without trailing space."""
    lines = (line.rstrip() for line in inspect.cleandoc(text).splitlines())
    kept = [line for line in lines if not (line and len(set(line.strip())) == 1 and len(line.strip()) > 2)]
    return "\n".join(kept).strip()


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer (a tokenizers.Tokenizer), which can encode any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train(model: Any, stream: Any, recipe: Recipe) -> list[float]:
    """Train on windows of the token stream, a 1-D int64 tensor, and return the loss of each step."""
    import torch

    generator = torch.Generator().manual_seed(recipe.seed)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
    )
    losses: list[float] = []
    began = time.monotonic()
    for step in range(recipe.steps):
        progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
        scale = (step + 1) / recipe.warmup if progress < 0 else 0.05 + 0.475 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, scale)
        starts = torch.randint(0, len(stream) - recipe.length, (recipe.batch,), generator=generator)
        batch = torch.stack([stream[start : start + recipe.length] for start in starts.tolist()])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if step % 100 == 0 or step == recipe.steps - 1:
            print(f"step {step:5d}  loss {losses[-1]:.4f}  {time.monotonic() - began:6.0f} s", flush=True)
    return losses


def evaluate(model: Any, tokenizer: Any, texts: Sequence[str], length: int) -> tuple[float, float]:
    """Return the mean loss a token, in nats, and the bits a byte over `texts`."""
    import torch

    nats, tokens, size = 0.0, 0, 0
    with torch.no_grad():
        for text in texts:
            ids = tokenizer.encode(text).ids[:length]
            if len(ids) < 2:
                continue
            batch = torch.tensor([ids])
            nats += float(model(input_ids=batch, labels=batch).loss) * (len(ids) - 1)
            tokens += len(ids) - 1
            size += len(tokenizer.decode(ids[1:]).encode())
    return nats / tokens, nats / math.log(2) / size


def make(out: Path, recipe: Recipe, config: dict[str, Any]) -> dict[str, float]:
    """Train, write the checkpoint folder `out`, and return what was measured on the saved bf16 weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    torch.use_deterministic_algorithms(True)
    texts = documents()[: recipe.most_documents]
    held_out = texts[::HELD_OUT]
    kept = [text for index, text in enumerate(texts) if index % HELD_OUT]
    tokenizer = train_tokenizer(kept, recipe.vocabulary)
    end = tokenizer.token_to_id(END)
    stream = torch.tensor([token for item in tokenizer.encode_batch(kept) for token in (*item.ids, end)])
    size = sum(len(text.encode()) for text in kept)
    print(f"{len(kept)} documents, {size} bytes, {len(stream)} tokens; {len(held_out)} documents held out", flush=True)
    tokens = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": end}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=tokenizer.get_vocab_size(), **tokens, **config))
    losses = train(model, stream, recipe)
    _save(model, tokenizer, out)
    stored = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    nats, bits = evaluate(stored, tokenizer, held_out, recipe.length)
    figures = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "first_loss": losses[0],
        "last_loss": sum(losses[-50:]) / len(losses[-50:]),
        "held_out_loss": nats,
        "held_out_bits_per_byte": bits,
    }
    print(json.dumps(figures, indent=2), flush=True)
    return figures


def _save(model: Any, tokenizer: Any, out: Path) -> None:
    """Write weights in bf16, configuration and tokenizer as transformers 4 and 5 both read them."""
    import torch

    out.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    legacy = {"rope_theta": CONFIG["rope_theta"], "torch_dtype": "bfloat16"}  # transformers 4 reads these names
    (out / "config.json").write_text(json.dumps(config | legacy, indent=2, sort_keys=True) + "\n")
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save(str(out / "tokenizer.json"))
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": model.config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(values, indent=2) + "\n")
    end = {"eos_token_id": model.config.eos_token_id, "pad_token_id": model.config.pad_token_id}
    (out / "generation_config.json").write_text(json.dumps(end, indent=2) + "\n")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m runner.embedded.make", description=__doc__)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    parser.add_argument("--quick", action="store_true", help="a tiny model on little text, to see that it works")
    given = parser.parse_args()
    recipe, config = Recipe(steps=given.steps, seed=given.seed), CONFIG
    if given.quick:
        recipe = Recipe(
            steps=min(given.steps, 30),
            seed=given.seed,
            batch=4,
            length=64,
            vocabulary=320,
            warmup=5,
            most_documents=300,
        )
        config = QUICK
    make(given.out, recipe, config)


if __name__ == "__main__":
    main()
