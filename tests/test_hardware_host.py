"""The CPU and what limits leave of its memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config import HardwareConfig
from runner.hardware import Hardware, detect
from runner.units import GiB, MiB
from tests.hardware_makers import V1_MOUNT, V2_MOUNT, cgroup_v1, cgroup_v2, linux, sources, write


def on(root: Path, *, limit: int | None = None, **more: object) -> Hardware:
    return detect(HardwareConfig(device="cpu"), limit=limit, sources=sources(root, **more))


def test_free_is_what_the_kernel_calls_available_not_what_is_unused(tmp_path):
    found = on(linux(tmp_path, MemFree=1 * GiB, MemAvailable=20 * GiB))
    assert (found.total, found.free, found.budget) == (32 * GiB, 20 * GiB, 20 * GiB)
    assert found.budget_source == found.sources["free"] == "MemAvailable in /proc/meminfo"
    assert (found.host_total, found.host_available) == (32 * GiB, 20 * GiB)


def test_an_old_kernel_without_available_counts_cache_but_not_shared_memory(tmp_path):
    sizes = {"MemFree": 2 * GiB, "MemAvailable": 0, "Buffers": 1 * GiB, "Cached": 6 * GiB, "Shmem": 4 * GiB}
    found = on(linux(tmp_path, **sizes))
    assert found.free == 5 * GiB
    assert "Shmem" in found.sources["free"]


def test_unreadable_memory_is_unknown_and_said_so(tmp_path):
    (linux(tmp_path) / "proc/meminfo").write_text("")
    found = on(tmp_path)
    assert (found.total, found.free, found.budget) == (None, None, None)
    assert any("unknown" in note for note in found.notes)


def test_the_number_for_no_limit_is_not_taken_for_memory(tmp_path):
    linux(tmp_path, files={**cgroup_v1({"/": {"usage": GiB}}, own="/"), "/proc/meminfo": ""})
    assert (on(tmp_path).total, on(tmp_path).free) == (None, None)


def test_the_containers_limit_counts_not_the_machines_memory_v1(tmp_path):
    """COMPLAINTS 6: 450.8 GB were promised where a container's limit left 102.4."""
    linux(tmp_path, files=cgroup_v1({"/job": {"limit": 4 * GiB, "usage": 1 * GiB}, "/": {}}, own="/job"))
    found = on(tmp_path)
    assert (found.total, found.free, found.budget) == (4 * GiB, 3 * GiB, 3 * GiB)
    assert found.budget_source == "cgroup v1 memory.limit_in_bytes of /job"
    assert any("4.00 GiB of the machine's 32.00 GiB" in note for note in found.notes)


def test_the_containers_limit_counts_not_the_machines_memory_v2(tmp_path):
    linux(tmp_path, files=cgroup_v2({"/job": {"max": 4 * GiB, "current": 1 * GiB}, "/": {}}, own="/job"))
    found = on(tmp_path)
    assert (found.total, found.free) == (4 * GiB, 3 * GiB)
    assert found.budget_source == "cgroup v2 memory.max of /job"


def test_a_parents_tighter_limit_counts(tmp_path):
    groups = {
        "/a": {"max": 6 * GiB, "current": 5 * GiB},
        "/a/b": {"max": 8 * GiB, "current": 1 * GiB},
        "/a/b/c": {},
        "/": {},
    }
    linux(tmp_path, files=cgroup_v2(groups, own="/a/b/c"))
    found = on(tmp_path)
    assert (found.total, found.free) == (6 * GiB, 1 * GiB)
    assert found.sources["free"] == "cgroup v2 memory.max of /a"


def test_total_and_free_may_come_from_different_groups(tmp_path):
    groups = {"/a": {"limit": 6 * GiB, "usage": 5 * GiB}, "/a/b": {"limit": 3 * GiB, "usage": 0}}
    linux(tmp_path, files=cgroup_v1(groups, own="/a/b"))
    found = on(tmp_path)
    assert (found.total, found.free) == (3 * GiB, 1 * GiB)


