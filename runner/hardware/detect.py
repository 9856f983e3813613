"""The machine at hand as a value. torch is not imported here: its files say what it was built for."""

from collections.abc import Mapping
from dataclasses import replace

from runner.config import HardwareConfig
from runner.errors import RequestError
from runner.hardware.amd import survey_amd
from runner.hardware.asked import survey_torch
from runner.hardware.choose import choose
from runner.hardware.host import inspect_host
from runner.hardware.nvidia import survey_nvidia
from runner.hardware.profiles import profile
from runner.hardware.sources import Sources
from runner.hardware.torch_build import TorchBuild, read_torch_build
from runner.hardware.value import Accelerator, Hardware, Host, Survey, settle_budget


def describe(
    config: HardwareConfig,
    *,
    limit: int | None = None,
    environment: Mapping[str, str] | None = None,
    sources: Sources | None = None,
) -> Hardware:
    """Return the machine that `config` names: a profile where it gives a product, else the one at hand."""
    if config.is_profile:
        return profile(config, limit=limit)
    return detect(config, limit=limit, environment=environment, sources=sources)


def detect(
    config: HardwareConfig,
    *,
    limit: int | None = None,
    environment: Mapping[str, str] | None = None,
    sources: Sources | None = None,
) -> Hardware:
    """Return what this machine has, on the device that `config` asks for.

    `limit` is memory.limit in bytes; it is the budget when it is below everything else. `environment` defaults to
    the process's own. Raises RequestError when the device asked for is not here.
    """
    if config.total is not None or config.capability is not None:
        raise RequestError(
            "hardware.total and hardware.capability describe a machine that is not here; "
            "name it too, hardware.product=NAME, or leave them out"
        )
    sources = sources or Sources()
    if environment is not None:
        sources = replace(sources, environment=environment)
    build = read_torch_build(sources.torch_version())
    host = inspect_host(sources)
    survey = replace(_survey(sources, build, host), build=str(build or ""))
    chosen, reason = choose(config.device, survey)
    if chosen is None:
        return _cpu(host, limit, notes=(*reason, *survey.notes))
    return _accelerated(chosen, survey, host, limit, notes=(*reason, *survey.notes))


def _survey(sources: Sources, build: TorchBuild | None, host: Host) -> Survey:
    """Ask the driver of the kind of device that torch was built for; the others only so as to say that they idle."""
    if build is None:
        return Survey(problem="PyTorch is not installed: only the CPU is described")
    backend = build.backend
    if sources.system == "darwin":
        return survey_torch(sources, host=host) if sources.machine == "arm64" else Survey()
    if backend == "xpu":
        return survey_torch(sources, host=host)
    nvidia = survey_nvidia(sources, build=build, host_total=host.total, host_free=host.available)
    if backend == "cuda":
        return _second_opinion(sources, nvidia, host)
    amd = survey_amd(sources)
    if backend == "rocm":
        return amd
    return _shadowed([*nvidia.devices, *amd.devices], build)


def _second_opinion(sources: Sources, survey: Survey, host: Host) -> Survey:
    """Ask torch itself where NVML says that there is a device but not what memory it has, or does not answer."""
    unknown = [device for device in survey.devices if device.total.value is None]
    if survey.problem is None and not unknown:
        return survey
    asked = survey_torch(sources, host=host)
    if not asked.devices:
        problem = survey.problem and f"{survey.problem.rstrip('.')}; {asked.problem or 'torch sees no device either'}"
        return replace(survey, problem=problem)
    if survey.problem is not None:
        return replace(asked, notes=(f"{survey.problem.rstrip('.')}; the figures are torch's",))
    better = {device.device: device for device in asked.devices if device.total.value is not None}
    return replace(survey, devices=tuple(_completed(device, better) for device in survey.devices))


def _completed(device: Accelerator, better: Mapping[str, Accelerator]) -> Accelerator:
    if device.total.value is not None or device.device not in better:
        return device
    other = better[device.device]
    return replace(device, total=other.total, free=other.free, unified=other.unified, notes=other.notes)


def _shadowed(devices: list[Accelerator], build: TorchBuild) -> Survey:
    """Return no device, and what is here but not for this build of torch."""
    if not devices:
        return Survey()
    names = ", ".join(device.name for device in devices)
    kind = {"cuda": "CUDA", "rocm": "ROCm"}[devices[0].backend]
    return Survey(problem=f"{names} cannot be used: {build} only; install a {kind} build of PyTorch")


def _cpu(host: Host, limit: int | None, *, notes: tuple[str, ...]) -> Hardware:
    budget, more = settle_budget([host.available, *host.limits], limit)
    return Hardware(
        device="cpu",
        device_type="cpu",
        name=host.name,
        total=host.total.value,
        free=host.available.value,
        budget=budget.value,
        budget_source=budget.source,
        dtypes=host.dtypes,
        emulated_dtypes=host.emulated_dtypes,
        backend="cpu",
        sources={
            "total": host.total.source,
            "free": host.available.source,
            "dtypes": host.dtypes_source,
            "host_total": host.total.source,
            "host_available": host.available.source,
        },
        notes=(*notes, *host.notes, *more),
        instruction_sets=host.instruction_sets,
        host_total=host.total.value,
        host_available=host.available.value,
    )


def _accelerated(
    device: Accelerator, survey: Survey, host: Host, limit: int | None, *, notes: tuple[str, ...]
) -> Hardware:
    shared = [host.available, *host.limits] if device.unified else []
    budget, more = settle_budget([device.free, *shared], limit)
    return Hardware(
        device=device.device,
        device_type=device.device_type,
        name=device.name,
        total=device.total.value,
        free=device.free.value,
        budget=budget.value,
        budget_source=budget.source,
        dtypes=device.dtypes,
        emulated_dtypes=device.emulated_dtypes,
        capability=device.capability,
        backend=device.backend,
        num_devices=sum(other.device_type == device.device_type for other in survey.devices),
        unified=device.unified,
        uuid=device.uuid,
        reserved=device.reserved,
        sources={
            "total": device.total.source,
            "free": device.free.source,
            "dtypes": device.dtypes_source,
            "host_total": host.total.source,
            "host_available": host.available.source,
        },
        notes=(*notes, *device.notes, *host.notes, *more),
        instruction_sets=host.instruction_sets,
        host_total=host.total.value,
        host_available=host.available.value,
    )
