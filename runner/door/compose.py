"""Compose a command line's configuration before anything runs, and tell what is wrong with it in one line."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner.config import RunConfig
from runner.door.arguments import Arguments
from runner.door.schema import config_folder, keys
from runner.errors import RequestError, RunnerError
from runner.extras import check_installed

MOST_JOBS_CHECKED = 64


def check_configuration(arguments: Arguments) -> None:
    """Compose what would run, for a sweep each value once, and raise RequestError for the first mistake."""
    from hydra import compose, initialize_config_dir
    from omegaconf import open_dict

    from runner.launch.launcher import check_launcher

    with explained(), initialize_config_dir(config_dir=str(config_folder()), version_base="1.3"):
        extra = [f"hydra.searchpath=[file://{arguments.config_dir.resolve()}]"] if arguments.config_dir else []
        for overrides in itertools.islice(_each_value(arguments), MOST_JOBS_CHECKED):
            name = arguments.flags.config_name or "run"
            composed = compose(name, overrides=[*overrides, *extra], return_hydra_config=True)
            check_launcher(composed.hydra)
            with open_dict(composed):
                del composed["hydra"]
            check_installed(to_run_config(composed))


def to_run_config(composed: Any) -> RunConfig:
    """Return the composed configuration as a frozen RunConfig; raises RequestError for values that are out of range."""
    from omegaconf import OmegaConf

    with explained():
        values = OmegaConf.to_object(composed)
    if not isinstance(values, RunConfig):
        raise RequestError("the configuration is not built on run_schema; begin its defaults with `- run_schema`")
    return values


def _each_value(arguments: Arguments) -> Iterator[list[str]]:
    """Yield overrides for one job with the first value of each sweep, then with each other value in its place."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(arguments.overrides))
    variants = [
        [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parsed
    ]
    first = [values[0] for values in variants]
    yield first
    for index, values in enumerate(variants):
        for value in values[1:]:
            yield [*first[:index], value, *first[index + 1 :]]


@contextmanager
def explained() -> Iterator[None]:
    """Turn what Hydra, OmegaConf and the YAML parser raise for a user's mistake into a RequestError of one line."""
    import yaml
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (RunnerError, BrokenPipeError):
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in {mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise RequestError(f"the YAML is not readable{where}: {getattr(error, 'problem', error)}") from error
    except OmegaConfBaseException as error:
        raise RequestError(_omegaconf(error)) from error
    except HydraException as error:
        cause = error.__cause__
        if isinstance(cause, OmegaConfBaseException):
            raise RequestError(_omegaconf(cause)) from error
        if isinstance(cause, RunnerError):
            raise cause from None
        raise RequestError(_one_line(str(error))) from error
    except (ValueError, TypeError, AssertionError, OSError) as error:
        raise RequestError(_one_line(str(error)) or type(error).__name__) from error


def _omegaconf(error: Any) -> str:
    cause = error.__cause__
    if isinstance(cause, PermissionError):
        return f"the run's folder cannot be made: {cause.filename}: {cause.strerror}"
    key = getattr(error, "full_key", None) or getattr(error, "key", None)
    message = _one_line(getattr(error, "msg", None) or str(error))
    field = keys().get(str(key))
    if field is not None:
        kind = str(field.type).removeprefix("<class '").removesuffix("'>")
        message = re.sub(r"\s*full_key:.*", "", message)
        return f"{key}: {message} ({field.name} is {kind})"
    return f"{key}: {message}" if key and str(key) not in message else message


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.strip().splitlines() if line.strip())[:400]
