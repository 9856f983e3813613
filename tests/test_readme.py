"""What the README says is so: its commands are commands, its options are the options."""

import re
import shlex
from pathlib import Path

import pytest

import runner
from runner.door.arguments import check_overrides, read_arguments
from runner.door.compose import check_configuration
from runner.door.schema import groups, options, register
from runner.errors import RequestError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.strip().removeprefix("$ ").split("   #")[0]
    for line in README.splitlines()
    if re.match(r"\s+(\$ )?(python -m )?runner ", line)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one(command: str) -> None:
    words = shlex.split(command)
    if any(word.startswith("sweep.resume=") for word in words):
        return  # needs a sweep; tests/test_run.py resumes one
    register()
    arguments = read_arguments(words[3:] if words[0] == "python" else words[1:])
    try:
        check_overrides(arguments)
    except RequestError as error:
        if "hydra/launcher=" in command and "pip install hydra-" in error.message:
            return  # that launcher is in a package of its own, which is not installed here
        raise
    try:
        check_configuration(arguments)
    except RequestError as error:
        if "needs a package that is not installed here" not in error.message:
            raise


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 7


def test_every_option_of_every_group_is_named() -> None:
    for group in groups():
        row = next(line for line in README.splitlines() if line.startswith(f"| `{group}` |"))
        missing = [option for option in options(group) if f"`{option}`" not in row]
        assert not missing


def test_every_function_of_the_python_door_is_shown() -> None:
    for name in runner.__all__:
        assert f"runner.{name}(" in README


def test_the_checks_are_those_of_ci() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in ("pytest", "ruff check .", "ruff format --check .", "mypy runner", "pip install"):
        assert command in script
        assert command in README


def test_every_room_is_in_the_map() -> None:
    rooms = {path.name.removesuffix(".py") for path in (ROOT / "runner").iterdir() if path.suffix in ("", ".py")}
    named = set(re.findall(r"[a-z_]+", README.split("| room | |")[1]))
    assert rooms - {"__init__", "__pycache__", "errors", "units", "preload", "conf"} <= named
