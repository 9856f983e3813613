"""What there is: the device, its memory, what this process may use of it, and what it computes natively."""

from runner.hardware.detect import describe, detect
from runner.hardware.profiles import profile
from runner.hardware.sources import Sources
from runner.hardware.value import Hardware, with_limit

__all__ = ["Hardware", "Sources", "describe", "detect", "profile", "with_limit"]
