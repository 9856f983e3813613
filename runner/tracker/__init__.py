"""Tell a finished run to an experiment log. The record is there before; whatever fails here costs a line, no run."""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.compare import Row
from runner.config import Tracker, TrackerConfig
from runner.context import RunContext
from runner.record import read_record
from runner.tracker import events, mlruns
from runner.tracker.told import Told, fidelity_metrics, told

__all__ = ["Told", "told", "track", "track_sweep"]

log = logging.getLogger(__name__)

LOGS = {Tracker.mlflow: mlruns, Tracker.tensorboard: events}
_ONE_AT_A_TIME = threading.Lock()
"""jobs of a sweep that end together would migrate one new database twice"""


def track(context: RunContext) -> None:
    """Tell the run in `context`, whose record is written, to the log that it asks for.

    Raises nothing: a log that cannot be reached costs a warning.
    """
    config = _asked(context.config_yaml)
    if config.name is Tracker.none:
        return
    try:
        with _ONE_AT_A_TIME:
            run = told(read_record(context.folder), context.folder, is_sweep=context.is_sweep)
            where = LOGS[config.name].write(run, config)
        log.info("tracked     %s: %s", config.name.value, where)
    except Exception as error:
        _warn(config, error)


def track_sweep(rows: Sequence[Row]) -> None:
    """Add to the logs of a sweep's runs what only the whole sweep knows: their distance from the highest precision."""
    for row in rows:
        metrics = fidelity_metrics(row)
        if not metrics:
            continue
        path = Path(row.record)
        record = read_record(path)
        config = _asked(record["config"])
        if config.name is Tracker.none:
            continue
        try:
            LOGS[config.name].add(told(record, path.parent, is_sweep=True), metrics, config)
        except Exception as error:
            _warn(config, error)


def _asked(composed: Mapping[str, Any]) -> TrackerConfig:
    values = composed.get("tracker")
    return TrackerConfig(**{**values, "name": Tracker(values["name"])}) if values else TrackerConfig()


def _warn(config: TrackerConfig, error: Exception) -> None:
    said = " ".join(str(error).split())[:300] or type(error).__name__
    log.warning("not told to %s, the record is complete: %s", config.name.value, said)
    log.debug("what failed", exc_info=error)
