"""Accelerators as their drivers, or torch, describe them; and which of them is used."""

import pytest

from runner.config import HardwareConfig
from runner.errors import RequestError
from runner.hardware import Hardware, detect
from runner.hardware.torch_build import Probe
from runner.units import GiB, MiB
from tests.hardware_makers import Gpu, Nvml, NvmlError, linux, sources, write

AMPERE = Gpu()
TURING = Gpu(name="Tesla T4", uuid="GPU-t4bbbb", capability=(7, 5), total=15 * GiB)
BIG = Gpu(name="NVIDIA A100-SXM4-80GB", uuid="GPU-a100cc", capability=(8, 0), total=80 * GiB)
GB10 = Gpu(name="NVIDIA GB10", uuid="GPU-gb10dd", capability=(12, 1), total=None)


def on(root, *gpus: Gpu, device: str = "auto", limit: int | None = None, **more) -> Hardware:
    more.setdefault("cuda", "12.8")
    return detect(HardwareConfig(device=device), limit=limit, sources=sources(root, gpus=gpus, **more))


def test_a_cuda_device_is_described_by_its_driver(tmp_path):
    found = on(tmp_path, AMPERE)
    assert (found.device, found.device_type, found.backend) == ("cuda:0", "cuda", "cuda")
    assert (found.name, found.uuid, found.capability) == (AMPERE.name, AMPERE.uuid, (8, 6))
    assert (found.total, found.reserved) == (12 * GiB, 246 * MiB)
    assert found.free == found.budget == 12 * GiB - 246 * MiB
    assert found.budget_source == found.sources["free"] == "NVML memory info v2, what no program uses now"
    assert (found.host_total, found.host_available) == (32 * GiB, 24 * GiB)
    assert (found.num_devices, found.unified, found.notes) == (1, False, ())


def test_memory_of_other_programs_is_not_free_and_is_told(tmp_path):
    """COMPLAINTS 11: free is measured now, and others' use is kept apart from what the driver keeps."""
    found = on(tmp_path, Gpu(used=5 * GiB))
    assert found.free == found.budget == 7 * GiB - 246 * MiB
    assert "cuda:0: other programs use 5.00 GiB of 12.00 GiB" in found.notes


def test_an_old_driver_gives_the_same_figures_without_the_drivers_part(tmp_path):
    found = on(tmp_path, nvml=Nvml(AMPERE, old=True))
    assert (found.total, found.free, found.reserved) == (12 * GiB, 12 * GiB - 246 * MiB, None)
    assert found.sources["total"] == "NVML memory info v1"


def test_more_used_than_there_is_leaves_nothing_and_is_flagged(tmp_path):
    """COMPLAINTS 10: what spills into host memory is no device memory."""
    found = on(tmp_path, Gpu(total=16 * GiB, used=30 * GiB))
    assert (found.free, found.budget) == (0, 0)
    assert any("30.00 GiB is used of 16.00 GiB" in note for note in found.notes)


def test_memory_limit_is_the_budget_on_a_device_as_well(tmp_path):
    found = on(tmp_path, AMPERE, limit=6 * GiB)
    assert (found.budget, found.budget_source) == (6 * GiB, "memory.limit")


def test_device_and_host_are_one_pool_on_unified_memory(tmp_path):
    """COMPLAINTS 8: 160 GB were advertised of 127. What the driver says of such a device does not count."""
    found = on(tmp_path, Gpu(name="NVIDIA GB10", total=160 * GiB, capability=(12, 1)))
    assert found.unified
    assert (found.total, found.free, found.budget) == (32 * GiB, 24 * GiB, 24 * GiB)
    assert (found.host_total, found.host_available) == (32 * GiB, 24 * GiB)


def test_unified_memory_counts_what_is_available_not_what_is_unused(tmp_path):
    """COMPLAINTS 9: a Jetson reported MemFree (8 GiB here), and the driver has no figure at all."""
    found = on(tmp_path, GB10)
    assert (found.total, found.free) == (32 * GiB, 24 * GiB)
    assert found.sources["free"] == "one pool with the host: MemAvailable in /proc/meminfo"
    assert not any("unknown" in note for note in found.notes)


