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
Outputs = Mapping[str, Any]
"""name (losses, logits or embedding) → array"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """One run beside its reference. Only what the workload has is set; nothing in the reference itself."""

    reference: str
    """job of the run that it was compared with; in the reference, its own"""
    outputs: str
    """what was compared: logits, embedding or losses"""
    kl: float | None = None
    """mean over positions of KL(reference ‖ run) of the next-token distributions, in nats; of two generations
    only the positions with the same tokens before them count"""
    top1_agreement: float | None = None
    """share of positions at which both find the same token likeliest, 0 to 1"""
    cosine: float | None = None
    """the least cosine of two embeddings over the batch"""
    loss_difference: float | None = None
    """the largest absolute difference of two losses of the same step"""


def fidelities(records: Sequence[Entry]) -> dict[str, Fidelity]:
    """Return job → how it compares, for (job, path of record.json, record) that share model, workload and inputs.

    The reference is the first of the highest precision that left outputs. Runs of which nothing comparable is
    there, and groups of one precision alone, are left out.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in records:
        if entry[2].get("status") == "completed" and _mapping(entry[2].get("plan")):
            groups.setdefault(_same_inputs(entry[2]), []).append(entry)
    found: dict[str, Fidelity] = {}
    for group in groups.values():
        if len({_precision(entry) for entry in group}) > 1:
            found |= _in_group([entry for entry in group if _precision(entry) in ORDER])
    return found


def _in_group(group: Sequence[Entry]) -> dict[str, Fidelity]:
    """Compare runs on the same inputs with the first of the highest precision; outputs are read one at a time."""
    found: dict[str, Fidelity] = {}
    reference: tuple[str, Outputs] | None = None
    for entry in sorted(group, key=lambda entry: ORDER.index(_precision(entry))):
        outputs = _outputs(entry)
        if reference is None:
            reference = (entry[0], outputs) if outputs else None
        elif (compared := _compare(*reference, outputs)) is not None:
            found[entry[0]] = compared
    if reference is None or not found:
        return {}
    kinds = {compared.outputs for compared in found.values()}
    return {reference[0]: Fidelity(reference=reference[0], outputs=kinds.pop()), **found}


def _precision(entry: Entry) -> str:
    return str(entry[2]["plan"].get("precision"))


def _same_inputs(record: Mapping[str, Any]) -> str:
    """Return a key that runs share when only how they were computed differs.

    The content hash covers headers, not values, so where the weights came from counts too.
    """
    settings = _mapping(record["plan"].get("settings"))
    kept = (
        "workload", "micro_batch_size", "sequence_length", "steps", "grad_accum_steps", "optimizer", "learning_rate",
        "weight_decay", "momentum", "temperature", "seed",
    )  # fmt: skip
    asked = _mapping(_mapping(record.get("config")).get("workload"))
    words = [asked.get(name) for name in ("prompt", "prompt_file", "text_file")]
    checkpoint = _mapping(record.get("checkpoint"))
    weights = [checkpoint.get(name) for name in ("source", "id", "revision", "content_hash")]
    if checkpoint.get("source") == "local":
        weights.append(checkpoint.get("path"))
    return json.dumps([weights, words, [settings.get(name) for name in kept]])


def _compare(job: str, reference: Outputs, run: Outputs) -> Fidelity | None:
    for name, array in run.items():
        if name == "tokens":
            continue
        expected = reference.get(name)
        if "tokens" in run and "tokens" in reference and expected is not None:
            both = _same_history(reference["tokens"], run["tokens"])
            expected, array = expected[:both], array[:both]
        if expected is None or expected.shape != array.shape:
            continue
        if name == "losses":
            return Fidelity(reference=job, outputs=name, loss_difference=float(np.abs(expected - array).max()))
        if name == "logits":
            kl, agreement = logits_fidelity(expected, array)
            return Fidelity(reference=job, outputs=name, kl=kl, top1_agreement=agreement)
        return Fidelity(reference=job, outputs=name, cosine=embedding_fidelity(expected, array))
    return None


def _same_history(reference: Any, run: Any) -> int:
    """Return at how many positions two generations had the same tokens before them: one more than they agree on."""
    both = min(len(reference), len(run))
    differ = np.flatnonzero(reference[:both] != run[:both])
    return int(differ[0]) + 1 if len(differ) else both


def logits_fidelity(reference: Any, run: Any) -> tuple[float, float]:
    """Return mean KL(reference ‖ run) in nats and top-1 agreement of logits (positions, vocabulary).

    A token that the reference rules out (minus infinity) adds nothing; one that only the run rules out makes the
    divergence infinite; a logit that is not a number makes it not a number.
    """
    rows = []
    for expected, found in zip(reference.astype(np.float64), run.astype(np.float64), strict=True):
        p, q = _log_softmax(expected), _log_softmax(found)
        possible = p != -np.inf
        rows.append(float((np.exp(p[possible]) * (p[possible] - q[possible])).sum()))
    kl = float(np.mean(rows))
    # rounding leaves values below zero for equal distributions; a comparison keeps not-a-number as it is
    return 0.0 if kl < 0 else kl, float((reference.argmax(axis=-1) == run.argmax(axis=-1)).mean())


def embedding_fidelity(reference: Any, run: Any) -> float:
    """Return the least cosine between the rows of two embeddings (batch, hidden); not-a-number for a row of zeros."""
    a, b = reference.astype(np.float64), run.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return float(((a * b).sum(axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).min())


def _log_softmax(logits: Any) -> Any:
    with np.errstate(invalid="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _outputs(entry: Entry) -> Outputs:
    """Return what a run can be compared by: its losses, else its probe; nothing where it left neither."""
    losses = _mapping(entry[2].get("outcome")).get("losses")
    if losses:
        try:  # the record has not-a-number and infinities as words, which float reads
            return {"losses": np.array([float(value) for value in losses], np.float64)}
        except (TypeError, ValueError):
            return {}
    return _probe(entry[1])


def _probe(record: Path) -> Outputs:
    """Return logits (positions, vocabulary) and embedding (batch, hidden) beside a record, where they are whole.

    A generation's logits come with the tokens (positions,) that were chosen.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = record.parent / PROBE
    if not path.exists():
        return {}
    try:
        tensors = load_file(path)
    except (OSError, ValueError, SafetensorError):
        return {}  # a run without outputs to compare: the row shows them as unknown
    return {
        name: tensors[name]
        for name, dimensions in (("logits", 2), ("embedding", 2), ("tokens", 1))
        if name in tensors and tensors[name].ndim == dimensions and tensors[name].size
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` where it is a mapping, as a sound record has it there."""
    return value if isinstance(value, Mapping) else {}
