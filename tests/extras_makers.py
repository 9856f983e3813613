"""Marks for tests of what optional packages do."""

import importlib.util

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Skip where the package is not installed."""
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")