def test_a_containers_limit_counts_on_unified_memory(tmp_path):
    linux(tmp_path, files={"/proc/self/limits": "Max data size    2147483648    unlimited    bytes\n"})
    found = on(tmp_path, GB10)
    assert (found.budget, found.budget_source) == (2 * GiB - GiB // 2, "RLIMIT_DATA less VmData")


def test_memory_that_nobody_tells_is_unknown_never_zero(tmp_path):
    """COMPLAINTS 9: nvidia-smi says [N/A]."""
    found = on(tmp_path, Gpu(name="NVIDIA Mystery", total=None), probe=Probe(problem="torch could not be asked"))
    assert (found.total, found.free, found.budget) == (None, None, None)
    assert any("its memory is unknown" in note for note in found.notes)


def test_memory_limit_is_the_budget_where_free_is_unknown(tmp_path):
    found = on(tmp_path, Gpu(name="NVIDIA Mystery", total=None), limit=4 * GiB, probe=Probe())
    assert (found.free, found.budget, found.budget_source) == (None, 4 * GiB, "memory.limit")
    assert any("how much is free is unknown" in note for note in found.notes)


def test_torch_is_asked_where_the_driver_names_a_device_without_memory(tmp_path):
    facts = {"device_type": "cuda", "index": 0, "hip": False, "free": 3 * GiB, "total": 4 * GiB, "capability": [8, 6]}
    found = on(tmp_path, Gpu(name="NVIDIA Mystery", total=None), probe=Probe(devices=(facts,)))
    assert (found.total, found.free) == (4 * GiB, 3 * GiB)
    assert "torch" in found.sources["total"]


@pytest.mark.parametrize(
    ("capability", "native"),
    [
        ((5, 0), ("float32",)),
        ((5, 3), ("float16", "float32")),
        ((6, 0), ("float16", "float32")),
        ((6, 1), ("float32",)),
        ((7, 0), ("float16", "float32")),
        ((7, 5), ("float16", "float32")),
        ((8, 0), ("bfloat16", "float16", "float32")),
        ((8, 7), ("bfloat16", "float16", "float32")),
        ((12, 1), ("bfloat16", "float16", "float32")),
    ],
)
def test_bfloat16_is_native_from_ampere_on_and_never_before(tmp_path, capability, native):
    """COMPLAINTS 17: torch calls bfloat16 supported on a T4, where it is emulated."""
    found = on(tmp_path, Gpu(capability=capability))
    assert found.dtypes == native
    assert set(found.emulated_dtypes) == {"bfloat16", "float16", "float32"} - set(native)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, [AMPERE, TURING, BIG]),
        ("", []),
        ("-1", []),
        ("1", [TURING]),
        ("2,0", [BIG, AMPERE]),
        (" 2 , 0 ", [BIG, AMPERE]),
        ("0,7,1", [AMPERE]),
        ("0,0", []),
        ("GPU-t4", [TURING]),
        ("GPU-a100cc,GPU-3060", [BIG, AMPERE]),
        ("GPU-", []),
        ("GPU-none,0", []),
        ("NoDevFiles", []),
    ],
)
def test_devices_are_numbered_as_cuda_numbers_the_visible_ones(tmp_path, visible, names):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for index, gpu in enumerate(names):
        found = on(tmp_path, AMPERE, TURING, BIG, device=f"cuda:{index}", environment=environment)
        assert (found.name, found.num_devices) == (gpu.name, len(names))
    with pytest.raises(RequestError, match=f"hardware.device=cuda:{len(names)}"):
        on(tmp_path, AMPERE, TURING, BIG, device=f"cuda:{len(names)}", environment=environment)


SLICES = (
    Gpu(name="NVIDIA A100 MIG 1g.10gb", uuid="MIG-one", total=10 * GiB, capability=(8, 0)),
    Gpu(name="NVIDIA A100 MIG 2g.20gb", uuid="MIG-two", total=20 * GiB, capability=(8, 0)),
)
SPLIT = Gpu(name="NVIDIA A100", uuid="GPU-split", capability=(8, 0), total=80 * GiB, mig=SLICES)


