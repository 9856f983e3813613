"""TensorBoard's side: an event file in the run's folder, by the package's own writer, which needs neither torch nor
TensorFlow (torch.utils.tensorboard writes through the same one)."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.config import AUTO, TrackerConfig
from runner.tracker.told import Told


def write(run: Told, config: TrackerConfig) -> str:
    """Write parameters, metrics, losses by step, text, tags and status, and return the folder."""
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2, summary_v2

    succeeded = run.status == "completed"
    end = plugin_data_pb2.SessionEndInfo(
        status=api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE, end_time_secs=run.ended
    )
    told = {**run.parameters, **{f"tag.{name}": value for name, value in run.tags.items()}}
    summaries = [(0, summary_v2.hparams_pb(told, trial_id=run.run_id, start_time_secs=run.started))]
    summaries += [(0, _scalar(name, value)) for name, value in run.metrics.items()]
    summaries += [(step, _scalar("loss", value)) for step, value in enumerate(run.losses, start=1)]
    texts = {"tags": "\n".join(f"    {name}: {value}" for name, value in run.tags.items())}
    if run.text is not None:
        texts["text"] = run.text
    summaries += [(0, _text(name, value)) for name, value in texts.items()]
    summaries += [(0, _session_end(end))]
    folder = _folder(run, config)
    _write(summaries, folder, at=run.ended)
    return str(folder)


def add(run: Told, metrics: Mapping[str, float], config: TrackerConfig) -> None:
    """Add metrics in an event file beside the first."""
    _write([(0, _scalar(name, value)) for name, value in metrics.items()], _folder(run, config), at=time.time())


def _folder(run: Told, config: TrackerConfig) -> Path:
    if config.uri == AUTO:
        return run.folder
    return Path(os.path.expanduser(config.uri)) / config.experiment / run.run_id


def _write(summaries: Sequence[tuple[int, Any]], folder: Path, *, at: float) -> None:
    """Write (step, summary) as one event file, whole or not at all."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    with _aside(folder) as aside:
        writer = EventFileWriter(str(aside))
        for step, summary in summaries:
            writer.add_event(Event(wall_time=at, step=step, summary=summary))
        writer.close()


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """Give a folder to write in; what is in it at the end is moved into `folder`."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".events.") as name:
        yield Path(name)
        for path in Path(name).iterdir():
            os.replace(path, folder / path.name)


def _scalar(name: str, value: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value)])


def _text(name: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    metadata = create_summary_metadata(display_name=name, description="")
    return Summary(value=[Summary.Value(tag=name, metadata=metadata, tensor=make_tensor_proto([text]))])


def _session_end(end: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    described = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=end))
    return Summary(value=[Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=described,
                                        tensor=metadata.NULL_TENSOR)])  # fmt: skip
