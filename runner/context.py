"""Where a run was started from: what was typed, and the folder that is its own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run's place in the command line's world."""

    folder: Path
    """the run's folder, which exists"""
    overrides: tuple[str, ...]
    """the run's own overrides, as typed"""
    command: tuple[str, ...]
    """the whole command line"""
    config_yaml: Mapping[str, Any]
    """the composed configuration, as plain values"""
    is_sweep: bool = False
    """whether the run is one job of a sweep"""
    config_dir: Path | None = None
    """the user's own options, which the overrides may name"""


QUOTED = re.compile(r"""'(\\.|[^'\\])*'|"(\\.|[^"\\])*\"""", re.DOTALL)
"""a text that Hydra takes as one quoted string: `'it\\'s'`, not `'a' and 'b'`"""


def hydra_text(value: str) -> str:
    """Return free text as Hydra's override grammar takes it: quoted where a character has a meaning there.

    In quotes a backslash is one, unless quotes follow it; `${` would begin an interpolation.
    """
    if QUOTED.fullmatch(value):
        return value
    if "/" in value and all(character.isalnum() or character in "/-_." for character in value):
        return value
    escaped = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + "\\${", value)
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), escaped)
    return f"'{escaped}'"
