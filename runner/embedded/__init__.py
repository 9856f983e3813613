"""A small causal language model with trained weights, shipped with the package; `make.py` made it."""

from pathlib import Path

FOLDER = Path(__file__).parent / "model"
"""a checkpoint folder like any other"""
