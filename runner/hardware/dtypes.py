"""Which dtypes a device computes natively. A type that runs by conversion saves bytes and costs time."""

PREFERENCE = ("bfloat16", "float16", "float32")
"""Best first: half the bytes with float32's range, then half the bytes, then float32"""

RELEVANT_SETS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "fphp",
    "asimdhp",
    "sve",
    "bf16",
    "svebf16",
)
"""Flags of /proc/cpuinfo that decide how half precision runs on a CPU"""

_BFLOAT16_SETS = {"avx512_bf16", "amx_bf16", "bf16"}
_FLOAT16_SETS = {"avx512_fp16", "amx_fp16", "asimdhp"}
_ROCM_MAJOR_WITH_BFLOAT16 = 11
_MI100, _MI200 = 90008, 90010

Dtypes = tuple[tuple[str, ...], tuple[str, ...], str]
"""native best first, emulated, and why"""


def cuda_dtypes(capability: tuple[int, int] | None) -> Dtypes:
    """Return what a CUDA device of this compute capability computes natively.

    Source: the arithmetic throughput table and the data type sections of the CUDA programming guide. 8.0 brought
    bfloat16; 5.3 float16, at double rate except on 6.1, where it runs at 1/64 of float32; 7.0 the matrix units.
    """
    if capability is None:
        return _split({"float32"}, "compute capability unknown: only float32 is taken for granted")
    number = f"compute capability {capability[0]}.{capability[1]}"
    if capability >= (8, 0):
        return _split({"bfloat16", "float16", "float32"}, f"{number}: 8.0 and later have bfloat16 and float16")
    if capability >= (7, 0):
        return _split({"float16", "float32"}, f"{number}: float16 is native, bfloat16 needs 8.0 and is emulated here")
    if capability == (6, 1) or capability < (5, 3):
        return _split(
            {"float32"}, f"{number}: float16 runs at a small fraction of float32's rate, bfloat16 is emulated"
        )
    return _split({"float16", "float32"}, f"{number}: float16 is native but has no matrix units, which came with 7.0")


def rocm_dtypes(target: int | None) -> Dtypes:
    """Return what an AMD device of gfx target version `target` (90010 is gfx90a) computes natively.

    Source: AMD's ISA guides. bfloat16 at full rate came with MI200 (gfx90a) and with RDNA 3 (gfx11).
    """
    if target is None:
        return _split({"float16", "float32"}, "gfx version unknown: float16 and float32 are taken for granted")
    name = gfx_name(target)
    if _MI200 <= target < 100000 or target // 10000 >= _ROCM_MAJOR_WITH_BFLOAT16:
        return _split({"bfloat16", "float16", "float32"}, f"{name} has bfloat16 and float16")
    return _split({"float16", "float32"}, f"{name}: bfloat16 at full rate came with gfx90a (MI200) and gfx11")


def gfx_name(target: int) -> str:
    """Return AMD's name for a gfx target version: 90010 → gfx90a, 110000 → gfx1100."""
    major, minor, step = target // 10000, target // 100 % 100, target % 100
    return f"gfx{major}{minor:x}{step:x}"


def gfx_target(name: str | None) -> int | None:
    """Return the gfx target version that `gfx90a:sramecc+` names; None when it names none."""
    digits = (name or "").partition(":")[0].removeprefix("gfx")
    if len(digits) < 3 or not digits[:-2].isdecimal():
        return None
    try:
        return int(digits[:-2]) * 10000 + int(digits[-2], 16) * 100 + int(digits[-1], 16)
    except ValueError:
        return None


def xpu_dtypes(bfloat16: bool | None) -> Dtypes:
    """Return what an Intel GPU computes natively; `bfloat16` is torch's has_bfloat16_conversions."""
    if bfloat16 is False:
        return _split({"float16", "float32"}, "torch: the device has no bfloat16 conversions")
    return _split({"bfloat16", "float16", "float32"}, "torch's XPU devices have bfloat16 and float16")


def mps_dtypes(release: str) -> Dtypes:
    """Return what Metal computes on this macOS `release`; bfloat16 came with macOS 14."""
    major = release.partition(".")[0]
    if major.isdecimal() and int(major) >= 14:
        return _split({"bfloat16", "float16", "float32"}, f"macOS {release}: 14 and later have bfloat16")
    return _split({"float16", "float32"}, f"macOS {release or 'unknown'}: bfloat16 needs 14")


def cpu_dtypes(instruction_sets: tuple[str, ...]) -> Dtypes:
    """Return what a CPU with these flags computes natively.

    Measured with torch 2.13, one thread, a product of two 1024 x 1024 matrices, as multiples of float32's time:
    with avx512_bf16 bfloat16 0.23, float16 (no avx512_fp16) 104; held to AVX-512 without bf16 bfloat16 1.25, float16
    99; held to AVX2 bfloat16 81, float16 106.
    """
    present = set(instruction_sets)
    native = {"float32"}
    native |= {"bfloat16"} if present & _BFLOAT16_SETS else set()
    native |= {"float16"} if present & _FLOAT16_SETS else set()
    found = ", ".join(sorted(present & (_BFLOAT16_SETS | _FLOAT16_SETS))) or "no half precision instructions"
    reason = f"{found} among the CPU's flags"
    if "bfloat16" not in native:
        slow = "little slower than" if "avx512f" in present else "tens of times slower than"
        reason += f"; emulated bfloat16 is {slow} float32 in matrix products"
    return _split(native, reason)


def _split(native: set[str], reason: str) -> Dtypes:
    best_first = tuple(dtype for dtype in PREFERENCE if dtype in native)
    return best_first, tuple(dtype for dtype in PREFERENCE if dtype not in native), reason
