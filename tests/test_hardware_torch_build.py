"""What torch's files and torch itself say."""

import os

import pytest

from runner.hardware.dtypes import gfx_name, gfx_target
from runner.hardware.torch_build import probe_with_torch, read_probe, read_torch_build, torch_version_file

LINES = "from typing import Optional\n__all__ = ['x']\n__version__ = '2.13.0'\ndebug = False\n"


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("cuda: Optional[str] = '13.0'", "cuda"),
        ("cuda = '12.6'", "cuda"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0.1'", "rocm"),
        ("xpu: Optional[str] = '20250301'", "xpu"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", "cpu"),
    ],
)
def test_the_version_file_says_what_torch_was_built_for(tmp_path, line, backend):
    (tmp_path / "version.py").write_text(LINES + line + "\n")
    build = read_torch_build(tmp_path / "version.py")
    assert (build.version, build.backend) == ("2.13.0", backend)


def test_a_version_file_that_cannot_be_read_is_no_build(tmp_path):
    assert read_torch_build(None) is None
    assert read_torch_build(tmp_path / "absent.py") is None
    (tmp_path / "version.py").write_text("__version__ = (")
    assert read_torch_build(tmp_path / "version.py") is None


def test_the_installed_torch_is_read_as_it_says_itself():
    torch = pytest.importorskip("torch")
    build = read_torch_build(torch_version_file())
    assert build.version == str(torch.version.__version__)
    assert (build.cuda, build.hip, build.git_version) == (
        torch.version.cuda,
        torch.version.hip,
        torch.version.git_version,
    )


def test_an_answer_in_json_is_read_past_other_output():
    probe = read_probe('a warning\n{"devices": [{"device_type": "xpu"}]}\n')
    assert probe.devices == ({"device_type": "xpu"},)
    assert probe.problem is None


@pytest.mark.parametrize("output", ["", "{}", "[]", "nonsense", '{"devices": null}'])
def test_an_answer_that_is_none_is_told_with_the_complaint(output):
    assert read_probe(output, complaint="Traceback\nImportError: no torch").problem.endswith("ImportError: no torch")
    assert read_probe('{"devices": []}', returncode=1).problem.endswith("exit code 1")


@pytest.mark.parametrize(
    ("target", "name"), [(90010, "gfx90a"), (110000, "gfx1100"), (90402, "gfx942"), (100300, "gfx1030")]
)
def test_amd_names_and_numbers_mean_the_same(target, name):
    assert gfx_name(target) == name
    assert gfx_target(f"{name}:sramecc+:xnack-") == target


def test_a_name_that_is_no_gfx_version_gives_no_number():
    assert gfx_target(None) is gfx_target("") is gfx_target("gfx") is gfx_target("Radeon") is None


@pytest.mark.slow
def test_torch_answers_in_a_process_of_its_own():
    torch = pytest.importorskip("torch")
    probe = probe_with_torch(os.environ)
    assert probe.problem is None
    assert len(probe.devices) == (torch.accelerator.device_count() if torch.accelerator.is_available() else 0)


@pytest.mark.slow
def test_a_torch_that_takes_too_long_is_told():
    assert "did not answer within 0.01 s" in probe_with_torch(os.environ, timeout=0.01).problem
