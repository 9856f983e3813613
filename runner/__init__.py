"""Run a model on the memory there is: resolve, predict, load, work, record."""

__version__ = "0.1.0"
