"""Read the command line as Hydra will, and tell a mistake in one line before Hydra sees it."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from runner.context import hydra_text
from runner.door.schema import choices, groups, keys, options
from runner.errors import RequestError
from runner.launch import SWEEP_OVERRIDES, keep_overrides

HINTS = {
    # what people type → what is meant here
    "use_gradient_checkpointing": "memory=checkpointing_on",
    "gradient_checkpointing": "memory=checkpointing_on",
    "activation_checkpointing": "memory=checkpointing_on",
    "checkpointing": "memory=checkpointing_on",
    "dtype": "precision=bf16",
    "torch_dtype": "precision=bf16",
    "batch_size": "workload.micro_batch_size=4",
    "max_length": "workload.sequence_length=128",
    "seq_len": "workload.sequence_length=128",
    "prompt": "workload.prompt='some text'",
    "text": "workload.text='some text'",
    "voice": "workload.speaker=NAME",
    "speaker": "workload.speaker=NAME",
    "language": "workload.language=english",
    "instruct": "workload.instruct='slowly and warmly'",
    "ref_audio": "workload.reference_audio=FILE",
    "steps": "workload.steps=10",
    "max_new_tokens": "workload.max_new_tokens=64",
    "device": "hardware.device=cuda:0",
    "limit": "memory.limit=6GiB",
    "memory_limit": "memory.limit=6GiB",
    "model_id": "model=hf model.id=ORG/NAME",
    "model_name": "model=hf model.id=ORG/NAME",
    "path": "model.path=DIR",
    "model_path": "model.path=DIR",
    "lr": "optimizer.learning_rate=1e-4",
    "learning_rate": "optimizer.learning_rate=1e-4",
}


RESUME = "sweep.resume="
PLUGINS = {
    "joblib": "hydra-joblib-launcher", "ray": "hydra-ray-launcher", "ray_aws": "hydra-ray-launcher",
    "submitit_local": "hydra-submitit-launcher", "submitit_slurm": "hydra-submitit-launcher",
}  # fmt: skip
"""launchers of Hydra's that come in packages of their own"""
NUM_JOBS = "hydra.launcher.n_jobs"

FREE_TEXT = (
    "workload.prompt", "workload.prompt_file", "workload.text", "workload.text_file", "workload.instruct",
    "workload.reference_audio", "workload.reference_text", "model.path", "model.cache", "tracker.uri",
    "tracker.experiment",
)  # fmt: skip
"""keys whose value is taken as it was typed: commas, quotes and brackets in a prompt mean nothing to Hydra"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The command line, taken apart."""

    argv: tuple[str, ...]
    """in the order that Hydra needs: flags, then overrides"""
    overrides: tuple[str, ...]
    flags: argparse.Namespace
    config_dir: Path | None
    resume: Path | None = None
    """folder of an earlier sweep, whose completed jobs are kept"""

    @property
    def runs(self) -> bool:
        """Whether something is to be run, rather than shown."""
        shown = (self.flags.help, self.flags.hydra_help, self.flags.cfg, self.flags.info, self.flags.shell_completion)
        return not any(shown)


def read_arguments(argv: Sequence[str]) -> Arguments:
    """Return the command line taken apart; raises RequestError for flags that Hydra does not have."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()

    def error(message: str) -> NoReturn:
        raise RequestError(f"{message}; `python -m runner --help` lists what there is")

    parser.error = error  # type: ignore[method-assign]
    given = parser.parse_intermixed_args(list(argv))
    left = Counter(given.overrides)
    flags: list[str] = []
    for token in argv:
        if left[token] > 0:
            left[token] -= 1
        else:
            flags.append(token)
    config_dir = Path(given.config_dir) if given.config_dir else None
    if config_dir is not None and not config_dir.is_dir():
        raise RequestError(f"--config-dir {config_dir} is not a folder")
    asked = [item for item in given.overrides if not item.startswith(RESUME)]
    hydras = [item for item in asked if _is_hydras(item)]
    resume = next((Path(item.removeprefix(RESUME)) for item in given.overrides if item.startswith(RESUME)), None)
    more: tuple[str, ...] = ()
    if resume is not None:
        if len(hydras) == len(asked):
            asked = [*_sweep_overrides(resume), *hydras]
        else:
            with contextlib.suppress(RequestError):  # the first time there is nothing yet
                _sweep_overrides(resume)
        more = (f"hydra.sweep.dir={hydra_text(str(resume))}",)
        if not given.multirun:
            flags.append("-m")
            given.multirun = True
    overrides = tuple(_quoted(item) for item in asked)
    return Arguments(
        argv=(*flags, *overrides, *more), overrides=overrides, flags=given, config_dir=config_dir, resume=resume
    )


def _sweep_overrides(folder: Path) -> list[str]:
    """Return the overrides that a sweep was started with; raises RequestError when `folder` holds none.

    Our own note is asked first: Hydra writes its file anew whenever the sweep is resumed, whatever is asked for then,
    and not whole or not at all. A sweep of another launcher has Hydra's file only: then the note is made from it.
    """
    import yaml

    own, hydras = folder / SWEEP_OVERRIDES, folder / "multirun.yaml"
    try:
        if own.exists():
            return [str(item) for item in yaml.safe_load(own.read_text(encoding="utf-8"))]
        values = yaml.safe_load(hydras.read_text(encoding="utf-8"))
        overrides = [str(item) for item in values["hydra"]["overrides"]["task"]]
        keep_overrides(folder, overrides)
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        raise RequestError(
            f"{RESUME}{folder}: there is no sweep to go on with; give the folder that holds its multirun.yaml"
        ) from None
    return overrides


def _is_hydras(override: str) -> bool:
    """Whether an override is for Hydra itself, and no part of what a job is."""
    bare = override.partition("=")[0].lstrip("+~")
    return bare.split(".")[0] == "hydra" or bare.startswith("hydra/")


def _check_num_jobs(override: str, overrides: Sequence[str]) -> None:
    key, _, value = override.partition("=")
    another = any(item.startswith("hydra/launcher=") and item != "hydra/launcher=runner" for item in overrides)
    if key.lstrip("+") == NUM_JOBS and not another and not (value.isdecimal() and int(value) >= 1):
        raise RequestError(f"{NUM_JOBS}={value}: how many jobs may run at once is a whole number, 1 or more")


def _quoted(override: str) -> str:
    """Return `override` with free text quoted for Hydra, unless it is quoted, empty or null."""
    key, _, value = override.partition("=")
    return f"{key}={hydra_text(value)}" if key in FREE_TEXT and value and value != "null" else override


def _check_launcher(override: str) -> None:
    """Raise RequestError for a launcher of Hydra's whose plugin is not installed: what to install."""
    key, _, launcher = override.partition("=")
    if key != "hydra/launcher" or launcher not in PLUGINS:
        return
    package = PLUGINS[launcher]
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise RequestError(f"{override} needs a package that is not installed here: pip install {package}") from None


