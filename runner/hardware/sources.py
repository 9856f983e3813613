"""Where facts are read. A test hands over another machine: a folder as `/`, an object as the driver."""

import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from runner.hardware.torch_build import Probe, probe_with_torch, torch_version_file


def load_nvml() -> Any:
    """Return NVIDIA's management library bindings. Raises ImportError when they are not installed."""
    return importlib.import_module("pynvml")


def psutil_memory() -> tuple[int, int]:
    """Return total and available bytes of the host, for systems without /proc."""
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def read_sysctl(name: str) -> str | None:
    """Return a value of macOS's sysctl, None when there is none."""
    try:
        answer = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Everything that detection looks at."""

    root: Path = Path("/")
    """the folder that /proc and /sys are below"""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    system: str = field(default_factory=lambda: sys.platform)
    """linux, darwin, win32"""
    machine: str = field(default_factory=platform.machine)
    """x86_64, aarch64, arm64"""
    release: str = field(default_factory=lambda: platform.mac_ver()[0])
    """macOS's version, such as 14.5; empty elsewhere"""
    nvml: Callable[[], Any] = load_nvml
    torch_version: Callable[[], Path | None] = torch_version_file
    """finds torch/version.py without importing torch"""
    probe: Callable[[Mapping[str, str]], Probe] = probe_with_torch
    """asks torch in a process of its own, which gets the environment given"""
    psutil_memory: Callable[[], tuple[int, int]] = psutil_memory
    sysctl: Callable[[str], str | None] = read_sysctl

    def path(self, absolute: str | PurePosixPath) -> Path:
        """Return where the file that the machine calls `absolute` lies below the root."""
        return self.root / str(absolute).lstrip("/")

    def read(self, absolute: str | PurePosixPath) -> str | None:
        """Return the text of a file of the machine; None when it is absent or may not be read."""
        try:
            return self.path(absolute).read_text(errors="replace")
        except OSError:
            return None

    def read_int(self, absolute: str | PurePosixPath) -> int | None:
        """Return the whole number that a file holds; None for anything else, such as `max`."""
        text = (self.read(absolute) or "").strip()
        return int(text) if text.isdecimal() else None
