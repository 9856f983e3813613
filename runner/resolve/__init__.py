"""Decide how to run: choices with reasons, the fit check, concessions and remedies. Pure: no file, no device."""

from runner.resolve.fit import base_settings, margin_for, refusal, resolve
from runner.resolve.speak import resolve_speech
from runner.resolve.talker import with_talker_choices
from runner.resolve.types import Choice, Plan, Remedy

__all__ = [
    "Choice", "Plan", "Remedy", "base_settings", "margin_for", "refusal", "resolve", "resolve_speech",
    "with_talker_choices",
]  # fmt: skip
