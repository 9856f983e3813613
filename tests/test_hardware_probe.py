"""How torch is asked, with an object in its place: the devices are not here."""

from types import SimpleNamespace

from runner.hardware.probe import _facts
from runner.units import GiB


def torch_with(device_type: str, properties: object, *, memory=(3 * GiB, 4 * GiB), hip: str | None = None):
    def mem_get_info(index: int):
        if memory is None:
            raise RuntimeError("not supported on this device")
        return memory

    module = SimpleNamespace(mem_get_info=mem_get_info, get_device_properties=lambda index: properties)
    return SimpleNamespace(**{device_type: module}, version=SimpleNamespace(hip=hip))


ORIN = SimpleNamespace(name="Orin", major=8, minor=7, is_integrated=1, uuid="some-uuid")


def test_a_cuda_device_tells_its_capability_and_whether_it_is_integrated():
    facts = _facts(torch_with("cuda", ORIN), "cuda", 1)
    assert (facts["device_type"], facts["index"], facts["capability"], facts["unified"]) == ("cuda", 1, [8, 7], True)
    assert (facts["free"], facts["total"], facts["hip"]) == (3 * GiB, 4 * GiB, False)


def test_memory_that_torch_does_not_tell_is_none():
    facts = _facts(torch_with("cuda", ORIN, memory=None), "cuda", 0)
    assert facts["free"] is facts["total"] is None


def test_an_amd_device_tells_its_architecture():
    properties = SimpleNamespace(name="MI210", major=9, minor=0, gcnArchName="gfx90a:sramecc+:xnack-")
    facts = _facts(torch_with("cuda", properties, hip="7.0"), "cuda", 0)
    assert (facts["hip"], facts["architecture"]) == (True, "gfx90a:sramecc+:xnack-")


def test_an_intel_device_tells_whether_it_has_bfloat16():
    facts = _facts(torch_with("xpu", SimpleNamespace(name="Arc", has_bfloat16_conversions=False)), "xpu", 0)
    assert (facts["name"], facts["bfloat16"], "capability" in facts) == ("Arc", False, False)


def test_metal_tells_its_working_set():
    torch = SimpleNamespace(
        mps=SimpleNamespace(recommended_max_memory=lambda: 10 * GiB), version=SimpleNamespace(hip=None)
    )
    assert _facts(torch, "mps", 0) == {"device_type": "mps", "index": 0, "hip": False, "recommended": 10 * GiB}
