"""From argv to an exit code."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner import __version__
from runner.door.arguments import Arguments, check_overrides, read_arguments
from runner.door.compose import check_configuration, explained, to_run_config
from runner.door.help import help_page
from runner.door.schema import config_folder, register
from runner.errors import RequestError, RunnerError

log = logging.getLogger(__name__)

INTERRUPTED = 130


def run_command_line(argv: Sequence[str]) -> int:
    """Carry out one command line and return its exit code: a run's own, or the highest of a sweep's."""
    try:
        return _run(argv)
    except RunnerError as error:
        print(f"runner: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("runner: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: Sequence[str]) -> int:
    if "--version" in argv:
        from importlib.metadata import version

        print(f"runner {__version__} (hydra {version('hydra-core')})")
        return 0
    arguments = read_arguments(argv)
    if arguments.flags.help:
        print(help_page())
        return 0
    register()
    if not arguments.flags.shell_completion:
        check_overrides(arguments)
    if arguments.runs:
        check_configuration(arguments)
    return _through_hydra(arguments)


def _through_hydra(arguments: Arguments) -> int:
    """Let Hydra compose and launch; collect the jobs' exit codes."""
    import hydra

    codes: list[int] = []
    folders: list[Path] = []

    def task(composed: Any) -> int:
        folders.append(_folder())
        codes.append(0 if _is_done(folders[-1], arguments) else _job(composed, arguments))
        if codes[-1] == INTERRUPTED:
            raise KeyboardInterrupt
        return codes[-1]

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, instead of printing and exiting with 1
    command = sys.argv
    sys.argv = [command[0], *arguments.argv]
    try:
        with explained():
            hydra.main(config_path=str(config_folder()), config_name="run", version_base="1.3")(task)()
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 2
    finally:
        sys.argv = command
        if arguments.flags.multirun and folders:
            _tell_sweep(folders[0].parent)
    return max(codes, default=0)


def _folder() -> Path:
    from hydra.core.hydra_config import HydraConfig

    return Path(HydraConfig.get().runtime.output_dir)


def _is_done(folder: Path, arguments: Arguments) -> bool:
    """Whether a resumed sweep has this job's completed record; raises RequestError for a record of another job."""
    from hydra.core.hydra_config import HydraConfig

    from runner.record import RECORD, read_record

    if arguments.resume is None or not (folder / RECORD).exists():
        return False
    found, asked = read_record(folder), list(HydraConfig.get().overrides.task)
    if found["overrides"] != asked:
        raise RequestError(
            f"{folder} holds another job ({' '.join(found['overrides'])}) than is asked for ({' '.join(asked)}); "
            f"sweep.resume={arguments.resume} alone goes on with the sweep as it was"
        )
    if found["status"] == "completed":
        log.info("kept        %s, completed before", folder)
        return True
    return False


def _tell_sweep(folder: Path) -> None:
    """Write the sweep's files and print its table, also when the sweep was interrupted."""
    from runner.compare import print_table
    from runner.report import write_sweep
    from runner.tracker import track_sweep

    summary = write_sweep(folder)
    track_sweep(summary.rows)
    print()
    print_table(summary.rows)
    print(f"sweep       {summary.files[-1]}")


def _job(composed: Any, arguments: Arguments) -> int:
    """Run one job of the command line."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from runner.context import RunContext
    from runner.run import run

    settings = HydraConfig.get()
    context = RunContext(
        folder=_folder(),
        overrides=tuple(settings.overrides.task),
        command=("python", "-m", "runner", *arguments.argv),
        config_yaml=OmegaConf.to_container(composed, resolve=True, enum_to_str=True),  # type: ignore[arg-type]
        is_sweep=settings.mode is RunMode.MULTIRUN,
        config_dir=arguments.config_dir,
    )
    return run(to_run_config(composed), context)
