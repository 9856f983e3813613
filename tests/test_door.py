import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config import Checkpointing, Precision, RunConfig, Workload
from runner.context import hydra_text
from runner.door.arguments import read_arguments
from runner.door.compose import check_configuration, to_run_config
from runner.door.help import documented, help_page
from runner.door.main import run_command_line
from runner.door.schema import config_folder, groups, keys, options, register

MISTAKES = {
    "precison=bf16": "there is no key precison; did you mean precision=bf16?",
    "precision=bf61": "did you mean precision=bf16? there are auto, bf16, fp16, fp32",
    "precision=": "there are auto, bf16, fp16, fp32",
    "precision=null": "there are auto, bf16, fp16, fp32",
    "precision.name=int8": "there are auto, fp32, bf16, fp16",
    "fp16": "did you mean precision=fp16?",
    "workload=traln": "did you mean workload=train?",
    "workload.steps=abc": "workload.steps: Value 'abc'",
    "workload.steps=0": "must be at least 1",
    "workload.steps=1.5": "workload.steps: Value '1.5'",
    "workload.micro_batch=4": "did you mean workload.micro_batch_size=4?",
    "workload.of=plan": "plans nothing",
    "batch_size=4": "did you mean workload.micro_batch_size=4?",
    "use_gradient_checkpointing=true": "did you mean memory=checkpointing_on?",
    "dtype=bf16": "did you mean precision=bf16?",
    "+nosuch=1": "there is no key nosuch",
    "~seed": "an override is key=value",
    "++seed=3": "write seed=3, without +",
    "memory=checkpointing": "did you mean memory=checkpointing_on?",
    "memory.limit=6Gb/s": "is not a size; write 6GiB",
    "memory.limit=-1GiB": "is not a size; write 6GiB",
    "memory.force=maybe": "memory.force: Value 'maybe'",
    "model=Qwen/Qwen3-1.7B": "for the Hub write model=hf model.id=Qwen/Qwen3-1.7B",
    "model=/some/dir": "for a folder write model.path=/some/dir",
    "model.path=": "model.path is empty",
    "precision=fp32,bf16": "a sweep, which needs -m",
    "-m precision=fp32,bf61": "did you mean precision=bf16?",
    "-m workload.steps=1,0": "must be at least 1",
    "hardware=rtx3060": "did you mean hardware=rtx_3060_12gb?",
    "seed=-1": "must be between 0 and",
    "seed=x": "seed: Value 'x'",
    "optimizer=lion": "there are adafactor, adamw, adamw_8bit, sgd",
    "adapter=dora": "there are lora, none",
    "adapter.rank=0": "adapter.rank=0 must be at least 1",
    "adapter.targets=[]": "adapter.targets=[]: give [all-linear], or layers' names",
    "optimizer.learning_rate=-1": "must be 0 or more",
    "-m workload=load hydra.launcher.n_jobs=0": "n_jobs=0: how many jobs may run at once is a whole number, 1 or more",
    "-m workload=load hydra.launcher.n_jobs=1.5": "n_jobs=1.5: how many jobs may run at once is a whole number",
    "-m workload=load hydra.launcher.n_jobs=two": "n_jobs=two: how many jobs may run at once is a whole number",
    "-m workload=load hydra.launcher.njobs=2": "Key 'njobs' not in",
    "-m workload=load hydra.job.chdir=true": "a sweep's jobs share one process",
    "hardware.threads=0": "hardware.threads=0 must be at least 1",
    "hardware.threads=many": "hardware.threads=many is neither a whole number nor auto",
    "sweep.resume=/nonexistent": "there is no sweep to go on with",
    "hardware.name=rtx_3060_12gb": "hardware=rtx_3060_12gb chooses a profile",
    "workload.prompt=a workload.prompt_file=b": "are both given; give one of them",
    "seed=1,2": "several values are a sweep, which needs -m",
    "workload.sequence_length=half": "is neither a whole number nor auto",
    "memory.limit=1.5": "is not a whole number of bytes",
    "-m hydra/launcher=joblib seed=1,2": "pip install hydra-joblib-launcher",
    "--frob": "unrecognized arguments: --frob",
    "--info=nonsense": "invalid choice: 'nonsense'",
    "--config-dir /nonexistent": "/nonexistent is not a folder",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_in_one_line(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command_line(line.split(" ")) == 2
    error = capsys.readouterr().err
    assert error.startswith("runner: ")
    assert error.count("\n") == 1
    assert MISTAKES[line] in error
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from runner.door.main import run_command_line as r; r(['precision=bf61']); r(['workload.steps=x'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"],
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0


def compose(*overrides: str) -> RunConfig:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    register()
    with initialize_config_dir(config_dir=str(config_folder()), version_base="1.3"):
        return to_run_config(hydra_compose("run", overrides=list(read_arguments(overrides).overrides)))


def test_the_defaults_are_the_contracts() -> None:
    assert compose() == RunConfig()


def test_groups_and_keys_compose_into_a_frozen_config() -> None:
    config = compose(
        "precision=bf16", "memory=checkpointing_on", "workload=train", "workload.steps=7", "memory.limit=6GiB"
    )
    assert (config.precision.name, config.memory.checkpointing) == (Precision.bf16, Checkpointing.on)
    assert (config.workload.name, config.workload.steps, config.memory.limit_bytes) == (Workload.train, 7, 6 * 2**30)
    with pytest.raises(AttributeError):
        config.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("value", ["32", "auto"])
def test_a_length_is_a_number_or_auto(value: str) -> None:
    assert str(compose(f"workload.sequence_length={value}").workload.sequence_length) == value


@pytest.mark.parametrize(
    "text",
    ["it's, a [test] \\ {x}", "a=b", 'say "hi"', "x\\'y", "end\\", "cost ${x} $5", "\\${x}", "a\\\\b", "1", "true",
     "'a' and 'b'", "~", "~nosuch/x", "1e3", "two\nlines", "null and void", "(a)", "*"],
)  # fmt: skip
def test_a_prompt_arrives_as_it_was_typed(text: str) -> None:
    assert compose(f"workload.prompt={text}").workload.prompt == text


def test_text_that_is_quoted_for_hydra_is_left_alone() -> None:
    assert hydra_text("'a, b'") == "'a, b'"
    assert hydra_text("'it\\'s'") == "'it\\'s'"
    assert hydra_text("'a' and 'b'") == "'\\'a\\' and \\'b\\''"
    assert hydra_text("~/x") == "'~/x'"
    assert hydra_text("/plain/path_1.txt") == "/plain/path_1.txt"


def test_flags_may_stand_between_overrides() -> None:
    arguments = read_arguments(["precision=fp32,bf16", "-m", "memory=checkpointing_on"])
    assert arguments.argv == ("-m", "precision=fp32,bf16", "memory=checkpointing_on")


def test_a_users_own_options_are_found_and_bad_yaml_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "precision").mkdir()
    (tmp_path / "precision" / "mine.yaml").write_text("name: bf16\npure: true\n")
    register()
    check_configuration(read_arguments(["--config-dir", str(tmp_path), "precision=mine"]))
    (tmp_path / "precision" / "mine.yaml").write_text("name: [bf16\npure: true\n")
    with pytest.raises(Exception, match=r"mine.yaml, line 2"):
        check_configuration(read_arguments(["--config-dir", str(tmp_path), "precision=mine"]))


def test_the_help_page_names_every_option_and_documents_every_key() -> None:
    page = help_page()
    for group in groups():
        for option in options(group):
            assert f"\n    {option} " in page
    for key in keys():
        line = next(line for line in page.splitlines() if line.startswith(f"  {key}="))
        assert len(line.split(None, 1)) == 2, f"{key} has no doc"


def test_documented_reads_the_string_below_a_field() -> None:
    assert ("seed", 0, "of every random number in the run") in documented(RunConfig)


def test_every_option_says_what_choosing_it_does() -> None:
    for path in config_folder().glob("*/*.yaml"):
        assert path.read_text(encoding="utf-8").startswith("# "), path
        assert "_target_" not in path.read_text(encoding="utf-8")


def test_showing_the_configuration_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["--cfg", "job", "precision=bf16"]) == 0
    assert "name: bf16" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--version"]) == 0
    assert capsys.readouterr().out.startswith("runner 0.")


@pytest.mark.slow
def test_an_installed_wheel_runs_from_any_folder(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path / "wheel"), str(root)],
        check=True,
    )
    (wheel,) = (tmp_path / "wheel").iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "runner", "--cfg", "job"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "source: embedded" in done.stdout
    assert (tmp_path / "site" / "runner" / "conf" / "run.yaml").exists()
