"""Inert: see the README beside it."""
