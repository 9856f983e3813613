"""The machine as a value, and the pieces that it is put together from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.units import format_size


@dataclass(frozen=True, slots=True)
class Figure:
    """An amount and where it came from. None is unknown; the source then says why."""

    value: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One visible device other than the CPU."""

    device: str
    """torch's name of it: cuda:0, xpu:0, mps"""
    name: str
    backend: str
    """cuda, rocm, xpu or mps"""
    total: Figure
    free: Figure
    reserved: int | None = None
    capability: tuple[int, int] | None = None
    uuid: str | None = None
    unified: bool = False
    dtypes: tuple[str, ...] = ("float32",)
    emulated_dtypes: tuple[str, ...] = ()
    dtypes_source: str = "unknown device: only float32 is taken for granted"
    unusable: str | None = None
    """why torch cannot compute on it, although it is there"""
    notes: tuple[str, ...] = ()

    @property
    def device_type(self) -> str:
        """cuda, xpu or mps."""
        return self.device.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What one driver shows."""

    devices: tuple[Accelerator, ...] = ()
    hidden: tuple[str, ...] = ()
    """names of devices that the environment hides"""
    hidden_by: str = ""
    """the variable that hides them, as it stands"""
    problem: str | None = None
    """why no device, or no figure, could be had; None also when there is no driver"""
    build: str = ""
    """which torch it is, and what it was built for"""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The CPU and its memory, container limits counted in."""

    name: str
    total: Figure
    available: Figure
    limits: tuple[Figure, ...] = ()
    """what further limits leave to this process"""
    instruction_sets: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    emulated_dtypes: tuple[str, ...] = ("bfloat16", "float16")
    dtypes_source: str = ""
    notes: tuple[str, ...] = ()


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
    """dtypes that the device computes natively: bfloat16 (float32's range in half the bytes), float16, float32"""
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
    """whether an accelerator shares one pool of memory with its host"""
    host_total: int | None = None
    host_available: int | None = None
    """of the host, container limits counted in"""
    is_profile: bool = False
    """whether this describes a machine that is not here"""
    uuid: str | None = None
    """the driver's own name of the device; it stays the same however devices are numbered"""
    reserved: int | None = None
    """bytes of `total` that the driver keeps and nobody can take"""
    sources: Mapping[str, str] = field(default_factory=dict)
    """figure → where it came from"""
    notes: tuple[str, ...] = ()
    """what the user should know: a shadowed GPU, a limit that bites, a figure that is unknown"""

    def supports(self, dtype: str) -> bool:
        """Whether `dtype` (float32, bfloat16, float16) is computed natively."""
        return dtype in self.dtypes


def least(figures: Iterable[Figure]) -> Figure | None:
    """Return the smallest known figure, the first of equals; None when nothing is known."""
    known = [figure for figure in figures if figure.value is not None]
    return min(known, key=lambda figure: figure.value or 0, default=None)


def settle_budget(figures: Sequence[Figure], limit: int | None) -> tuple[Figure, tuple[str, ...]]:
    """Return the least of what is left and memory.limit, and a note where the limit changes nothing."""
    left = least(figures)
    if limit is None:
        return left or Figure(None, "unknown: " + figures[0].source), ()
    if left is None or left.value is None:
        return Figure(limit, "memory.limit"), (f"how much is free is unknown: {figures[0].source}",)
    if limit < left.value:
        return Figure(limit, "memory.limit"), ()
    note = f"memory.limit={format_size(limit)} is not below what is free, {format_size(left.value)} ({left.source})"
    return left, (note,)


def with_limit(machine: Hardware, limit: int | None) -> Hardware:
    """Return a machine that was described without a limit as it is with memory.limit, in bytes."""
    budget, notes = settle_budget([Figure(machine.budget, machine.budget_source)], limit)
    return replace(machine, budget=budget.value, budget_source=budget.source, notes=(*machine.notes, *notes))