def test_no_limit_is_no_limit_in_either_version(tmp_path):
    """COMPLAINTS 7: `max`, and v1's number of whole pages below 2**63."""
    for name, files in {
        "v1": cgroup_v1({"/job": {"usage": 5 * GiB}, "/": {}}, own="/job"),
        "v2": cgroup_v2({"/job": {"current": 5 * GiB}, "/": {}}, own="/job"),
    }.items():
        found = on(linux(tmp_path / name, files=files))
        assert (found.total, found.free) == (32 * GiB, 24 * GiB)
        assert found.notes == ()


def test_reclaimable_page_cache_is_added_back_and_shared_memory_is_not(tmp_path):
    """COMPLAINTS 7: of 3.5 GiB in use, 1 and 0.5 are file pages; the 1 GiB of shared memory is not reclaimable."""
    stat = f"cache {2.5 * GiB:.0f}\nshmem {GiB}\ninactive_file {GiB}\nactive_file {GiB // 2}\ninactive_anon {GiB}\n"
    stat_v1 = stat + f"total_inactive_file {GiB}\ntotal_active_file {GiB // 2}\n"
    used = 3 * GiB + GiB // 2
    v1 = cgroup_v1({"/job": {"limit": 4 * GiB, "usage": used, "stat": stat_v1}}, own="/job")
    v2 = cgroup_v2({"/job": {"max": 4 * GiB, "current": used, "stat": stat}}, own="/job")
    assert on(linux(tmp_path / "v1", files=v1)).free == 2 * GiB
    assert on(linux(tmp_path / "v2", files=v2)).free == 2 * GiB


def test_cache_of_the_children_counts_in_v1(tmp_path):
    stat = f"inactive_file 0\nactive_file 0\ntotal_inactive_file {GiB}\ntotal_active_file 0\n"
    linux(tmp_path, files=cgroup_v1({"/a": {"limit": 4 * GiB, "usage": 2 * GiB, "stat": stat}, "/a/b": {}}, own="/a/b"))
    assert on(tmp_path).free == 3 * GiB


def test_a_group_over_its_limit_leaves_nothing_and_no_negative_number(tmp_path):
    linux(tmp_path, files=cgroup_v2({"/job": {"max": 1 * GiB, "current": 2 * GiB}}, own="/job"))
    assert on(tmp_path).budget == 0


def test_the_throttling_limit_counts_and_swap_does_not(tmp_path):
    linux(tmp_path, SwapFree=16 * GiB, files=cgroup_v2({"/job": {"max": 4 * GiB, "high": 3 * GiB}}, own="/job"))
    found = on(tmp_path)
    assert (found.budget, found.budget_source) == (3 * GiB, "cgroup v2 memory.high of /job")


def test_a_limit_above_what_the_container_sees_counts_in_v1(tmp_path):
    stat = f"hierarchical_memory_limit {2 * GiB}\n"
    linux(tmp_path, files=cgroup_v1({"/": {"usage": GiB, "stat": stat}}, own="/docker/abc", root="/docker/abc"))
    found = on(tmp_path)
    assert (found.total, found.free) == (2 * GiB, 1 * GiB)
    assert "hierarchical_memory_limit" in found.budget_source


def test_a_visible_parent_is_named_rather_than_the_inherited_limit(tmp_path):
    groups = {"/a": {"limit": 2 * GiB}, "/a/b": {"stat": f"hierarchical_memory_limit {2 * GiB}\n"}}
    linux(tmp_path, files=cgroup_v1(groups, own="/a/b"))
    assert on(tmp_path).sources["total"] == "cgroup v1 memory.limit_in_bytes of /a"