def check_overrides(arguments: Arguments) -> None:
    """Raise RequestError for the first override that cannot be meant: what is wrong, what is near, what there is."""
    for override in arguments.overrides:
        _check_launcher(override)
        key, equals, value = override.partition("=")
        bare = key.lstrip("+~").partition("@")[0]
        if _is_hydras(override):
            _check_num_jobs(override, arguments.overrides)
            continue
        if not equals:
            _no_value(override, arguments.config_dir)
        if bare in groups():
            _check_option(bare, value, arguments)
        elif bare not in keys():
            _unknown_key(override, bare, value)
        if key != bare:
            raise RequestError(f"{override}: every key is there already; write {bare}={value}, without {key[0]}")
        field = keys().get(bare)
        if field is not None:
            _check_value(bare, field, value, multirun=arguments.flags.multirun)


def _no_value(override: str, config_dir: Path | None) -> NoReturn:
    for group in groups():
        if override in options(group, config_dir):
            raise RequestError(f"{override}: did you mean {group}={override}?")
    hint = _near(override)
    raise RequestError(f"{override}: an override is key=value{hint}")


def _check_option(group: str, value: str, arguments: Arguments) -> None:
    there = options(group, arguments.config_dir)
    listed = _values(value)
    if len(listed) > 1 and not arguments.flags.multirun:
        raise RequestError(
            f"{group}={value}: several values are a sweep, which needs -m: python -m runner -m {group}={value}"
        )
    for item in listed:
        if item in there or _is_sweep_expression(item):
            continue
        near = get_close_matches(item, there, n=1, cutoff=0.5) or [o for o in there if o.startswith(item) and item]
        hint = f"did you mean {group}={near[0]}? " if near else ""
        if group == "model" and item:
            hint = (
                f"for a folder write model.path={item}; "
                if item.startswith((".", "/", "~")) or os.path.exists(item)
                else f"for the Hub write model=hf model.id={item}; "
                if "/" in item
                else hint
            )
        raise RequestError(f"{group}={item}: {hint}there are {', '.join(there)}")


def _check_value(key: str, field: dataclasses.Field[object], value: str, *, multirun: bool) -> None:
    there = choices(field)
    listed = _values(value)
    if len(listed) > 1 and not multirun and key not in FREE_TEXT:
        raise RequestError(
            f"{key}={value}: several values are a sweep, which needs -m: python -m runner -m {key}={value}"
        )
    if not there:
        return
    for item in listed:
        if item not in there and not _is_sweep_expression(item):
            near = get_close_matches(item, there, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise RequestError(f"{key}={item}: {hint}there are {', '.join(there)}")


def _unknown_key(override: str, key: str, value: str) -> NoReturn:
    if key in HINTS:
        raise RequestError(f"{override}: there is no key {key}; did you mean {HINTS[key]}?")
    raise RequestError(f"{override}: there is no key {key}{_near(key, value)}")


def _near(key: str, value: str = "") -> str:
    everything = [*groups(), *keys()]
    last = {name.rpartition(".")[2]: name for name in everything}
    found = get_close_matches(key, everything, n=1, cutoff=0.6)
    found = found or [last[name] for name in get_close_matches(key.rpartition(".")[2], last, n=1, cutoff=0.6)]
    if found:
        return f"; did you mean {found[0]}={value or '…'}?"
    first = key.partition(".")[0]
    there = [name for name in keys() if name.startswith(f"{first}.")] or everything[:8]
    return f"; there are {', '.join(there)}"


def _values(value: str) -> list[str]:
    """Return the comma-separated values, quotes and brackets kept whole."""
    if value[:1] in ("'", '"', "[", "{"):
        return [value]
    return [item.strip() for item in value.split(",")]


def _is_sweep_expression(value: str) -> bool:
    """Whether the value is one of Hydra's functions or a glob, which only Hydra can expand."""
    return "(" in value or value.endswith(")") or value == "*"
