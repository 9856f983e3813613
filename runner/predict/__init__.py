"""Predict the bytes that a run will need, before anything is loaded."""