@pytest.mark.parametrize("own", ["/docker/abc", "/docker/other", "/../../elsewhere", "/"])
def test_a_container_whose_path_is_not_visible_falls_back_to_the_mounts_root(tmp_path, own):
    linux(tmp_path, files=cgroup_v1({"/": {"limit": 2 * GiB}}, own=own, root="/docker/abc"))
    found = on(tmp_path)
    assert found.total == 2 * GiB
    assert found.sources["total"] == "cgroup v1 memory.limit_in_bytes of / below /docker/abc"


def test_a_path_outside_the_containers_view_is_not_followed(tmp_path):
    files = cgroup_v1({"/": {"limit": 4 * GiB}}, own="/../elsewhere")
    files["/sys/fs/cgroup/elsewhere/memory.limit_in_bytes"] = GiB
    assert on(linux(tmp_path, files=files)).total == 4 * GiB


def test_hybrid_mounts_take_the_limit_from_the_version_that_has_the_memory_controller(tmp_path):
    files = cgroup_v1({"/job": {"limit": 2 * GiB}}, own="/job")
    files["/proc/self/cgroup"] = "9:name=systemd:/x\n4:cpu,memory:/job\n0::/user.slice\n"
    files["/proc/self/mountinfo"] = (
        "37 31 0:38 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
        + V2_MOUNT.format(root="/", point="/sys/fs/cgroup/unified")
        + V1_MOUNT.format(root="/")
    )
    files["/sys/fs/cgroup/unified/user.slice/cgroup.procs"] = "1\n"
    found = on(linux(tmp_path, files=files))
    assert found.sources["total"] == "cgroup v1 memory.limit_in_bytes of /job"


def test_a_mount_point_with_a_blank_is_found(tmp_path):
    files = cgroup_v2({"/job": {"max": 2 * GiB}}, own="/job", point="/mnt/my groups")
    files["/proc/self/mountinfo"] = V2_MOUNT.format(root="/", point="/mnt/my\\040groups")
    assert on(linux(tmp_path, files=files)).total == 2 * GiB


@pytest.mark.parametrize(
    ("line", "left", "source"),
    [
        ("Max data size             2147483648           unlimited            bytes", 1.5 * GiB, "RLIMIT_DATA"),
        ("Max address space         2147483648           unlimited            bytes", 1 * GiB, "RLIMIT_AS"),
        ("Max address space         1048576              unlimited            bytes", 0, "RLIMIT_AS"),
    ],
)
def test_a_resource_limit_leaves_what_is_not_taken_yet(tmp_path, line, left, source):
    found = on(linux(tmp_path, files={"/proc/self/limits": line + "\n"}))
    assert (found.free, found.budget) == (24 * GiB, left)
    assert found.budget_source.startswith(source)


def test_a_kernel_that_never_overcommits_leaves_what_it_has_not_promised(tmp_path):
    sizes = {"CommitLimit": 16 * GiB, "Committed_AS": 6 * GiB}
    assert on(linux(tmp_path / "a", files={"/proc/sys/vm/overcommit_memory": "0\n"}, **sizes)).budget == 24 * GiB
    found = on(linux(tmp_path / "b", files={"/proc/sys/vm/overcommit_memory": "2\n"}, **sizes))
    assert found.budget == 10 * GiB
    assert "vm.overcommit_memory=2" in found.budget_source


def test_memory_limit_is_the_budget_when_it_is_below_everything_else(tmp_path):
    found = on(linux(tmp_path), limit=6 * GiB)
    assert (found.free, found.budget, found.budget_source) == (24 * GiB, 6 * GiB, "memory.limit")
    assert found.notes == ()


