"""Inspect a checkpoint on the Hub before anything large is downloaded, and download it when asked to.

Only config.json, the index, the tokenizer and the shards' headers (range requests) are read from the Hub. What the
cache holds already is inspected there.
"""

import glob
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.checkpoint.access import Hub, ask_hub, explain, explained, is_answer
from runner.checkpoint.describe import TOKENIZER_FILES, describe
from runner.checkpoint.folder import (
    SINGLE,
    choose_weights,
    compare_with_index,
    inspect_folder,
    read_weight_map,
    with_codec,
)
from runner.checkpoint.headers import check_entries, read_json
from runner.checkpoint.value import CODEC_FOLDERS, Checkpoint, Progress, StoredTensor
from runner.config import ModelConfig
from runner.errors import CheckpointError, RequestError
from runner.units import format_size

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT = 10.0
_BESIDE_WEIGHTS = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "chat_template.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "merges.txt",
    *sorted(TOKENIZER_FILES),
)  # fmt: skip


def inspect_hub(config: ModelConfig, *, environment: Mapping[str, str]) -> Checkpoint:
    """Return what the headers of the Hub checkpoint `config.id` say; `path` is set when it is in the cache.

    HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the cache's variables are honoured. Raises RequestError for a missing or
    malformed id, CheckpointError when it is absent, gated, broken or out of reach.
    """
    hub = ask_hub(config, environment)
    if hub.offline:
        return _from_cache(hub, config, why="HF_HUB_OFFLINE is set")
    try:
        info = hub.api().model_info(hub.id, revision=hub.revision, files_metadata=True, timeout=_TIMEOUT)
    except Exception as error:  # the HTTP library's own errors differ between huggingface_hub 0.x, 1.x and 2.x
        problem = explain(error, hub)
        if is_answer(error):
            raise problem from error
        return _from_cache(hub, config, why=problem.message)
    snapshot = hub.folder / "snapshots" / info.sha
    if snapshot.is_dir():
        try:
            return _inspect_snapshot(snapshot, hub, config)
        except CheckpointError:
            pass  # a part of it is there, config.json perhaps: the Hub knows the rest
    with explained(hub):
        return _from_hub(hub, config, info)


def fetch(
    checkpoint: Checkpoint,
    config: ModelConfig,
    *,
    progress: Progress | None = None,
    environment: Mapping[str, str] | None = None,
) -> Checkpoint:
    """Download a Hub checkpoint into the Hub's cache: weights, config and tokenizer. Return it as found there.

    Raises CheckpointError when the Hub refuses or what came is broken, RequestError when the disk has too little room.
    """
    if checkpoint.path is not None:
        return checkpoint
    hub = ask_hub(config, os.environ if environment is None else environment)
    if hub.offline:
        raise CheckpointError(f"{hub.id} is not in the cache and HF_HUB_OFFLINE is set; unset it to download")
    total = sum(checkpoint.files.values())
    hub.cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(hub.cache).free
    if free < total:
        raise RequestError(
            f"{hub.id} needs {format_size(total)} on disk; {format_size(free)} is free in {hub.cache}:"
            f" {format_size(total - free)} short. Free some, or give another cache with HF_HOME=DIR"
        )
    patterns = [glob.escape(name) for name in (*checkpoint.files, *_BESIDE_WEIGHTS)]
    patterns += ["model.safetensors.index.json"] if checkpoint.weights_format == "safetensors" else []
    patterns += ["pytorch_model.bin.index.json"] if checkpoint.weights_format == "pickle" else []
    patterns += [f"{CODEC_FOLDERS[checkpoint.model_type]}/*.json"] if checkpoint.codec is not None else []
    patterns += ["*.py"] if config.trust_remote_code else []
    with explained(hub), _quiet(), _watched(hub.folder / "blobs", total=total, progress=progress):
        api = hub.api()
        folder = api.snapshot_download(
            hub.id, revision=checkpoint.revision, allow_patterns=patterns, cache_dir=str(hub.cache)
        )
        if not _COMMIT.fullmatch(hub.revision):
            # Leaves the branch's commit in the cache, so that it can be found offline.
            api.hf_hub_download(hub.id, "config.json", revision=hub.revision, cache_dir=str(hub.cache))
    try:
        return _inspect_snapshot(Path(folder), hub, config)
    except CheckpointError as error:
        raise CheckpointError(f"{error.message} (in {folder}: delete {hub.folder} to download it anew)") from error