@pytest.mark.parametrize(
    ("visible", "total"), [(None, 10 * GiB), ("0", 10 * GiB), ("MIG-two", 20 * GiB), ("MIG-one", 10 * GiB)]
)
def test_a_split_card_shows_one_instance_with_its_own_memory(tmp_path, visible, total):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = on(tmp_path, SPLIT, environment=environment)
    assert (found.total, found.num_devices, found.capability) == (total, 1, (8, 0))
    assert found.notes == ()


def test_of_several_split_cards_one_is_shown(tmp_path):
    other = Gpu(name="NVIDIA A100", uuid="GPU-other", mig=(Gpu(uuid="MIG-three", total=10 * GiB),))
    assert on(tmp_path, SPLIT, other).num_devices == 1
    assert on(tmp_path, SPLIT, other, AMPERE, device="cuda:1").name == AMPERE.name


def test_a_uuid_that_begins_two_devices_names_neither(tmp_path):
    twins = (Gpu(uuid="GPU-a1"), Gpu(uuid="GPU-a2"))
    assert on(tmp_path, *twins, environment={"CUDA_VISIBLE_DEVICES": "GPU-a"}).device == "cpu"
    assert on(tmp_path, *twins, environment={"CUDA_VISIBLE_DEVICES": "GPU-a2"}).uuid == "GPU-a2"


def test_auto_takes_the_device_with_the_most_free_memory_and_says_so(tmp_path):
    found = on(tmp_path, Gpu(used=10 * GiB), TURING, Gpu(total=80 * GiB, used=70 * GiB, uuid="GPU-busy"))
    assert (found.device, found.name, found.num_devices) == ("cuda:1", "Tesla T4", 3)
    assert any(note.startswith("cuda:1 has the most free memory: 14.76 GiB; also here: cuda:0") for note in found.notes)


def test_a_type_without_a_number_chooses_alike(tmp_path):
    assert on(tmp_path, AMPERE, TURING, device="cuda").device == "cuda:1"


def test_equal_devices_give_the_first(tmp_path):
    assert on(tmp_path, AMPERE, Gpu(uuid="GPU-second")).device == "cuda:0"


def test_different_devices_without_a_fixed_order_are_told(tmp_path):
    assert any("CUDA_DEVICE_ORDER" in note for note in on(tmp_path, AMPERE, TURING).notes)
    fixed = on(tmp_path, AMPERE, TURING, environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert not any("CUDA_DEVICE_ORDER" in note for note in fixed.notes)


def test_the_cpu_can_be_asked_for_beside_a_device(tmp_path):
    found = on(tmp_path, AMPERE, device="cpu")
    assert (found.device, found.total) == ("cpu", 32 * GiB)
    assert "cuda:0 NVIDIA GeForce RTX 3060 stays unused: hardware.device=cpu" in found.notes


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:1", r"hardware\.device=cuda:1: this machine has 1 cuda device \(cuda:0 .*RTX 3060, 11\.76 GiB free\).*"),
        ("xpu", r"hardware\.device=xpu: this machine has no xpu device.* Give cuda:0, cpu or auto"),
        ("mps", r"hardware\.device=mps: this machine has no mps device"),
        ("gpu", r"hardware\.device=gpu is not a device; give auto, cpu, cuda, cuda:N"),
        ("cuda:", r"is not a device"),
        ("cuda:-1", r"is not a device"),
    ],
)
def test_a_device_that_is_not_here_is_refused_with_what_is(tmp_path, device, message):
    with pytest.raises(RequestError, match=message) as caught:
        on(tmp_path, AMPERE, device=device)
    assert caught.value.exit_code == 2


def test_a_device_that_this_torch_was_not_built_for_is_refused_with_the_build(tmp_path):
    with pytest.raises(RequestError, match=r"PyTorch 2\.13\.0 was built for the CPU\. Give cpu or auto"):
        on(tmp_path, cuda=None, device="cuda")
    with pytest.raises(RequestError, match=r"PyTorch 2\.13\.0 was built for CUDA 12\.8\. Give cpu or auto"):
        on(tmp_path, device="xpu:0")


