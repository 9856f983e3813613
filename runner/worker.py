"""What a worker process does: make the plan, or carry it out. Everything here may import torch."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.checkpoint import Checkpoint
from runner.config import RunConfig
from runner.errors import OutOfMemory
from runner.hardware import Hardware
from runner.isolate import Message, Send
from runner.meter import MemoryStats
from runner.resolve import Plan, resolve
from runner.settings import Settings
from runner.units import format_size

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """What came of a plan that was carried out."""

    outcome: Any
    memory: dict[str, MemoryStats]
    timing: dict[str, float]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Stopwatch:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """Book the time since the last lap under `name`."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._began
        self._began = now


def make_plan(send: Send, config: RunConfig, hardware: Hardware, checkpoint: Checkpoint) -> Plan:
    """Return the plan, its footprint traced on the model's real class under fake tensors."""
    from runner.predict import measure_base, predict
    from runner.workload.prompt import count_prompt_tokens

    send(Message(kind="phase", value="plan"))
    overhead = measure_base() if hardware.device_type == "cpu" else None

    def predicted(settings: Settings) -> Any:
        return predict(checkpoint, settings, hardware, overhead=overhead)

    return resolve(
        config,
        hardware,
        checkpoint,
        predict=predicted,
        num_layers=count_layers(config, checkpoint),
        prompt_tokens=count_prompt_tokens(checkpoint, config),
    )
