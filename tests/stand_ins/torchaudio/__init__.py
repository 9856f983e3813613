"""Inert: see the README beside it."""

from torchaudio import compliance as compliance
from torchaudio.compliance import kaldi as kaldi