def test_memory_limit_above_what_is_free_changes_nothing_and_says_so(tmp_path):
    found = on(linux(tmp_path), limit=30 * GiB)
    assert (found.budget, found.budget_source) == (24 * GiB, "MemAvailable in /proc/meminfo")
    assert found.notes == (
        "memory.limit=30.00 GiB is not below what is free, 24.00 GiB (MemAvailable in /proc/meminfo)",
    )


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("avx2 f16c", ("float32",)),
        ("avx2 avx512f", ("float32",)),
        ("avx2 avx512f avx512_bf16", ("bfloat16", "float32")),
        ("avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16", ("bfloat16", "float16", "float32")),
        ("asimd fphp asimdhp", ("float16", "float32")),
        ("asimd asimdhp sve bf16", ("bfloat16", "float16", "float32")),
    ],
)
def test_a_cpu_computes_natively_what_it_has_instructions_for(tmp_path, flags, native):
    found = on(linux(tmp_path, flags=flags))
    assert found.dtypes == native
    assert set(found.dtypes) | set(found.emulated_dtypes) == {"bfloat16", "float16", "float32"}
    assert set(found.instruction_sets) <= set(flags.split())


def test_an_arm_cpu_names_its_features_differently(tmp_path):
    cpuinfo = "processor : 0\nFeatures : fp asimd asimdhp bf16\nModel : A board\n"
    found = on(linux(tmp_path, files={"/proc/cpuinfo": cpuinfo}), machine="aarch64")
    assert (found.name, found.instruction_sets) == ("A board", ("asimd", "asimdhp", "bf16"))


def test_a_mac_is_asked_without_proc(tmp_path):
    answers = {"machdep.cpu.brand_string": "Apple M3", "hw.optional.arm.FEAT_BF16": "1"}
    more = {"system": "darwin", "machine": "x86_64", "sysctl": answers.get}
    found = on(tmp_path, psutil_memory=lambda: (16 * GiB, 9 * GiB), **more)
    assert (found.name, found.total, found.free) == ("Apple M3", 16 * GiB, 9 * GiB)
    assert found.dtypes == ("bfloat16", "float32")
    assert found.sources["free"] == "psutil"


def test_this_machine_is_described_without_importing_torch():
    code = (
        "import sys; from runner.config import HardwareConfig; from runner.hardware import describe\n"
        "found = describe(HardwareConfig(device='cpu'))\n"
        "assert 0 < found.budget <= found.total, found\n"
        "assert found.sources.keys() >= {'total', 'free', 'dtypes'}, found\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts private data")
def test_a_real_data_limit_is_seen():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))\n"
        "from runner.config import HardwareConfig; from runner.hardware import detect\n"
        "found = detect(HardwareConfig(device='cpu'))\n"
        "assert 2**29 < found.budget < 2**30, found\n"
        "assert found.budget_source == 'RLIMIT_DATA less VmData', found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


@pytest.mark.slow
def test_a_real_group_of_two_gibibytes_is_seen(tmp_path):
    group = Path("/sys/fs/cgroup/memory") / f"runner-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(2 * GiB))
    except OSError as error:
        pytest.skip(f"no cgroup v1 memory group can be made here: {error}")
    code = (
        "from runner.config import HardwareConfig; from runner.hardware import detect\n"
        "found = detect(HardwareConfig(device='cpu'))\n"
        "print(found.total, found.budget, found.budget_source)"
    )
    try:
        command = f'echo $$ > "{group}/cgroup.procs" && exec "{sys.executable}" -c "$0"'
        answer = subprocess.run(
            ["sh", "-c", command, code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
        )
    finally:
        group.rmdir()
    total, budget, source = answer.stdout.split(maxsplit=2)
    assert int(total) == 2 * GiB
    assert 2 * GiB - 200 * MiB < int(budget) <= 2 * GiB
    assert source.startswith("cgroup v1 memory.limit_in_bytes of ")
    assert group.name in source


def test_a_file_that_may_not_be_read_is_unknown_not_a_crash(tmp_path):
    files = cgroup_v2({"/job": {"max": 4 * GiB, "current": "?"}}, own="/job")
    found = on(write(linux(tmp_path), files))
    assert (found.total, found.free) == (4 * GiB, 4 * GiB)
    assert "usage unknown" in found.sources["free"]
