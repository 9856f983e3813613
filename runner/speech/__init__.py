"""Qwen3-TTS: what may be asked of it, what it is made of, what it needs. Importing this imports no torch."""

from runner.speech.identity import is_qwen3_tts
from runner.speech.parts import part_bytes
from runner.speech.request import Speech, check_request
from runner.speech.text import split_sentences

__all__ = ["Speech", "check_request", "is_qwen3_tts", "part_bytes", "split_sentences"]
