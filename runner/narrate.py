"""Say what a run does, in the words that its record uses. It only logs; the log's handlers know about terminals."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.checkpoint import Checkpoint
from runner.hardware import Hardware
from runner.logs import TerminalBar
from runner.meter import MemoryStats
from runner.predict.footprint import Footprint
from runner.record import Record, measured_peak, predicted_peak, prediction_error
from runner.resolve import Plan
from runner.units import format_count, format_seconds, format_size

PROGRESS_SECONDS = 5.0
"""between two lines that tell how far a long load or download is"""

PARTS = (
    "parameters", "buffers", "gradients", "optimizer_state", "activations", "kv_cache", "workspace", "overhead",
)  # fmt: skip


@dataclass(slots=True)
class Narrator:
    """Tells one run to one logger."""

    log: logging.Logger
    bar: TerminalBar | None = None
    _told: float = field(default_factory=time.monotonic)
    _phase: str = "load"

    def hardware(self, hardware: Hardware) -> None:
        """Tell the device, its memory and what of it may be used."""
        self.log.info(
            "device      %s · %s · %s in all, %s free, %s may be used (%s)",
            hardware.device,
            hardware.name,
            format_size(hardware.total),
            format_size(hardware.free),
            format_size(hardware.budget),
            hardware.budget_source,
        )
        for note in hardware.notes:
            self.log.info("            %s", note)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Tell what is on disk."""
        stored = ", ".join(sorted(checkpoint.stored_dtypes)) or "unknown dtypes"
        self.log.info(
            "checkpoint  %s · %s · %s parameters · %s in %s",
            checkpoint.id or checkpoint.path or checkpoint.source,
            checkpoint.architecture,
            format_count(checkpoint.num_parameters),
            format_size(checkpoint.num_bytes),
            stored,
        )

        codec = checkpoint.codec
        if codec is not None:
            self.log.info(
                "codec       %s · %s parameters · %s in %s", codec.architecture, format_count(codec.num_parameters),
                format_size(codec.num_bytes), ", ".join(sorted(codec.stored_dtypes)),
            )  # fmt: skip

    def plan(self, plan: Plan) -> None:
        """Tell each choice with its reason, and what the run will need."""
        for choice in plan.choices:
            if choice.name != "device":
                self.log.info(
                    "%-11s %s (asked: %s): %s", _short(choice.name), choice.value, choice.asked, choice.reason
                )
        self.log.info("predicted   %s", footprint_sentence(plan.footprint))
        if plan.footprint.parts:
            parts = (f"{name.replace('_', ' ')} {format_size(size)}" for name, size in plan.footprint.parts.items())
            self.log.info("parts       %s", ", ".join(parts))
        for note in plan.footprint.notes:
            self.log.info("            %s", note)
        if plan.fits:
            self.log.info(
                "fits        in %s (%s), %s kept clear", format_size(plan.budget), plan.budget_source,
                format_size(plan.margin),
            )  # fmt: skip
        elif plan.forced:
            self.log.warning("forced      it does not fit: %s short (memory.force=true)", format_size(plan.shortfall))

    def waits(self, sentence: str) -> None:
        """Tell what this run waits for before it may go on."""
        self.log.info("waits       %s", sentence)

    def phase(self, name: str) -> None:
        """Note which phase the worker is in."""
        self._phase = name
        self._told = time.monotonic()

    def progress(self, done: int, total: int) -> None:
        """Tell how many bytes of `total` are done: on a terminal as a bar, elsewhere in a line now and then."""
        if self.bar is not None:
            self.bar.draw(self._phase, done, total)
            return
        now = time.monotonic()
        if total and now - self._told >= PROGRESS_SECONDS:
            self._told = now
            self.log.info(
                "%-11s %s of %s (%d %%)", self._phase, format_size(done), format_size(total), 100 * done // total
            )

    def sound(self, seconds: float, expected: float) -> None:
        """Tell how many seconds of sound are made, of how many the text may come to."""
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            self.log.info("%-11s %.1f s of sound, of about %.0f s", "speak", seconds, expected)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.close()

    def memory(self, phase: str, stats: MemoryStats) -> None:
        """Tell what a phase was measured to take."""
        parts = [
            f"{name} {format_size(value)}"
            for name, value in (
                ("allocated", stats.allocated),
                ("peak allocated", stats.peak_allocated),
                ("peak reserved", stats.peak_reserved),
                ("resident", stats.resident),
                ("peak resident", stats.peak_resident),
                ("process on device", stats.process_device),
            )
            if value is not None
        ]
        self.log.info("%-11s %s", phase, ", ".join(parts) or "memory unknown")

    def outcome(self, outcome: Any, plan: Plan, record: Record) -> None:
        """Tell what the workload produced, and how right the prediction was."""
        speed = getattr(outcome, "tokens_per_second", None)
        details = getattr(outcome, "details", {})
        if "audio_seconds" in details:
            self._spoken(details)
        elif speed:
            first = getattr(outcome, "time_to_first_token", None)
            after = f", first token after {format_seconds(first)}" if first is not None else ""
            self.log.info("speed       %.1f tokens/s%s", speed, after)
        losses = getattr(outcome, "losses", None)
        if losses:
            self.log.info("losses      %s", " ".join(f"{loss:.4f}" for loss in list(losses)[:20]))
        text = getattr(outcome, "text", None)
        if text:
            self.log.info("text        %s", text.strip())
        errors = prediction_error(record)
        for phase in ("load", "work"):
            error = errors[phase]
            measured, basis = measured_peak(record.memory.get(phase), plan)
            if isinstance(error, float):
                predicted = predicted_peak(plan, phase, basis)
                self.log.info(
                    "%-11s predicted %s, measured %s (%s): %+.2f %%",
                    f"{phase} peak", format_size(predicted), format_size(measured), basis, 100 * error,
                )  # fmt: skip

    def _spoken(self, details: Mapping[str, Any]) -> None:
        self.log.info(
            "sound       %.2f s at %d Hz, %d sentences, %d frames; %.2f s of work for a second of sound",
            details["audio_seconds"], details["sample_rate"], details["num_sentences"], details["num_frames"],
            details["real_time_factor"],
        )  # fmt: skip
        spent = ", ".join(f"{name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in details["seconds"].items())
        self.log.info("time        %s", spent)
        for note in details["notes"]:
            self.log.info("            %s", note)


def footprint_sentence(footprint: Footprint) -> str:
    """Return the peak, its moment and its parts in one sentence."""
    parts = ", ".join(
        f"{name.replace('_', ' ')} {format_size(size)}" for name in PARTS if (size := getattr(footprint, name))
    )
    return f"{format_size(footprint.peak)} at the peak, in {footprint.where}: {parts}"


def _short(name: str) -> str:
    return {
        "activation_checkpointing": "checkpoint.",
        "optimizer_implementation": "optimizer",
        "host_allocator": "malloc",
        "sequence_length": "length",
        "code_predictor_dtype": "predictor",
        "codec_dtype": "codec",
        "text_embedding": "text embed.",
        "codec_chunk": "chunk",
        "kernel_cache": "kernels",
    }.get(name, name)
