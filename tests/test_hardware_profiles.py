"""Machines that are not here."""

from pathlib import Path

import pytest
import yaml

from runner.config import HardwareConfig
from runner.errors import RequestError
from runner.hardware import describe, profile
from runner.units import GiB, MiB

FOLDER = Path(__file__).parents[1] / "conf/hardware"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "detect")


def named(name: str, **changes: object) -> HardwareConfig:
    return HardwareConfig(**{**yaml.safe_load((FOLDER / f"{name}.yaml").read_text()), **changes})


def turing(**changes: object) -> HardwareConfig:
    values = {"name": "t", "product": "Turing", "device": "cuda:0", "total": "4GiB", "capability": "7.5"}
    return HardwareConfig(**{**values, **changes})


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_describes_a_machine_that_is_not_here(name):
    found = describe(named(name))
    assert found.is_profile
    assert found.name == named(name).product
    assert 0 < found.budget == found.free == found.total - found.reserved
    assert found.sources.keys() >= {"total", "free", "dtypes"}
    assert any("not here" in note for note in found.notes)


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_says_first_what_it_is_and_where_its_figures_come_from(name):
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# Plans for ")
    assert lines[0].endswith(("Runs nothing.", "runs nothing."))
    assert lines[1].startswith(("# Total", "# Reserved"))
    assert named(name).name == name


@pytest.mark.parametrize("size", [4, 6, 8, 12, 16, 24, 80])
def test_there_is_a_card_of_each_class(size):
    totals = [profile(named(name)).total for name in NAMES if profile(named(name)).device_type == "cuda"]
    assert any((size - 1) * GiB < total <= size * GiB for total in totals)


@pytest.mark.parametrize("name", ["gtx_1650_4gb", "tesla_t4_16gb"])
def test_a_turing_profile_has_float16_but_no_bfloat16(name):
    found = profile(named(name))
    assert found.dtypes == ("float16", "float32")
    assert found.emulated_dtypes == ("bfloat16",)
    assert found.capability == (7, 5)


def test_a_unified_profile_has_one_pool():
    found = profile(named("jetson_orin_nano_8gb"))
    assert found.unified
    assert (found.host_total, found.host_available) == (found.total, found.free)


def test_a_discrete_profile_says_nothing_about_its_host():
    assert profile(named("rtx_3060_12gb")).host_total is None


def test_a_cpu_profile_computes_only_float32_natively():
    found = profile(named("cpu_8gib"))
    assert (found.device, found.dtypes, found.total, found.free) == ("cpu", ("float32",), 8 * GiB, 7 * GiB)


def test_memory_limit_is_a_profiles_budget_when_it_is_below_what_is_free():
    assert profile(turing(), limit=3 * GiB).budget_source == "memory.limit"
    found = profile(turing(reserved="200MiB"), limit=8 * GiB)
    assert found.budget == 4 * GiB - 200 * MiB
    assert any("memory.limit=8.00 GiB is not below" in note for note in found.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total": None}, "needs hardware.product and hardware.total"),
        ({"capability": "ampere"}, r"hardware\.capability=ampere is not a compute capability, such as 8\.6"),
        ({"reserved": "4GiB"}, "leaves nothing"),
        ({"device": "cuda:1"}, r"hardware\.device=cuda:1: the profile t has cuda:0 only"),
        ({"device": "cpu"}, "has cuda:0 only"),
    ],
)
def test_a_profile_that_does_not_add_up_is_refused(changes, message):
    with pytest.raises(RequestError, match=message):
        profile(turing(**changes))


def test_a_profiles_figures_without_a_product_are_refused():
    with pytest.raises(RequestError, match=r"name it too, hardware\.product=NAME"):
        describe(HardwareConfig(total="8GiB"))


def test_a_size_that_is_none_is_refused_with_its_key():
    with pytest.raises(RequestError, match=r"hardware\.reserved=lots"):
        turing(reserved="lots")


@pytest.mark.parametrize("name", NAMES)
def test_hydra_composes_every_profile_into_the_typed_schema(name, tmp_path):
    omegaconf = pytest.importorskip("omegaconf")
    hydra = pytest.importorskip("hydra")
    (tmp_path / "hardware").symlink_to(FOLDER)
    (tmp_path / "run.yaml").write_text("defaults:\n  - hardware: cpu_8gib\n  - _self_\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        composed = hydra.compose("run", [f"hardware={name}", "hardware.total=6GiB"])
    schema = omegaconf.OmegaConf.structured(HardwareConfig)
    omegaconf.OmegaConf.set_readonly(schema, False)
    merged = omegaconf.OmegaConf.to_object(omegaconf.OmegaConf.merge(schema, composed.hardware))
    assert (merged.name, merged.total, merged.capability) == (name, "6GiB", named(name).capability)
