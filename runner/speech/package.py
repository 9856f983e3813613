"""The package qwen-tts, which has the model's classes and works with one transformers only."""

import contextlib
import io
from importlib import metadata, util
from typing import Any

from runner.errors import RequestError

NEEDS = "4.57"


def require_package() -> None:
    """Raise RequestError, with what to type, where qwen-tts cannot work. Imports nothing."""
    found = metadata.version("transformers")
    if util.find_spec("qwen_tts") is not None and found.startswith(NEEDS):
        return
    lacks = "" if util.find_spec("qwen_tts") is not None else " and no qwen-tts"
    raise RequestError(
        f"Qwen3-TTS needs the extra qwen3-tts, in an environment with transformers {NEEDS}.3; this one has "
        f"transformers {found}{lacks}. Make one, from a clone: python -m venv speak && speak/bin/pip install "
        "'.[qwen3-tts]', and run speak/bin/python -m runner …"
    )


def import_package() -> Any:
    """Return the module qwen_tts.core.models; it prints on import, which is kept off the terminal."""
    require_package()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import qwen_tts.core.models as models  # type: ignore[import-not-found,unused-ignore]
            import qwen_tts.inference.qwen3_tts_model  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError as error:
        raise RequestError(f"qwen-tts cannot be imported: {error}; install '.[qwen3-tts]' whole") from None
    return models
