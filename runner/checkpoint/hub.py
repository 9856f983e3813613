"""Inspect a checkpoint on the Hugging Face Hub before it is downloaded, and download what a run needs of it."""

import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.checkpoint.folder import CONFIG, INDEX, TOKENIZER_FILES, WEIGHTS, describe, inspect_folder
from runner.checkpoint.headers import DTYPES, check_index, read_index, read_json
from runner.checkpoint.value import Checkpoint, StoredTensor
from runner.config import ModelConfig
from runner.errors import CheckpointError, RequestError
from runner.settings import ITEMSIZE
from runner.units import format_size

ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+", re.ASCII)
TIMEOUT = 10.0
"""seconds for one answer of the Hub"""
SMALL_FILES = (
    "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken",
)  # fmt: skip
"""configuration and tokenizer files that are downloaded with the weights"""


def inspect_hub(config: ModelConfig) -> Checkpoint:
    """Return what the Hub has under model.id, from configuration and headers alone.

    A snapshot that is already in the cache is used, also without a network. Raises RequestError for a missing or
    malformed id; CheckpointError for what is absent, gated or not reachable, with what to type.
    """
    if config.id is None:
        raise RequestError("model=hf needs an id: model.id=ORG/NAME")
    if not ID.fullmatch(config.id):
        raise RequestError(f"model.id={config.id} is not a Hub id; write ORG/NAME, such as model.id=Qwen/Qwen3-1.7B")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        with _explained(config):
            info = HfApi().model_info(config.id, revision=config.revision, files_metadata=True, timeout=TIMEOUT)
    except _Unreachable as unreachable:
        cached = _cached(config, config.revision)
        if cached is None:
            raise CheckpointError(
                f"model.id={config.id} is not in the cache, and the Hub cannot be reached ({unreachable}); "
                f"download it where there is a network, or give a folder with model.path=DIR"
            ) from None
        return cached
    except HfHubHTTPError as error:
        raise CheckpointError(f"the Hub refused model.id={config.id}: {error}") from None
    revision = str(info.sha)
    cached = _cached(config, revision)
    if cached is not None:
        return cached
    sizes = {item.rfilename: item.size or 0 for item in info.siblings or ()}
    with _explained(config):
        return _remote(config, revision, sizes)


def fetch(checkpoint: Checkpoint, config: ModelConfig) -> Checkpoint:
    """Download what a run needs of a Hub checkpoint, safetensors only unless pickles are allowed.

    Returns the checkpoint with its folder, inspected again. Raises CheckpointError, also when the disk is too full.
    """
    from huggingface_hub import constants, hf_hub_download, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(p for p in (cache, *cache.parents) if p.exists())).free
    if checkpoint.num_bytes > free:
        raise CheckpointError(
            f"model.id={checkpoint.id} takes {format_size(checkpoint.num_bytes)}, {format_size(free)} is free in "
            f"{cache}: {format_size(checkpoint.num_bytes - free)} short. HF_HOME=DIR puts the cache elsewhere"
        )
    if not sys.stderr.isatty():
        disable_progress_bars()
    files = sorted({tensor.file for tensor in checkpoint.tensors} | set(checkpoint.pickle_files))
    code = ["*.py"] if config.trust_remote_code else []
    with _explained(config):
        folder = snapshot_download(
            str(checkpoint.id), revision=checkpoint.revision, allow_patterns=[*files, *SMALL_FILES, *code]
        )
        # The branch is noted in the cache by name, so that it is found there without a network.
        hf_hub_download(str(checkpoint.id), CONFIG, revision=config.revision)
    return inspect_folder(
        Path(folder), source="hf", allow_pickle=config.allow_pickle, id=checkpoint.id, revision=checkpoint.revision
    )


