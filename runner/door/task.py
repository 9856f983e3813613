"""What Hydra calls for each job of a command line, in one step or, by our own launcher, in two."""

import logging
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runner.config import RunConfig
from runner.context import RunContext
from runner.door.arguments import Arguments
from runner.door.compose import to_run_config
from runner.errors import Interrupted, RequestError
from runner.launch import Job, Shared, alone

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Task:
    """The task function of one command line; it keeps the jobs' exit codes."""

    arguments: Arguments
    codes: list[int] = field(default_factory=list)

    def __call__(self, composed: Any) -> int:
        """Do one job under Hydra's global configuration, and return its exit code."""
        code = self.prepare(composed).carry_out(alone())
        if code == Interrupted.exit_code:
            raise KeyboardInterrupt
        return code

    def configure(self, composed: Any) -> RunConfig:
        """Return what a job asks for; raises RequestError for values that are out of range."""
        return to_run_config(composed)

    def prepare(self, composed: Any) -> Job:
        """Return one job that needs Hydra's global configuration no more.

        Raises RequestError when a sweep is to be resumed in a folder that holds another one.
        """
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        settings = HydraConfig.get()
        folder = Path(settings.runtime.output_dir)
        is_sweep = settings.mode is RunMode.MULTIRUN
        if self._is_done(folder, list(settings.overrides.task)):
            return Job(folder=folder, carry_out=partial(self._kept, folder), is_done=True)
        context = self._context(composed, settings, folder, is_sweep)
        try:
            config = self.configure(composed)
        except RequestError as error:
            return Job(folder=folder, carry_out=partial(self._rejected, context, error))
        return Job(folder=folder, config=config, carry_out=partial(self._run, config, context))

    def _context(self, composed: Any, settings: Any, folder: Path, is_sweep: bool) -> RunContext:
        from omegaconf import OmegaConf

        return RunContext(
            folder=folder,
            overrides=tuple(settings.overrides.task),
            command=("python", "-m", "runner", *self.arguments.argv),
            config_yaml=OmegaConf.to_container(composed, resolve=True, enum_to_str=True),  # type: ignore[arg-type]
            is_sweep=is_sweep,
            config_dir=self.arguments.config_dir,
        )

    def _is_done(self, folder: Path, asked: list[str]) -> bool:
        """Whether a resumed sweep has this job's completed record; if not, what is left of it is removed."""
        from runner.record import RECORD, clear_folder, read_record

        if self.arguments.resume is None or not folder.exists():
            return False
        if (folder / RECORD).exists():
            found = read_record(folder)
            if found["overrides"] != asked:
                raise RequestError(
                    f"{folder} holds another job ({' '.join(found['overrides'])}) than is asked for "
                    f"({' '.join(asked)}); sweep.resume={self.arguments.resume} alone goes on with the sweep as it was"
                )
            if found["status"] == "completed":
                return True
        clear_folder(folder)
        return False

    def _kept(self, folder: Path, shared: Shared) -> int:
        log.info("kept        %s, completed before", folder)
        self.codes.append(0)
        return 0

    def _rejected(self, context: RunContext, error: RequestError, shared: Shared) -> int:
        from runner.run import reject

        code = reject(context, error)
        self.codes.append(code)
        return code

    def _run(self, config: RunConfig, context: RunContext, shared: Shared) -> int:
        from runner.run import run

        code = run(config, context, shared)
        self.codes.append(code)
        return code