def test_a_hidden_device_is_refused_with_what_hides_it(tmp_path):
    with pytest.raises(RequestError, match=r"CUDA_VISIBLE_DEVICES= hides NVIDIA GeForce RTX 3060"):
        on(tmp_path, AMPERE, device="cuda", environment={"CUDA_VISIBLE_DEVICES": ""})
    found = on(tmp_path, AMPERE, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert found.device == "cpu"
    assert found.notes == ("CUDA_VISIBLE_DEVICES= hides NVIDIA GeForce RTX 3060",)


def test_a_device_is_told_when_torch_was_built_for_the_cpu(tmp_path):
    found = on(tmp_path, AMPERE, cuda=None)
    assert (found.device, found.backend) == ("cpu", "cpu")
    assert found.notes == (
        "NVIDIA GeForce RTX 3060 cannot be used: PyTorch 2.13.0 was built for the CPU only; "
        "install a CUDA build of PyTorch",
    )
    with pytest.raises(RequestError, match="built for the CPU only"):
        on(tmp_path, AMPERE, cuda=None, device="cuda")


def test_a_broken_driver_is_told_and_the_cpu_is_used(tmp_path):
    broken = Nvml(broken=NvmlError(18, "RM has detected an NVML/RM version mismatch."))
    found = on(tmp_path, nvml=broken, probe=Probe())
    assert found.device == "cpu"
    assert found.notes == (
        "NVIDIA's driver does not answer: RM has detected an NVML/RM version mismatch; torch sees no device either",
    )


def test_a_machine_without_a_driver_has_nothing_to_tell(tmp_path):
    assert on(tmp_path).notes == ()


def test_torch_is_asked_where_a_device_node_has_no_library(tmp_path):
    write(linux(tmp_path), {"/dev/nvhost-gpu": ""})
    facts = {"device_type": "cuda", "index": 0, "hip": False, "capability": [8, 7], "name": "Orin", "unified": True}
    found = on(tmp_path, probe=Probe(devices=({**facts, "free": 1, "total": 2},)))
    assert (found.name, found.capability, found.unified) == ("Orin", (8, 7), True)
    assert (found.total, found.free) == (32 * GiB, 24 * GiB)


def test_a_driver_older_than_torchs_cuda_is_told(tmp_path):
    found = on(tmp_path, cuda="13.0", nvml=Nvml(AMPERE, cuda=12020))
    assert found.device == "cpu"
    assert any("the driver knows CUDA 12.2, PyTorch was built for 13.0: update" in note for note in found.notes)
    with pytest.raises(RequestError, match=r"the driver knows CUDA 12\.2"):
        on(tmp_path, cuda="13.0", nvml=Nvml(AMPERE, cuda=12020), device="cuda:0")


def test_a_card_that_cuda_13_dropped_is_left_alone(tmp_path):
    found = on(tmp_path, Gpu(name="NVIDIA GeForce GTX 1080", capability=(6, 1)), AMPERE, cuda="13.0")
    assert found.device == "cuda:1"
    assert any("GTX 1080" in note and "CUDA 12.6" in note for note in found.notes)


def test_a_device_that_fell_off_the_bus_is_told(tmp_path):
    found = on(tmp_path, nvml=Nvml(Gpu(name="lost"), TURING))
    assert (found.device, found.name) == ("cuda:0", "Tesla T4")
    assert "of 2 NVIDIA devices 1 does not answer; CUDA may number the others differently" in found.notes


def test_the_bindings_have_every_name_that_is_used():
    pynvml = pytest.importorskip("pynvml")
    used = {name for name in dir(Nvml) if name.lower().startswith("nvml")}
    assert used <= set(dir(pynvml))
    assert pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND).value == Nvml.NVML_ERROR_LIBRARY_NOT_FOUND == 12
    assert (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.nvmlMemory_v2) == (
        Nvml.NVML_ERROR_NOT_SUPPORTED,
        Nvml.nvmlMemory_v2,
    )


def test_the_driver_is_let_go_again(tmp_path):
    library = Nvml(AMPERE)
    on(tmp_path, nvml=library)
    assert library.open == 0


def kfd_node(minor: int, target: int) -> str:
    return f"simd_count 304\ndrm_render_minor {minor}\ngfx_target_version {target}\n"


