"""Inert: see the README beside it."""


def rearrange(*arguments: object, **options: object) -> object:
    raise ImportError("einops is not installed; the 25 Hz codec alone needs it")


repeat = rearrange
