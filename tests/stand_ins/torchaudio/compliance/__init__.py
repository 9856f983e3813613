"""Inert: see the README two folders up."""
