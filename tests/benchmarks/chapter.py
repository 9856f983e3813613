"""Resident memory while a long chapter is spoken by a tiny Qwen3-TTS model, on the CPU; it asserts nothing.

Run it from the repository's root, where qwen-tts is installed:
OMP_NUM_THREADS=1 python tests/benchmarks/chapter.py [--minutes 20] [--frames 150] [--precision auto]
The weights are random, so a sentence ends by chance, after 60 frames on average. The chapter is planned in one worker and spoken
in another, as `python -m runner` does; each sample of the memory is put beside the sound that was made by then.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

MiB = 2**20
FRAMES = 60
"""of a sentence on average: of the 65 codes that the tiny talker may choose as the first, one ends it"""
SENTENCE = "This is sentence number {} of a chapter that says little"
MORE = (", and says it slowly", ", as one who has all the time in the world", ", and then goes on")


def chapter(folder: Path, num_sentences: int) -> Path:
    """Write sentences of four lengths, ten to a paragraph, and return the file."""
    lines = [SENTENCE.format(index + 1) + "".join(MORE[: index % 4]) + "." for index in range(num_sentences)]
    paragraphs = [" ".join(lines[start : start + 10]) for start in range(0, len(lines), 10)]
    (folder / "chapter.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
    return folder / "chapter.txt"


def speak(folder: Path, minutes: float, frames: int, precision: str) -> tuple[Any, Any, list[tuple[float, int]]]:
    """Return the plan, what came of it, and (seconds of sound made, resident bytes) over the run."""
    from runner import checkpoint as checkpoints
    from runner import embedded, worker
    from runner.config import ModelConfig, Precision, PrecisionConfig, RunConfig, Source, Workload, WorkloadConfig
    from runner.hardware import describe
    from runner.isolate import run_isolated
    from runner.speech.parts import FRAME_SECONDS
    from tests.qwen3_tts_makers import whole

    sentences = int(1.1 * minutes * 60 / (min(frames, FRAMES) * FRAME_SECONDS)) + 1
    text = chapter(folder, sentences)
    config = RunConfig(
        model=ModelConfig(source=Source.local, path=str(whole(folder / "model"))),
        workload=WorkloadConfig(name=Workload.speak, text_file=str(text), max_new_tokens=frames),
        precision=PrecisionConfig(name=Precision(precision)),
    )
    machine = describe(config.hardware, environment=os.environ)
    found = checkpoints.inspect(config.model, source=config.source, environment=os.environ, embedded=embedded.FOLDER)
    plan = run_isolated(worker.make_plan, config, machine, found, on_message=lambda _: None)
    samples: list[tuple[float, int]] = []
    made, phase = 0.0, ""

    def take(message: Any) -> None:
        nonlocal made, phase
        if message.kind == "phase":
            phase = message.value
        elif message.kind == "sound":
            made = message.value[0]
        elif message.kind == "sample" and phase == "work" and message.value[1] is not None:
            samples.append((made, message.value[1]))

    done = run_isolated(worker.work, config, replace(plan, forced=True), machine, found, folder, on_message=take)
    return plan, done, samples


def main(minutes: float, frames: int, precision: str) -> None:
    """Print the memory for each minute of sound, the first and the last quarter, and the time it took."""
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        plan, done, samples = speak(Path(name), minutes, frames, precision)
        took = time.monotonic() - began
    details = done.outcome.details
    print("minute of sound   resident: median        max", flush=True)
    for minute in range(int(max(made for made, _ in samples) // 60) + 1):
        held = [resident for made, resident in samples if made // 60 == minute]
        if held:
            print(f"{minute + 1:15}  {statistics.median(held) / MiB:12.1f} MiB  {max(held) / MiB:8.1f} MiB")
    total = details["audio_seconds"]
    for words, low, high in (("first", 0.0, 0.25), ("last", 0.75, 1.01)):
        held = [resident for made, resident in samples if low * total <= made < high * total]
        print(f"{words} quarter: median {statistics.median(held) / MiB:.1f} MiB, max {max(held) / MiB:.1f} MiB")
    print(
        f"{details['num_sentences']} sentences, {details['num_frames']} frames, {total / 60:.1f} min of sound in "
        f"{done.outcome.seconds / 60:.1f} min: real-time factor {details['real_time_factor']:.2f}, "
        f"{done.outcome.tokens_per_second:.1f} frames a second; {took / 60:.1f} min in all"
    )
    peak = max(stats.peak_resident for stats in done.memory.values())
    print(f"predicted {plan.footprint.peak / MiB:.1f} MiB at the peak, measured {peak / MiB:.1f} MiB")
    print(f"precision {plan.settings.precision}, seconds by part {details['seconds']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--frames", type=int, default=150, help="limit of one sentence, 80 ms each")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16", "fp16"))
    asked = parser.parse_args()
    main(asked.minutes, asked.frames, asked.precision)