def _from_cache(hub: Hub, config: ModelConfig, *, why: str) -> Checkpoint:
    commit = hub.revision
    if not _COMMIT.fullmatch(commit):
        reference = hub.folder / "refs" / hub.revision
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else ""
    snapshot = hub.folder / "snapshots" / commit
    remedy = f"connect, unset HF_HUB_OFFLINE and run again (or: hf download {hub.id}), or give a folder: model.path=DIR"
    if not commit or not snapshot.is_dir():
        raise CheckpointError(f"{hub.id} at {hub.revision} is not in {hub.cache} ({why}); {remedy}")
    try:
        return _inspect_snapshot(snapshot, hub, config, notes=(f"taken from the cache as it is: {why}",))
    except CheckpointError as error:
        raise CheckpointError(
            f"{hub.id} at {hub.revision} is not whole in {hub.cache} ({why}): {error.message}; {remedy}"
        ) from error


def _inspect_snapshot(folder: Path, hub: Hub, config: ModelConfig, *, notes: Sequence[str] = ()) -> Checkpoint:
    return inspect_folder(
        folder, source="hf", id=hub.id, revision=folder.name, allow_pickle=config.allow_pickle, notes=notes
    )


def _from_hub(hub: Hub, config: ModelConfig, info: Any) -> Checkpoint:
    api, commit, where = hub.api(), info.sha, f"{hub.id} on {hub.endpoint}"
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    names = {name: False for name in sizes if "/" not in name}
    if "config.json" not in names:
        raise CheckpointError(f"{where} has no config.json, so it is not a transformers checkpoint")
    weights = choose_weights(names, where=where, allow_pickle=config.allow_pickle)

    def small(name: str) -> dict[str, Any]:
        with _quiet():
            return read_json(api.hf_hub_download(hub.id, name, revision=commit, cache_dir=str(hub.cache)), name=name)

    settings = small("config.json")
    weight_map = read_weight_map(small(weights.index), weights.index) if weights.index else None
    files = sorted(set(weight_map.values())) if weight_map is not None else list(weights.files)
    absent = [name for name in files if name not in sizes]
    if absent:
        raise CheckpointError(f"{weights.index} of {where} names {len(files)} files, but {absent[0]} is not there")
    with _quiet():
        # Small, and a plan for a prompt needs them.
        beside = [glob.escape(name) for name in _BESIDE_WEIGHTS if name in names]
        folder = api.snapshot_download(hub.id, revision=commit, allow_patterns=beside, cache_dir=str(hub.cache))
    tensors: list[StoredTensor] = []
    notes = ["sizes and headers are the Hub's; the files are not here yet"]
    if weights.format == "safetensors":
        tensors = _remote_tensors(api, hub, files=files, sizes=sizes, commit=commit)
        notes += compare_with_index(tensors, weight_map=weight_map, index=weights.index)
    found = describe(
        source="hf", id=hub.id, revision=commit, path=None, config=settings, tensors=tensors,
        files={name: sizes[name] for name in files}, names=names, weights_format=weights.format, notes=notes,
    )  # fmt: skip
    found = replace(found, tokenizer_path=Path(folder))
    inside = CODEC_FOLDERS.get(found.model_type)
    if inside is None:
        return found
    file = f"{inside}/{SINGLE}"
    if file not in sizes or f"{inside}/config.json" not in sizes:
        raise CheckpointError(f"{where} has no {file} and config.json, the codec of a {found.model_type} model")
    tensors = _remote_tensors(api, hub, files=[file], sizes=sizes, commit=commit)
    codec = describe(
        source="hf", id=inside, revision=commit, path=None, config=small(f"{inside}/config.json"),
        tensors=[replace(tensor, file=SINGLE) for tensor in tensors], files={SINGLE: sizes[file]}, names=(),
    )  # fmt: skip
    return with_codec(found, codec)


def _remote_tensors(
    api: Any, hub: Hub, *, files: Sequence[str], sizes: Mapping[str, int], commit: str
) -> list[StoredTensor]:
    def read(name: str) -> list[StoredTensor]:
        header = api.parse_safetensors_file_metadata(hub.id, name, revision=commit)
        entries = {
            key: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.data_offsets}
            for key, tensor in header.tensors.items()
        }
        return check_entries(entries, name=name, data_start=None, size=sizes[name])

    with ThreadPoolExecutor(max_workers=8) as pool:
        return [tensor for tensors in pool.map(read, files) for tensor in tensors]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's own progress bars: the door shows ours."""
    import huggingface_hub.utils

    bars: Any = huggingface_hub.utils
    if bars.are_progress_bars_disabled():
        yield
        return
    bars.disable_progress_bars()
    try:
        yield
    finally:
        bars.enable_progress_bars()


@contextmanager
def _watched(blobs: Path, *, total: int, progress: Progress | None) -> Iterator[None]:
    """Report twice a second how far the cache's folder of blobs has grown, whichever way the library downloads."""
    if progress is None:
        yield
        return
    before, ended = _bytes_in(blobs), threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            progress(min(total, max(0, _bytes_in(blobs) - before)), total)

    thread = threading.Thread(target=watch, name="download progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    progress(total, total)


def _bytes_in(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0
