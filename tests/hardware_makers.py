"""Other machines: a folder as `/`, an object as the driver, torch's version file. Each maker takes overrides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runner.hardware import Sources
from runner.hardware.torch_build import Probe
from runner.units import GiB, KiB, MiB


def kilobytes(**sizes: int) -> str:
    """Return lines such as /proc/meminfo has, from bytes."""
    return "".join(f"{name}:  {size // KiB} kB\n" for name, size in sizes.items())


def write(root: Path, files: Mapping[str, object]) -> Path:
    """Write the files, whose names are absolute on the machine, below root."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


def linux(root: Path, *, flags: str = "avx2", files: Mapping[str, object] | None = None, **sizes: int) -> Path:
    """Make a Linux machine of 32 GiB, 24 GiB of them available, without cgroup limits."""
    memory = {"MemTotal": 32 * GiB, "MemFree": 8 * GiB, "MemAvailable": 24 * GiB, **sizes}
    return write(
        root,
        {
            "/proc/meminfo": kilobytes(**{name: size for name, size in memory.items() if size}),
            "/proc/cpuinfo": f"model name : A CPU\nflags : fpu {flags}\n",
            "/proc/self/status": kilobytes(VmSize=1 * GiB, VmData=GiB // 2),
            "/proc/self/limits": "Max data size             unlimited            unlimited            bytes\n",
            **(files or {}),
        },
    )


V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
V2_MOUNT = "41 31 0:38 {root} {point} rw,relatime - cgroup2 cgroup2 rw\n"


def cgroup_v1(groups: Mapping[str, Mapping[str, object]], *, own: str, root: str = "/") -> dict[str, object]:
    """Return the files of a v1 hierarchy; a group maps limit, usage and lines of memory.stat."""
    files: dict[str, object] = {
        "/proc/self/cgroup": f"4:cpu:/\n3:memory:{own}\n",
        "/proc/self/mountinfo": V1_MOUNT.format(root=root),
    }
    for group, facts in groups.items():
        folder = f"/sys/fs/cgroup/memory{group.rstrip('/')}"
        files[f"{folder}/memory.limit_in_bytes"] = facts.get("limit", 9223372036854771712)
        files[f"{folder}/memory.usage_in_bytes"] = facts.get("usage", 0)
        files[f"{folder}/memory.stat"] = facts.get("stat", "")
    return files


def cgroup_v2(
    groups: Mapping[str, Mapping[str, object]], *, own: str, root: str = "/", point: str = "/sys/fs/cgroup"
) -> dict[str, object]:
    """Return the files of a v2 hierarchy; a group maps max, high, current and lines of memory.stat."""
    files: dict[str, object] = {
        "/proc/self/cgroup": f"0::{own}\n",
        "/proc/self/mountinfo": V2_MOUNT.format(root=root, point=point),
    }
    for group, facts in groups.items():
        folder = f"{point}{group.rstrip('/')}"
        files[f"{folder}/memory.max"] = facts.get("max", "max")
        files[f"{folder}/memory.high"] = facts.get("high", "max")
        files[f"{folder}/memory.current"] = facts.get("current", 0)
        files[f"{folder}/memory.stat"] = facts.get("stat", "")
    return files


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One NVIDIA device as the driver describes it."""

    name: str = "NVIDIA GeForce RTX 3060"
    uuid: str = "GPU-3060aaaa"
    capability: tuple[int, int] = (8, 6)
    total: int | None = 12 * GiB
    used: int = 0
    reserved: int = 246 * MiB
    mig: tuple["Gpu", ...] = ()


class NvmlError(Exception):
    """What the bindings raise."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class Nvml:
    """The driver's library, with the devices given. It knows memory info v2 unless `old`."""

    NVMLError = NvmlError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *gpus: Gpu, cuda: int = 13000, old: bool = False, broken: NvmlError | None = None) -> None:
        self.gpus, self.cuda, self.old, self.broken = gpus, cuda, old, broken
        self.open = 0

    def nvmlInit(self) -> None:
        if self.broken is not None:
            raise self.broken
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if self.gpus[index].name == "lost":
            raise NvmlError(15, "GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return gpu.name

    def nvmlDeviceGetCudaComputeCapability(self, gpu: Gpu) -> tuple[int, int]:
        return gpu.capability

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        if not gpu.mig:
            raise NvmlError(self.NVML_ERROR_NOT_SUPPORTED, "Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, index: int) -> Gpu:
        if index >= len(gpu.mig):
            raise NvmlError(6, "Not Found")
        return gpu.mig[index]

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu, version: int | None = None) -> Any:
        if gpu.total is None or (version and self.old):
            raise NvmlError(self.NVML_ERROR_NOT_SUPPORTED, "Not Supported")
        free = gpu.total - gpu.used - gpu.reserved
        if version:
            return SimpleNamespace(total=gpu.total, used=gpu.used, reserved=gpu.reserved, free=free)
        return SimpleNamespace(total=gpu.total, used=gpu.used + gpu.reserved, free=free)


def no_driver() -> Nvml:
    """Return a library that finds no driver."""
    return Nvml(broken=NvmlError(Nvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"))


def refuse_to_probe(environment: Mapping[str, str]) -> Probe:
    """Fail the test: torch costs seconds, and this machine's drivers tell everything."""
    raise AssertionError("torch was asked without need")


def sources(
    root: Path,
    *,
    gpus: Sequence[Gpu] = (),
    nvml: Nvml | None = None,
    cuda: str | None = None,
    hip: str | None = None,
    xpu: str | None = None,
    probe: Probe | None = None,
    environment: Mapping[str, str] | None = None,
    **more: Any,
) -> Sources:
    """Return a machine below `root`; torch is built for the CPU unless cuda, hip or xpu name a version."""
    if not (root / "proc/meminfo").exists():
        linux(root)
    kinds = {"cuda": cuda, "hip": hip, "xpu": xpu}
    lines = ["from typing import Optional", "__version__ = '2.13.0'"]
    lines += [f"{name}: Optional[str] = {version!r}" for name, version in kinds.items()]
    file = root / "torch/version.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines))
    library = nvml or (Nvml(*gpus) if gpus else no_driver())
    return Sources(
        root=root,
        environment=environment or {},
        system=more.pop("system", "linux"),
        machine=more.pop("machine", "x86_64"),
        nvml=lambda: library,
        torch_version=lambda: file,
        probe=refuse_to_probe if probe is None else lambda environment: probe,
        **more,
    )
