"""Inspect a checkpoint on the Hub before anything large is downloaded, and download it when asked to.

Only config.json, the index and the shards' headers (range requests) are read from the Hub. What the cache holds
already is inspected there.
"""

import glob
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.checkpoint.describe import TOKENIZER_FILES, describe
from runner.checkpoint.headers import check_entries, read_json
from runner.checkpoint.local import choose_weights, compare_with_index, inspect_folder, read_weight_map
from runner.checkpoint.value import Checkpoint, Progress, StoredTensor
from runner.config import ModelConfig
from runner.errors import CheckpointError, RequestError
from runner.units import format_size

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = {"1", "on", "yes", "true"}
_DEFAULT_ENDPOINT = "https://huggingface.co"
_TIMEOUT = 10.0
_BESIDE_WEIGHTS = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "chat_template.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "merges.txt",
    *sorted(TOKENIZER_FILES),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hub:
    """What was asked of which Hub, and where its cache is."""

    id: str
    revision: str
    endpoint: str
    token: str | None
    cache: Path
    offline: bool

    @property
    def folder(self) -> Path:
        return self.cache / f"models--{self.id.replace('/', '--')}"

    def api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.endpoint, token=self.token)


def inspect_hub(config: ModelConfig, *, environment: Mapping[str, str]) -> Checkpoint:
    """Return what the headers of the Hub checkpoint `config.id` say; `path` is set when it is in the cache.

    HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the cache's variables are honoured. Raises RequestError for a missing or
    malformed id, CheckpointError when it is absent, gated, broken or out of reach.
    """
    hub = _ask(config, environment)
    if hub.offline:
        return _from_cache(hub, config, why="HF_HUB_OFFLINE is set")
    try:
        info = hub.api().model_info(hub.id, revision=hub.revision, files_metadata=True, timeout=_TIMEOUT)
    except Exception as error:  # the HTTP library's own errors differ between huggingface_hub 0.x, 1.x and 2.x
        problem = _explain(error, hub)
        if _is_answer(error):
            raise problem from error
        return _from_cache(hub, config, why=problem.message)
    snapshot = hub.folder / "snapshots" / info.sha
    if snapshot.is_dir():
        try:
            return _inspect_snapshot(snapshot, hub, config)
        except CheckpointError:
            pass  # a part of it is there, config.json perhaps: the Hub knows the rest
    with _explained(hub):
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
    hub = _ask(config, os.environ if environment is None else environment)
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
    patterns += ["*.py"] if config.trust_remote_code else []
    with _explained(hub), _quiet(), _watched(hub.folder / "blobs", total=total, progress=progress):
        api = hub.api()
        folder = api.snapshot_download(
            hub.id, revision=checkpoint.revision, allow_patterns=patterns, cache_dir=str(hub.cache)
        )
        if not _COMMIT.fullmatch(hub.revision):
            # Leaves the branch's commit in the cache, so that it can be found offline.
            api.hf_hub_download(hub.id, "config.json", revision=hub.revision, cache_dir=str(hub.cache))
    return _inspect_snapshot(Path(folder), hub, config)


def _ask(config: ModelConfig, environment: Mapping[str, str]) -> _Hub:
    """Return the question with its blanks filled in from `environment`. Raises RequestError for a bad id."""
    if config.id is None:
        raise RequestError("model=hf needs model.id=ORG/NAME")
    spelled = config.id.strip()
    if not _ID.fullmatch(spelled) or "--" in spelled or ".." in spelled or len(spelled) > 96:
        hint = f"; for a local folder give model.path={spelled}" if os.path.isdir(spelled) else ""
        raise RequestError(
            f"model.id={config.id} is no Hub id: write ORG/NAME with letters, digits, '-', '_' and '.'"
            f" (no '--' or '..', 96 characters at most){hint}"
        )
    home = environment.get("HF_HOME") or os.path.join(
        environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return _Hub(
        id=spelled,
        revision=config.revision,
        endpoint=(environment.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/"),
        token=environment.get("HF_TOKEN") or None,
        cache=Path(os.path.expandvars(cache)).expanduser(),
        offline=offline.lower() in _TRUE,
    )


def _from_cache(hub: _Hub, config: ModelConfig, *, why: str) -> Checkpoint:
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


def _inspect_snapshot(folder: Path, hub: _Hub, config: ModelConfig, *, notes: Sequence[str] = ()) -> Checkpoint:
    return inspect_folder(
        folder, source="hf", id=hub.id, revision=folder.name, allow_pickle=config.allow_pickle, notes=notes
    )


def _from_hub(hub: _Hub, config: ModelConfig, info: Any) -> Checkpoint:
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
    tensors: list[StoredTensor] = []
    notes = ["sizes and headers are the Hub's; the files are not here yet"]
    if weights.format == "safetensors":
        tensors = _remote_tensors(api, hub, files=files, sizes=sizes, commit=commit)
        notes += compare_with_index(tensors, weight_map=weight_map, index=weights.index)
    return describe(
        source="hf", id=hub.id, revision=commit, path=None, config=settings, tensors=tensors,
        files={name: sizes[name] for name in files}, names=names, weights_format=weights.format, notes=notes,
    )  # fmt: skip


def _remote_tensors(
    api: Any, hub: _Hub, *, files: Sequence[str], sizes: Mapping[str, int], commit: str
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


def _is_answer(error: Exception) -> bool:
    """Whether the Hub itself said no, rather than being out of reach or out of order."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is not None and status < 500


def _explain(error: Exception, hub: _Hub) -> CheckpointError:
    """Return what to do about `error`, in the order of the library's own class tree."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    page = f"{hub.endpoint}/{hub.id}"
    token = "HF_TOKEN is set but does not open it" if hub.token else "HF_TOKEN is not set"
    if isinstance(error, errors.GatedRepoError):
        text = f"{hub.id} is gated ({token}): ask for access at {page}, then set HF_TOKEN to a token of yours"
    elif isinstance(error, errors.RevisionNotFoundError):
        text = f"{hub.id} has no revision {hub.revision}; give a branch, tag or commit of {page} as model.revision"
    elif isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        text = f"{hub.id} is not on {hub.endpoint}: check the spelling of model.id; if private, set HF_TOKEN ({token})"
    elif status in (401, 403):
        text = (
            f"{hub.endpoint} refuses {hub.id} with status {status} ({token}): set HF_TOKEN to a token that may read it"
        )
    elif isinstance(error, errors.SafetensorsParsingError):
        text = f"{hub.id} has a broken safetensors header: {error}"
    elif isinstance(error, errors.OfflineModeIsEnabled):
        text = "huggingface_hub is in offline mode"
    else:
        cause = error.__cause__ or error
        text = (
            f"{hub.endpoint} cannot be reached for {hub.id} ({type(cause).__name__}: {_first_line(cause)});"
            " check the connection and HF_ENDPOINT, or give a local folder: model.path=DIR"
        )
    return CheckpointError(text)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")


@contextmanager
def _explained(hub: _Hub) -> Iterator[None]:
    try:
        yield
    except (RequestError, KeyboardInterrupt):
        raise
    except Exception as error:  # see inspect_hub
        raise _explain(error, hub) from error


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
