"""The predicted bytes of one run, by part."""

from collections.abc import Mapping
from dataclasses import dataclass, field

PARTS = (
    "parameters", "buffers", "gradients", "optimizer_state", "activations", "kv_cache", "workspace", "overhead",
)  # fmt: skip
"""names of the parts of a Footprint; they sum up to its peak"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Predicted bytes. The parts are those alive at the moment of the peak; `peak` is their sum.

    `overhead` is what the process takes besides tensors: interpreter and libraries on the CPU, context and
    library workspaces on an accelerator. `None` is unknown.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer_state: int
    activations: int
    """kept for the backward pass"""
    kv_cache: int
    workspace: int
    """everything else that is alive at the peak: a forward's working set, inputs, logits"""
    overhead: int
    peak: int
    """the largest total at any moment, overhead counted in"""
    load_peak: int
    """allocated bytes at the highest moment of loading, without overhead"""
    work_peak: int
    """allocated bytes at the highest moment of the workload, without overhead"""
    moment: str
    """when the peak is: load, forward, prefill, decode, backward or optimizer_step"""
    module: str = ""
    """the model's module that is at work then, by its dotted name; empty outside of the model or unknown"""
    operation: str = ""
    """torch's name of the operation then"""
    method: str
    """how the figures were found: traced, or from headers alone"""
    notes: tuple[str, ...] = ()
    """what the method left out or estimated"""
    load_overhead: int = 0
    """what the process takes besides tensors while it loads; overhead adds what the workload brings"""
    timeline: tuple[tuple[str, Mapping[str, int]], ...] = field(default=(), repr=False)
    """(phase, category → live bytes) over the run, the highest moment of each stretch; overhead not counted in"""
    reserved: int | None = None
    """most bytes that the device's allocator holds for the tensors, in whole segments; it gives what is unused back
    before it reports that memory ran out, so what must fit lies between this and work_peak. None: not known"""

    parts: Mapping[str, int] = field(default_factory=dict)
    """a speech model's parts → bytes, each at its own highest moment, so that their sum may exceed the peak"""

    @property
    def where(self) -> str:
        """The moment of the peak in words: phase, module and operation, as far as they are known."""
        place = self.moment.replace("_", " ")
        place += f" of {self.module}" if self.module else ""
        return place + (f" ({self.operation})" if self.operation else "")

    @property
    def largest_part(self) -> tuple[str, int]:
        """The part that takes most at the peak, by its name in words, and its bytes."""
        name = max(PARTS, key=lambda part: int(getattr(self, part)))
        return name.replace("_", " "), int(getattr(self, name))