NODES = "/sys/class/kfd/kfd/topology/nodes"
MI200 = {
    f"{NODES}/0/properties": "simd_count 0\ndrm_render_minor 0\n",
    f"{NODES}/1/properties": kfd_node(129, 90010),
    "/sys/class/drm/renderD129/device/mem_info_vram_total": 64 * GiB,
    "/sys/class/drm/renderD129/device/mem_info_vram_used": 4 * GiB,
    "/sys/class/drm/renderD129/device/product_name": "AMD Instinct MI210\n",
    f"{NODES}/2/properties": kfd_node(128, 100300),
    "/sys/class/drm/renderD128/device/mem_info_vram_total": 16 * GiB,
    "/sys/class/drm/renderD128/device/mem_info_vram_used": 0,
}


def test_an_amd_device_is_described_by_the_kernel(tmp_path):
    write(linux(tmp_path), MI200)
    found = on(tmp_path, cuda=None, hip="7.0")
    assert (found.device, found.device_type, found.backend) == ("cuda:0", "cuda", "rocm")
    assert (found.name, found.total, found.free) == ("AMD Instinct MI210", 64 * GiB, 60 * GiB)
    assert found.dtypes == ("bfloat16", "float16", "float32")
    assert (found.capability, found.num_devices) == (None, 2)


@pytest.mark.parametrize(
    ("environment", "total"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, 16 * GiB),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, 16 * GiB),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}, 64 * GiB),
        ({"HIP_VISIBLE_DEVICES": "1,5,0"}, 16 * GiB),
    ],
)
def test_the_environment_hides_amd_devices_in_rocms_order(tmp_path, environment, total):
    write(linux(tmp_path), MI200)
    found = on(tmp_path, cuda=None, hip="7.0", environment=environment)
    assert (found.total, found.num_devices) == (total, 1)


def test_an_older_amd_device_has_no_native_bfloat16(tmp_path):
    write(linux(tmp_path), MI200)
    found = on(tmp_path, cuda=None, hip="7.0", environment={"HIP_VISIBLE_DEVICES": "1"})
    assert (found.name, found.dtypes, found.emulated_dtypes) == ("AMD gfx1030", ("float16", "float32"), ("bfloat16",))


def test_an_amd_card_is_found_where_the_topology_cannot_be_read(tmp_path):
    folder = "/sys/class/drm/card1/device"
    files = {f"{folder}/vendor": "0x1002\n", f"{folder}/mem_info_vram_total": 8 * GiB}
    write(linux(tmp_path), {**files, "/sys/class/drm/card0/device/vendor": "0x8086\n"})
    found = on(tmp_path, cuda=None, hip="7.0")
    assert (found.num_devices, found.total, found.free, found.budget) == (1, 8 * GiB, None, None)


def test_an_intel_device_is_described_by_torch(tmp_path):
    facts = {"device_type": "xpu", "index": 0, "hip": False, "free": 7 * GiB, "total": 8 * GiB, "name": "Arc"}
    found = on(tmp_path, cuda=None, xpu="20250301", probe=Probe(devices=({**facts, "bfloat16": True},)))
    assert (found.device, found.backend, found.name, found.free) == ("xpu:0", "xpu", "Arc", 7 * GiB)
    assert found.dtypes == ("bfloat16", "float16", "float32")


@pytest.mark.parametrize(
    ("release", "native"), [("13.6", ("float16", "float32")), ("15.1", ("bfloat16", "float16", "float32"))]
)
def test_an_apple_device_shares_the_hosts_pool_up_to_metals_working_set(tmp_path, release, native):
    more = {"system": "darwin", "machine": "arm64", "release": release, "sysctl": {}.get}
    probe = Probe(devices=({"device_type": "mps", "index": 0, "hip": False, "recommended": 10 * GiB},))
    found = on(tmp_path, cuda=None, probe=probe, psutil_memory=lambda: (16 * GiB, 12 * GiB), **more)
    assert (found.device, found.unified, found.dtypes) == ("mps", True, native)
    assert (found.total, found.free, found.budget) == (16 * GiB, 10 * GiB, 10 * GiB)
    assert found.sources["free"] == "Metal's recommended working set"


def test_without_torch_the_cpu_is_described(tmp_path):
    bare = sources(tmp_path, gpus=[AMPERE])
    (tmp_path / "torch/version.py").unlink()
    found = detect(HardwareConfig(), sources=bare)
    assert found.device == "cpu"
    assert any("PyTorch is not installed" in note for note in found.notes)
