"""Architectures at true size with seeded random weights: what they would be, and writing them once into the cache."""

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.checkpoint.architectures import architecture_config, architecture_name
from runner.checkpoint.describe import describe
from runner.checkpoint.folder import inspect_folder
from runner.checkpoint.headers import read_json
from runner.checkpoint.skeleton import MARK
from runner.checkpoint.value import Checkpoint, Progress
from runner.checkpoint.writer import SHARD, Skeleton, layout, write_folder
from runner.config import ModelConfig, cache_folder
from runner.errors import CheckpointError, RequestError
from runner.units import MiB, format_size

_LAYOUT = 1
"""raise it when names, values or files come out differently for the same request"""
_SLACK = 64 * MiB
"""left free on the disk"""


def inspect_random(config: ModelConfig, *, environment: Mapping[str, str], seed: int) -> Checkpoint:
    """Return the architecture at true size; `path` is set when its weights are on disk already.

    Raises RequestError for an unknown architecture, CheckpointError when what is on disk is broken.
    """
    name = architecture_name(config.architecture)
    values = architecture_config(name)
    cache = cache_folder(config, environment=dict(environment))
    skeleton = _skeleton(values, cache=cache, environment=environment)
    folder = _folder(name, values, skeleton, cache=cache, seed=seed)
    if folder.is_dir():
        return _written(folder, name=name, skeleton=skeleton)
    shards = layout(skeleton)
    return describe(
        source="random", id=name, revision=None, path=None, config=values,
        tensors=[tensor for shard in shards for tensor in shard.tensors],
        files={shard.name: shard.num_bytes for shard in shards}, names=(), tied=skeleton.tied,
    )  # fmt: skip


def write_random(
    checkpoint: Checkpoint,
    config: ModelConfig,
    *,
    seed: int,
    progress: Progress | None = None,
    environment: Mapping[str, str] | None = None,
) -> Checkpoint:
    """Write the weights of a random checkpoint that `inspect_random` described, and return it with its path.

    The folder appears whole or not at all; a second process that writes the same one waits and uses it. Raises
    RequestError when the disk has too little room.
    """
    if checkpoint.path is not None:
        return checkpoint
    name = architecture_name(config.architecture)
    environment = os.environ if environment is None else environment
    cache = cache_folder(config, environment=dict(environment))
    values = dict(checkpoint.config)
    skeleton = _skeleton(values, cache=cache, environment=environment)
    folder = _folder(name, values, skeleton, cache=cache, seed=seed)
    with _disk_errors(folder.parent, needed=sum(checkpoint.files.values())):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_one(folder):
            if not folder.is_dir():
                _check_room(folder.parent, needed=sum(checkpoint.files.values()))
                write_folder(folder, values, skeleton, seed=seed, progress=progress)
    return _written(folder, name=name, skeleton=skeleton)


def _written(folder: Path, *, name: str, skeleton: Skeleton) -> Checkpoint:
    try:
        return inspect_folder(folder, source="random", id=name, tied=skeleton.tied)
    except CheckpointError as error:
        raise CheckpointError(f"{error.message}; it was made here: delete {folder} and run again") from error


def _folder(name: str, values: Mapping[str, Any], skeleton: Skeleton, *, cache: Path, seed: int) -> Path:
    """Return the folder's path. transformers' versions whose tensors agree share it."""
    told = json.dumps([_LAYOUT, SHARD, values, skeleton.tensors, skeleton.tied], sort_keys=True)
    mark = hashlib.sha256(told.encode()).hexdigest()[:10]
    return cache / "random" / f"{name}-bf16-seed{seed}-{mark}"


def _skeleton(values: Mapping[str, Any], *, cache: Path, environment: Mapping[str, str]) -> Skeleton:
    """Return the tensor list, from the cache or from a process that builds the class on the meta device."""
    version = importlib.metadata.version("transformers")
    told = json.dumps([_LAYOUT, version, values], sort_keys=True)
    path = cache / "skeletons" / f"{values['model_type']}-{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"
    if path.is_file():
        with contextlib.suppress(CheckpointError, KeyError, TypeError, ValueError):
            return _parse_skeleton(read_json(str(path), name=path.name))
    with _disk_errors(path.parent, needed=0):
        path.parent.mkdir(parents=True, exist_ok=True)
    answer = _ask(values, environment=environment)
    with _disk_errors(path.parent, needed=len(answer)):
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.write_text(answer, encoding="utf-8")
        os.replace(temporary, path)
    return _parse_skeleton(json.loads(answer))


def _ask(values: Mapping[str, Any], *, environment: Mapping[str, str]) -> str:
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(path for path in (package, environment.get("PYTHONPATH", "")) if path)
    done = subprocess.run(
        [sys.executable, "-m", "runner.checkpoint.skeleton"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    answer = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not answer:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CheckpointError(f"transformers cannot build {values['architectures'][0]} from its configuration: {last}")
    return answer[-1]


def _parse_skeleton(answer: Mapping[str, Any]) -> Skeleton:
    return Skeleton(
        tensors=tuple((name, dtype, tuple(shape), kind) for name, dtype, shape, kind in answer["tensors"]),
        tied=tuple((kept, copy) for kept, copy in answer["tied"]),
    )


def _check_room(folder: Path, *, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + _SLACK:
        raise _no_room(folder, needed=needed, free=free)


def _no_room(folder: Path, *, needed: int, free: int) -> RequestError:
    return RequestError(
        f"the random weights need {format_size(needed)} on disk; {format_size(free)} is free in {folder}:"
        f" {format_size(max(0, needed + _SLACK - free))} short. Free some, or give another folder with model.cache=DIR"
    )


@contextlib.contextmanager
def _disk_errors(folder: Path, *, needed: int) -> Iterator[None]:
    """Turn what the file system refuses into a request that can be put right."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(folder, needed=needed, free=shutil.disk_usage(folder).free) from error
        raise RequestError(
            f"{folder} cannot be written: {error.strerror or error}; give another folder with model.cache=DIR"
        ) from error


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold a lock beside `folder`; it ends with the process. What a killed writer left is swept away."""
    try:
        import fcntl
    except ImportError:  # not on Windows: there two writers do the work twice, and the first rename wins
        yield
        return
    with open(folder.with_name(f".{folder.name}.lock"), "wb") as lock:
        # Some network file systems have no locks: there, too, the first rename wins.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in folder.parent.glob(f".{folder.name}.*.partial"):
                shutil.rmtree(left, ignore_errors=True)
        yield
