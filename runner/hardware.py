"""What there is: the device, its memory, what this process may use of it, and what it computes natively."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine as a value. Sizes are bytes; None is unknown; `sources` says where each figure came from."""

    device: str
    """torch's name of it: cpu, cuda:0, xpu:0, mps"""
    device_type: str
    """cpu, cuda, xpu or mps"""
    name: str
    """the product's name"""
    total: int | None
    """memory of the device, or of the container for the CPU"""
    free: int | None
    """what nobody uses now; reclaimable page cache counts as free"""
    budget: int | None
    """what this process may take in addition to what it has: the least of free and every limit"""
    budget_source: str
    """which figure set the budget"""
    dtypes: tuple[str, ...]
    """dtypes that the device computes natively, among float32, bfloat16 and float16, best first"""
    emulated_dtypes: tuple[str, ...] = ()
    """dtypes that run, but slowly or by conversion"""
    capability: tuple[int, int] | None = None
    """CUDA compute capability"""
    backend: str | None = None
    """cuda, rocm, xpu, mps or cpu: what torch was built for and runs on"""
    instruction_sets: tuple[str, ...] = ()
    """of the CPU, those that matter for precision: avx2, avx512f, avx512_bf16, amx_bf16, amx_fp16, …"""
    num_devices: int = 1
    """devices of this type that are visible"""
    unified: bool = False
    """whether device and host share one pool"""
    host_total: int | None = None
    host_available: int | None = None
    """of the host, container limits counted in"""
    is_profile: bool = False
    """whether this describes a machine that is not here"""
    sources: Mapping[str, str] = field(default_factory=dict)
    """figure → where it came from"""
    notes: tuple[str, ...] = ()
    """what the user should know: a shadowed GPU, a limit that bites, a figure that is unknown"""

    def supports(self, dtype: str) -> bool:
        """Whether `dtype` (float32, bfloat16, float16) is computed natively."""
        return dtype in self.dtypes
