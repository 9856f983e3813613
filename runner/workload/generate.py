"""Continue a prompt."""

import time
from typing import Any

from runner.files import write_whole
from runner.workload.forward import synchronize
from runner.workload.job import Job
from runner.workload.outcome import Outcome, require_finite
from runner.workload.probe import ScoresProbe
from runner.workload.prompt import prompt_batch
from runner.workload.suits import check_suits

TEXT = "text.txt"
TOKENS = "tokens.txt"


class Clock:
    """A streamer that notes when each token came; generate() gives it the prompt first."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Take the next tokens of the batch."""
        synchronize(self._device)
        self.times.append(time.monotonic())

    def end(self) -> None:
        """Take the end of the generation."""


class FiniteScores:
    """A logits processor that changes nothing and notes whether scores are not-a-number or infinite."""

    def __init__(self) -> None:
        self.finite = True

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return `scores`; minus infinity is how tokens are ruled out, so it is allowed."""
        self.finite = self.finite and not bool((scores.isnan() | scores.isposinf()).any())
        return scores


def generate(job: Job) -> Outcome:
    """Return the outcome of generating max_new_tokens tokens, or fewer where the model ends earlier."""
    import torch

    from runner import steps

    model, settings = job.loaded.model, job.settings
    check_suits(model, job.loaded.tokenizer, job.config, settings)
    torch.manual_seed(settings.seed)
    steps.prepare(model, settings)
    inputs = steps.make_inputs(model, settings, tokens=prompt_batch(job.loaded.tokenizer, job.config, settings))
    clock, scores = Clock(settings.device), FiniteScores()
    start = time.monotonic()
    with ScoresProbe(job.folder) as probe:
        produced = steps.generate(model, inputs, settings, streamer=clock, processors=[scores, probe])
        synchronize(settings.device)
        seconds = time.monotonic() - start
        require_finite(scores.finite, settings.precision, "the scores are")
        times = clock.times[1:]
        num_new = len(times)
        sample = probe.finish(produced[0][-num_new:])
    text, file = _text(job, produced[0])
    return Outcome(
        num_tokens=num_new * settings.micro_batch_size,
        seconds=seconds,
        tokens_per_second=((num_new - 1) * settings.micro_batch_size / (times[-1] - times[0]) if num_new > 1 else None),
        time_to_first_token=times[0] - start if times else None,
        text=text,
        files=(file, sample),
        finite=scores.finite,
        dtype_histogram=job.loaded.dtype_histogram,
        details={
            "tokens": produced[0].tolist(),
            "ended_early": num_new < settings.max_new_tokens,
            "prompt_tokens": settings.sequence_length,
        },
    )


def _text(job: Job, ids: Any) -> tuple[str | None, str]:
    """Write the first row of the batch, as text where there is a tokenizer, and return it and the file's name."""
    tokenizer = job.loaded.tokenizer
    if tokenizer is None:
        write_whole(job.folder / TOKENS, " ".join(str(int(token)) for token in ids) + "\n")
        return None, TOKENS
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    write_whole(job.folder / TEXT, text + "\n")
    return text, TEXT
