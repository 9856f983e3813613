"""Inert: see the README beside it."""


def rearrange(*arguments: object, **options: object) -> object:
    raise NotImplementedError("only the 25 Hz codec needs it")


repeat = rearrange
