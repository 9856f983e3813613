"""Which Hub is asked, with what token and cache, and what its refusals mean."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config import ModelConfig
from runner.errors import CheckpointError, RequestError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TRUE = {"1", "on", "yes", "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
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


def ask_hub(config: ModelConfig, environment: Mapping[str, str]) -> Hub:
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
    if not config.revision.strip() or ".." in config.revision:
        raise RequestError(f"model.revision={config.revision} is no revision; give a branch, a tag or a commit")
    home = environment.get("HF_HOME") or os.path.join(
        environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    offline = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return Hub(
        id=spelled,
        revision=config.revision,
        endpoint=(environment.get("HF_ENDPOINT") or _default_endpoint()).rstrip("/"),
        token=environment.get("HF_TOKEN") or None,
        cache=Path(os.path.expanduser(os.path.expandvars(cache))),
        offline=offline.lower() in _TRUE,
    )


def _default_endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def is_answer(error: Exception) -> bool:
    """Whether the Hub itself said no, rather than being out of reach or out of order."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is not None and status < 500


def explain(error: Exception, hub: Hub) -> CheckpointError:
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
def explained(hub: Hub) -> Iterator[None]:
    try:
        yield
    except (RequestError, KeyboardInterrupt):
        raise
    except Exception as error:  # the HTTP library's own errors differ between huggingface_hub 0.x, 1.x and 2.x
        raise explain(error, hub) from error
