"""What Hydra may compose: the dataclasses of runner.config, and where the configuration files are."""

import dataclasses
import datetime
import os
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from runner.config import RunConfig, WorkloadConfig

PACKAGE = Path(__file__).resolve().parents[1]


def config_folder() -> Path:
    """Return the folder of the configuration files: the source tree's, else the one inside the wheel."""
    beside = PACKAGE.parent / "conf"
    return beside if (beside / "run.yaml").exists() else PACKAGE / "conf"


def groups() -> dict[str, type[Any]]:
    """Return config group → its dataclass, in the order of RunConfig."""
    hints = get_type_hints(RunConfig)
    return {item.name: hints[item.name] for item in dataclasses.fields(RunConfig)
            if dataclasses.is_dataclass(hints[item.name])}  # fmt: skip


def keys() -> dict[str, dataclasses.Field[Any]]:
    """Return every key that can be given, dotted → its field."""
    found: dict[str, dataclasses.Field[Any]] = {}
    for item in dataclasses.fields(RunConfig):
        if item.name in groups():
            for inner in dataclasses.fields(groups()[item.name]):
                found[f"{item.name}.{inner.name}"] = inner
        else:
            found[item.name] = item
    return found


def options(group: str, extra: Path | None = None) -> list[str]:
    """Return the options of a group: ours, and those in the user's --config-dir."""
    folders = [config_folder(), *([extra] if extra else [])]
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def choices(field: dataclasses.Field[Any]) -> list[str]:
    """Return the values of an enumerated field; nothing for others."""
    default = field.default
    return [item.value for item in type(default)] if isinstance(default, Enum) else []


def register() -> None:
    """Give Hydra the schema and the resolvers. May be called more than once."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from runner.launch.launcher import register_launcher

    schema = OmegaConf.structured(RunConfig)
    for node in (schema, *(schema._get_node(name) for name in groups())):
        node._set_flag("readonly", False)  # the dataclasses are frozen; Hydra merges into the schema
    ConfigStore.instance().store(name="run_schema", node=schema)
    OmegaConf.register_new_resolver("run_folder", _claim_folder, use_cache=True, replace=True)
    register_launcher()
    OmegaConf.register_new_resolver("default_tokens", _default_tokens, replace=True)


def _default_tokens(workload: str) -> int:
    """Return the default of workload.max_new_tokens for a workload that is only planned."""
    text = (config_folder() / "workload" / f"{getattr(workload, 'value', workload)}.yaml").read_text(encoding="utf-8")
    named = [line.partition(":")[2] for line in text.splitlines() if line.startswith("max_new_tokens:")]
    return int(named[0]) if named else WorkloadConfig().max_new_tokens


def _claim_folder(path: str) -> str:
    """Create the folder `path`, or path-2, path-3, … where another run has taken it, and return its name."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    for number in range(1, 10_000):
        candidate = path if number == 1 else f"{path}-{number}"
        try:
            os.mkdir(candidate)
        except FileExistsError:
            continue
        return candidate
    raise FileExistsError(f"{path}: 10000 runs at {datetime.datetime.now():%H:%M:%S}")
