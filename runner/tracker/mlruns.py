"""MLflow's side: one run of ours is one run there. mlflow is imported when the first run is told, never before."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from runner.config import AUTO, TrackerConfig
from runner.tracker.told import Told

STATUSES = {"completed": "FINISHED", "interrupted": "KILLED", "killed": "KILLED"}
"""status of a record → MLflow's; the others have failed"""
DATABASE, ARTIFACTS = "mlflow.db", "mlartifacts"
PARAMETERS_AT_ONCE, METRICS_AT_ONCE = 100, 900
"""what MLflow takes in one call (its REST API's limits)"""
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # the network is used where the user's URI says so
    "MLFLOW_CONFIGURE_LOGGING": "false",  # its words go through our handlers
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # its seven would hold a run for minutes when the server is away
}
"""set for this process unless the user has set them"""


def write(run: Told, config: TrackerConfig) -> str:
    """Log `run` as a new run of the experiment, and return the store's URI."""
    client, uri = _client(run, config)
    experiment = _experiment(client, uri, run, config)
    tags = {**run.tags, "mlflow.source.name": "runner", "mlflow.source.type": "LOCAL"}
    if "git_commit" in tags:
        tags["mlflow.source.git.commit"] = tags["git_commit"]
    created = client.create_run(
        experiment, start_time=int(1000 * run.started), tags=tags, run_name=run.name
    )  # fmt: skip
    identifier = created.info.run_id
    try:
        _log(client, identifier, run)
        for path in run.files:
            client.log_artifact(identifier, str(path))
    finally:
        client.set_terminated(identifier, status=STATUSES.get(run.status, "FAILED"), end_time=int(1000 * run.ended))
    return uri


def add(run: Told, metrics: Mapping[str, float], config: TrackerConfig) -> None:
    """Add metrics to the run that was logged before; nothing where it was not."""
    client, uri = _client(run, config)
    experiment = _experiment(client, uri, run, config)
    for found in client.search_runs([experiment], filter_string=f"tags.run_id = '{run.run_id}'"):
        for name, value in metrics.items():
            client.log_metric(found.info.run_id, name, value, timestamp=int(1000 * run.ended), step=0)


def _client(run: Told, config: TrackerConfig) -> tuple[Any, str]:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    uri = config.uri
    if uri == AUTO:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.root / DATABASE}"
    return MlflowClient(tracking_uri=uri), uri


def _experiment(client: Any, uri: str, run: Told, config: TrackerConfig) -> str:
    """Return the experiment's id; a new one in a sqlite file keeps its artifacts beside that file."""
    found = client.get_experiment_by_name(config.experiment)
    if found is not None:
        return str(found.experiment_id)
    place = None
    if uri.startswith("sqlite:///"):
        place = (Path(unquote(urlsplit(uri).path)[1:]).resolve().parent / ARTIFACTS).as_uri()
    try:
        return str(client.create_experiment(config.experiment, artifact_location=place))
    except Exception:
        found = client.get_experiment_by_name(config.experiment)  # another process was faster
        if found is None:
            raise
        return str(found.experiment_id)


def _log(client: Any, identifier: str, run: Told) -> None:
    from mlflow.entities import Metric, Param

    at = int(1000 * run.ended)
    parameters = [Param(name, str(value)) for name, value in run.parameters.items()]
    metrics = [Metric(name, value, at, 0) for name, value in run.metrics.items()]
    metrics += [Metric("loss", value, at, step) for step, value in enumerate(run.losses, start=1)]
    for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
        client.log_batch(identifier, params=parameters[start : start + PARAMETERS_AT_ONCE])
    for start in range(0, len(metrics), METRICS_AT_ONCE):
        client.log_batch(identifier, metrics=metrics[start : start + METRICS_AT_ONCE])
