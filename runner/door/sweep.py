"""Where a sweep is, told also when its jobs run in other processes, and what it comes to at its end."""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

_announced: list[Path] = []


class Announce(Callback):
    """Hydra's callback that remembers a sweep's folder: a launcher's remote jobs cannot tell it to this process."""

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        """Called by Hydra before the first job."""
        _announced.append(Path(str(config.hydra.sweep.dir)))


def announced_sweep() -> Path | None:
    """Return the folder of the sweep that this process began last, if jobs left records there; None otherwise."""
    from runner.record import RECORD

    folder = _announced.pop() if _announced else None
    return folder if folder is not None and any(folder.glob(f"*/{RECORD}")) else None


def tell_sweep(folder: Path) -> int:
    """Write the sweep's files, print its table, and below it what went wrong; return the highest exit code."""
    from runner.compare import print_table
    from runner.report import write_sweep
    from runner.tracker import track_sweep

    summary = write_sweep(folder)
    track_sweep(summary.rows)
    print()
    print_table(summary.rows)
    print(f"sweep       {summary.files[-1]}")
    return summary.exit_code
