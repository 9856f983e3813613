"""From argv to an exit code."""

import os
import sys
from collections.abc import Sequence

from runner import __version__
from runner.door.arguments import Arguments, check_overrides, read_arguments
from runner.door.compose import check_configuration, explained
from runner.door.help import help_page
from runner.door.schema import config_folder, register
from runner.door.sweep import announced_sweep, tell_sweep
from runner.door.task import Task
from runner.endings import undisturbed
from runner.errors import Interrupted, RunnerError
from runner.files import remove_parts


def run_command_line(argv: Sequence[str]) -> int:
    """Carry out one command line and return its exit code: a run's own, or the highest of a sweep's."""
    try:
        return _run(argv)
    except RunnerError as error:
        print(f"runner: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("runner: interrupted", file=sys.stderr)
        return Interrupted.exit_code
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
    if arguments.resume is not None:
        remove_parts(arguments.resume)
    return _through_hydra(arguments)


def _through_hydra(arguments: Arguments) -> int:
    """Let Hydra compose and launch, and return the exit code: the highest of the jobs'."""
    import hydra

    task, codes = Task(arguments), [0]
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
        sweep = announced_sweep()
        if sweep is not None:
            with undisturbed():
                codes.append(tell_sweep(sweep))
    return max([*task.codes, *codes], default=0)
