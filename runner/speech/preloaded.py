"""Imported by the workers' server before it forks, so that workers need not import qwen-tts one by one."""

import contextlib

from runner.errors import RequestError
from runner.speech.package import import_package

with contextlib.suppress(RequestError):
    import_package()