def _remote(config: ModelConfig, revision: str, sizes: dict[str, int]) -> Checkpoint:
    """Read configuration and headers of one commit, the headers with range requests."""
    from huggingface_hub import hf_hub_download, snapshot_download

    def small(name: str) -> Path:
        return Path(hf_hub_download(str(config.id), name, revision=revision))

    if CONFIG not in sizes:
        raise CheckpointError(f"model.id={config.id} has no {CONFIG}, so it is no transformers checkpoint")
    pickles = {name: size for name, size in sizes.items() if "/" not in name and name.endswith(".bin")}
    weight_map: dict[str, str] = {}
    if INDEX in sizes:
        weight_map = read_index(small(INDEX))
        shards = sorted(set(weight_map.values()))
        absent = [shard for shard in shards if shard not in sizes]
        if absent:
            raise CheckpointError(f"{INDEX} names {absent[0]}, which model.id={config.id} does not have")
    elif WEIGHTS in sizes:
        shards = [WEIGHTS]
    elif pickles and config.allow_pickle:
        shards = []
    elif pickles:
        raise CheckpointError(
            f"model.id={config.id} has only pickled weights ({', '.join(list(pickles)[:3])}), which can run code when "
            f"loaded; a conversion may be on the Hub as model.revision=refs/pr/N, or set model.allow_pickle=true"
        )
    else:
        others = [name for name in sizes if name.endswith((".safetensors", ".gguf"))]
        found = f"; it has {', '.join(others[:3])}" if others else ""
        raise CheckpointError(f"model.id={config.id} has neither {WEIGHTS} nor {INDEX}{found}")
    with ThreadPoolExecutor(max_workers=8) as pool:
        headers = dict(
            zip(shards, pool.map(lambda shard: _header(str(config.id), revision, shard), shards), strict=True)
        )
    if weight_map:
        check_index(weight_map, headers, INDEX)
    folder = Path(snapshot_download(str(config.id), revision=revision, allow_patterns=list(SMALL_FILES)))
    described = describe(
        read_json(small(CONFIG)),
        tuple(tensor for shard in shards for tensor in headers[shard]),
        source="hf",
        id=config.id,
        revision=revision,
        path=None,
        has_tokenizer=any(name in sizes for name in TOKENIZER_FILES),
        files={} if shards else pickles,
    )
    return replace(described, tokenizer_path=folder)


def _header(id: str, revision: str, file: str) -> tuple[StoredTensor, ...]:
    from huggingface_hub import HfApi

    found = HfApi().parse_safetensors_file_metadata(id, file, revision=revision)
    tensors = []
    for name, entry in found.tensors.items():
        if entry.dtype not in DTYPES:
            raise CheckpointError(f"{file}: {name!r} has dtype {entry.dtype!r}; known are {', '.join(DTYPES)}")
        begin, end = entry.data_offsets
        dtype = DTYPES[entry.dtype]
        count = 1
        for length in entry.shape:
            count *= length
        if count * ITEMSIZE[dtype] != end - begin:
            raise CheckpointError(
                f"{file}: {name!r} of shape {entry.shape} in {entry.dtype} cannot be {end - begin} bytes"
            )
        tensors.append(
            StoredTensor(
                name=name, dtype=dtype, shape=tuple(entry.shape), num_bytes=end - begin, file=file, offset=begin
            )
        )
    return tuple(tensors)


def _cached(config: ModelConfig, revision: str) -> Checkpoint | None:
    """Return the checkpoint from the local cache when all of its weights are there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(str(config.id), CONFIG, revision=revision)
    if not isinstance(found, str):
        return None
    folder = Path(found).parent
    try:
        return inspect_folder(folder, source="hf", allow_pickle=config.allow_pickle, id=config.id, revision=folder.name)
    except CheckpointError:  # begun and not finished: the Hub is asked for the rest
        return None


class _Unreachable(Exception):
    """No answer from the Hub: offline by choice, or no network."""


@contextmanager
def _explained(config: ModelConfig) -> Iterator[None]:
    """Turn the Hub's errors into ours."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise CheckpointError(
            f"model.id={config.id} is gated: accept its terms on its page, then set HF_TOKEN to a token for it"
        ) from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(
            f"model.id={config.id} has no revision {config.revision!r}; main is the default"
        ) from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"model.id={config.id} is not on the Hub, or it is private: check the spelling, or set HF_TOKEN"
        ) from None
    except (errors.SafetensorsParsingError, errors.NotASafetensorsRepoError) as error:
        raise CheckpointError(f"model.id={config.id}: {error}") from None
    except errors.OfflineModeIsEnabled:
        raise _Unreachable("HF_HUB_OFFLINE is set") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        raise CheckpointError(f"the Hub answered {status} for model.id={config.id}: {error}") from None
    except Exception as error:
        if _is_connection_error(error):
            raise _Unreachable(type(error).__name__) from None
        raise


def _is_connection_error(error: BaseException | None) -> bool:
    """Whether a request got no answer; huggingface_hub uses requests before 1.0 and httpx after."""
    if error is None:
        return False
    kinds: list[Any] = [ConnectionError, TimeoutError]
    for module, name in (("requests.exceptions", "RequestException"), ("httpx", "TransportError"),
                         ("httpx2", "TransportError")):  # fmt: skip
        if module in sys.modules:
            kinds.append(getattr(sys.modules[module], name))
    return isinstance(error, tuple(kinds)) or _is_connection_error(error.__cause__)
