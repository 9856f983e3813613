"""One forward pass: hidden states, logits or an embedding, and what can be said of them."""

import time
from pathlib import Path
from typing import Any

from runner.files import written_aside
from runner.workload.job import Job
from runner.workload.outcome import Outcome, all_finite, mean, require_finite
from runner.workload.prompt import prompt_batch
from runner.workload.suits import check_suits

PROBE = "probe.safetensors"
"""a sample of the outputs, by which runs in different precisions are compared"""
PROBE_POSITIONS = 64
PROBE_VALUES = 2**22


def forward(job: Job) -> Outcome:
    """Return the outcome of one pass over the prompt, or over synthetic inputs, without gradients."""
    import torch

    from runner import steps

    model, settings = job.loaded.model, job.settings
    torch.manual_seed(settings.seed)
    check_suits(model, job.loaded.tokenizer, job.config, settings)
    steps.prepare(model, settings)
    inputs = steps.make_inputs(model, settings, tokens=prompt_batch(job.loaded.tokenizer, job.config, settings))
    start = time.monotonic()
    outputs = steps.forward(model, inputs, settings)
    synchronize(settings.device)
    seconds = time.monotonic() - start
    named = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    finite = all(all_finite(value) for value in named.values() if value.is_floating_point())
    require_finite(finite, settings.precision, "the model's outputs are")
    tokens = inputs.get("input_ids")
    details: dict[str, Any] = {"shapes": {name: list(value.shape) for name, value in named.items()}}
    files = []
    logits = named.get("logits")
    if logits is not None and logits.dim() == 3 and tokens is not None:
        if steps.is_causal(model) and tokens.shape[1] > 1:
            details["negative_log_likelihood"] = _negative_log_likelihood(logits, tokens)
        files.append(save_probe({"logits": _probe_rows(logits[0])}, job.folder))
    elif (hidden := named.get("last_hidden_state")) is not None and hidden.dim() == 3:
        embedding = hidden.mean(dim=1, dtype=torch.float32)
        details["embedding_norm"] = float(embedding.norm(dim=-1).mean())
        files.append(save_probe({"embedding": embedding}, job.folder))
    num_tokens = None if tokens is None else tokens.numel()
    return Outcome(
        num_tokens=num_tokens,
        seconds=seconds,
        tokens_per_second=None if num_tokens is None else num_tokens / seconds,
        files=tuple(files),
        finite=finite,
        dtype_histogram=job.loaded.dtype_histogram,
        details=details,
    )


def save_probe(tensors: dict[str, Any], folder: Path) -> str:
    """Write a sample of the outputs as float32 and return the file's name."""
    from safetensors.torch import save_file

    with written_aside(folder / PROBE) as part:
        save_file({name: value.detach().float().cpu().contiguous() for name, value in tensors.items()}, part)
    return PROBE


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given, so that times mean something."""
    import torch

    if not device.startswith("cpu"):
        torch.accelerator.synchronize()


def _probe_rows(logits: Any) -> Any:
    """Return the last positions' logits (P, V), few enough to be a small file."""
    positions = max(1, min(PROBE_POSITIONS, PROBE_VALUES // logits.shape[-1]))
    return logits[-positions:]


def _negative_log_likelihood(logits: Any, tokens: Any) -> float:
    """Return the mean over positions, in nats, a row at a time: a whole float32 copy would be the run's peak."""
    values = []
    for row, following in zip(logits[0, :-1], tokens[0, 1:], strict=True):
        scores = row.float()
        values.append(float(scores.logsumexp(-1) - scores[following]))
    return mean(values)
