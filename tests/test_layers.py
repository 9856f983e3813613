"""A room imports only from the floors below it, and the lower floors import no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "runner"
FLOORS = [
    {"units", "errors", "logs", "embedded", "preload", "fidelity", "endings"},
    {"settings", "context", "isolate", "meter", "axis", "files"},
    {"config", "limit"},
    {"extras", "adapters"},
    {"hardware", "checkpoint"},
    {"speech"},
    {"steps"},
    {"predict"},
    {"resolve", "loader"},
    {"record", "workload"},
    {"narrate", "picture", "worker", "compare"},
    {"launch", "tracker"},
    {"run", "report"},
    {"door", "api"},
    {"__main__", "__init__"},
]
TORCH = {"preload", "steps", "loader", "predict", "speech"}
"""rooms that may import torch when they are imported; predict's door itself does not"""


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def module_imports(path: Path) -> list[str]:
    """The modules that importing `path` imports; what stands in functions does not count."""
    found: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names if node.module == "runner"]
    return found


FILES = sorted(ROOT.rglob("*.py"))


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in FILES} == set().union(*FLOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_from_lower_floors(path: Path) -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    here = room_of(path)
    for name in module_imports(path):
        parts = name.split(".")
        if parts[0] == "runner" and len(parts) > 1 and parts[1] in floor and parts[1] != here:
            assert floor[parts[1]] < floor[here], f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_upper_floors_import_torch(path: Path) -> None:
    if room_of(path) not in TORCH:
        heavy = {name.split(".")[0] for name in module_imports(path)} & {"torch", "transformers"}
        assert not heavy


def test_importing_does_nothing() -> None:
    code = (
        "import sys, logging, os; before = dict(os.environ); import runner, runner.config, runner.hardware, "
        "runner.checkpoint, runner.predict, runner.resolve, runner.record, runner.run, runner.api, runner.compare; "
        "assert 'torch' not in sys.modules and 'hydra' not in sys.modules; "
        "assert dict(os.environ) == before and not logging.getLogger().handlers"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
