"""How far a precision's outputs are from the highest precision's, on the same inputs and seed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PROBE = "probe.safetensors"
ORDER = ("fp32", "bf16", "fp16")
"""the first that is there is what the others are compared with"""

Entry = tuple[str, Path, Mapping[str, Any]]
"""(job, path of record.json, record)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """One run beside its reference. Only what the workload has is set."""

    reference: str
    """job of the run that it was compared with"""
    kl: float | None = None
    """mean over positions of KL(reference ‖ run) of the next-token distributions, in nats"""
    top1_agreement: float | None = None
    """share of positions at which both find the same token likeliest, 0 to 1"""
    cosine: float | None = None
    """the least cosine of two embeddings over the batch"""
    loss_difference: float | None = None
    """the largest absolute difference of two losses of the same step"""


def fidelities(records: Sequence[Entry]) -> dict[str, Fidelity]:
    """Return job → how it compares, for (job, path of record.json, record) that share model, workload and inputs.

    Runs without a comparable one, and references themselves, are left out.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in records:
        if entry[2].get("status") == "completed" and entry[2].get("plan"):
            groups.setdefault(_same_inputs(entry[2]), []).append(entry)
    found: dict[str, Fidelity] = {}
    for group in groups.values():
        precisions = {entry[2]["plan"]["precision"] for entry in group}
        best = next((precision for precision in ORDER if precision in precisions), None)
        reference = next((entry for entry in group if entry[2]["plan"]["precision"] == best), None)
        if reference is None or len(precisions) < 2:
            continue
        for entry in group:
            if entry[2]["plan"]["precision"] != best:
                compared = _compare(reference, entry)
                if compared is not None:
                    found[entry[0]] = compared
    return found


def _same_inputs(record: Mapping[str, Any]) -> str:
    """Return a key that runs share when only how they were computed differs."""
    settings = record["plan"]["settings"]
    kept = (
        "workload", "micro_batch_size", "sequence_length", "steps", "grad_accum_steps", "optimizer", "learning_rate",
        "weight_decay", "momentum", "seed",
    )  # fmt: skip
    asked = (record.get("config") or {}).get("workload") or {}
    words = [asked.get(name) for name in ("prompt", "prompt_file", "text_file")]
    checkpoint = (record.get("checkpoint") or {}).get("content_hash")
    return json.dumps([checkpoint, words, [settings.get(name) for name in kept]])


def _compare(
    reference: tuple[str, Path, Mapping[str, Any]], run: tuple[str, Path, Mapping[str, Any]]
) -> Fidelity | None:
    ours, theirs = _losses(run[2]), _losses(reference[2])
    if ours and len(ours) == len(theirs):
        largest = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        return Fidelity(reference=reference[0], loss_difference=largest)
    tensors, expected = _probe(run[1]), _probe(reference[1])
    if "logits" in tensors and tensors["logits"].shape == expected.get("logits", np.empty(0)).shape:
        kl, agreement = logits_fidelity(expected["logits"], tensors["logits"])
        return Fidelity(reference=reference[0], kl=kl, top1_agreement=agreement)
    if "embedding" in tensors and tensors["embedding"].shape == expected.get("embedding", np.empty(0)).shape:
        return Fidelity(reference=reference[0], cosine=embedding_fidelity(expected["embedding"], tensors["embedding"]))
    return None


def logits_fidelity(reference: Any, run: Any) -> tuple[float, float]:
    """Return mean KL(reference ‖ run) in nats and top-1 agreement of logits (positions, vocabulary)."""
    p, q = _log_softmax(reference.astype(np.float64)), _log_softmax(run.astype(np.float64))
    kl = float((np.exp(p) * (p - q)).sum(axis=-1).mean())
    return max(0.0, kl), float((reference.argmax(axis=-1) == run.argmax(axis=-1)).mean())


def embedding_fidelity(reference: Any, run: Any) -> float:
    """Return the least cosine between the rows of two embeddings (batch, hidden)."""
    a, b = reference.astype(np.float64), run.astype(np.float64)
    return float(((a * b).sum(axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).min())


def _log_softmax(logits: Any) -> Any:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _losses(record: Mapping[str, Any]) -> list[float]:
    losses = (record.get("outcome") or {}).get("losses") or []
    return [value for value in losses if isinstance(value, float)]


def _probe(record: Path) -> dict[str, Any]:
    path = record.parent / PROBE
    if not path.exists():
        return {}
    from safetensors.numpy import load_file

    return dict(load_file(path))
