"""What torch was built for, read from its files; and what torch itself says, asked in a process of its own."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBE_SECONDS = 180
"""torch's first import from a cold disk takes tens of seconds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """What torch/version.py says. None: not built for it."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    git_version: str | None = None

    @property
    def backend(self) -> str:
        """The kind of accelerator that this build runs on: cuda, rocm, xpu, or cpu (and mps on a Mac)."""
        if self.hip:
            return "rocm"
        if self.cuda:
            return "cuda"
        return "xpu" if self.xpu else "cpu"

    def __str__(self) -> str:
        """The build as a fact in a sentence."""
        made_for = {"rocm": f"ROCm {self.hip}", "cuda": f"CUDA {self.cuda}", "xpu": "Intel GPUs", "cpu": "the CPU"}
        return f"PyTorch {self.version} was built for {made_for[self.backend]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """torch's own answer: a list of devices, each a mapping of plain values, or what went wrong."""

    devices: tuple[Mapping[str, Any], ...] = ()
    problem: str | None = None


def torch_version_file() -> Path | None:
    """Return the path of torch/version.py without importing torch; None when torch is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("version.py")


def read_torch_build(path: Path | None) -> TorchBuild | None:
    """Return what the assignments in torch/version.py say; None when the file is missing or not readable."""
    if path is None:
        return None
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError):
        return None
    values: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            values[target.id] = node.value.value
    if "__version__" not in values:
        return None
    return TorchBuild(
        version=values["__version__"],
        cuda=values.get("cuda"),
        hip=values.get("hip"),
        xpu=values.get("xpu"),
        git_version=values.get("git_version"),
    )


def probe_with_torch(environment: Mapping[str, str], *, timeout: float = PROBE_SECONDS) -> Probe:
    """Import torch in a process of its own, in this environment, and return the devices that it sees. Takes seconds."""
    home = str(Path(__file__).parents[2])
    search = os.pathsep.join(part for part in (home, environment.get("PYTHONPATH", "")) if part)
    command = [sys.executable, "-m", "runner.hardware.probe"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env={**environment, "PYTHONPATH": search}
        )
    except subprocess.TimeoutExpired:
        return Probe(problem=f"torch did not answer within {timeout:g} s")
    except OSError as error:
        return Probe(problem=f"torch could not be asked: {error}")
    return read_probe(answer.stdout, complaint=answer.stderr, returncode=answer.returncode)


def read_probe(output: str, *, complaint: str = "", returncode: int = 0) -> Probe:
    """Return the probe that the last line of `output` spells in JSON, or the last line of the complaint."""
    lines = output.strip().splitlines()
    try:
        devices = json.loads(lines[-1])["devices"] if returncode == 0 and lines else None
    except (ValueError, KeyError, TypeError):
        devices = None
    if devices is None:
        last = (complaint.strip().splitlines() or [f"exit code {returncode}"])[-1]
        return Probe(problem=f"torch could not be asked: {last}")
    return Probe(devices=tuple(devices))
