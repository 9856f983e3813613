"""Qwen3-TTS end to end, with a tiny model of random weights: text in, sound out."""

import json
import os
import subprocess
import sys
import wave
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.qwen3_tts_makers import STAND_INS, headers_only, whole

ROOT = Path(__file__).parents[1]
MISSING = util.find_spec("qwen_tts") is None or not metadata.version("transformers").startswith("4.57")
needs_package = pytest.mark.skipif(MISSING, reason="needs qwen-tts and transformers 4.57, the extra qwen3-tts")
TEXT = "workload.text=Hello world. This is a test."


def run(folder: Path, *overrides: str) -> tuple[int, str, Any, Path]:
    """Run a command line; return exit code, what it said, its record and its folder."""
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(ROOT), str(STAND_INS)] if not MISSING else [str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "runner", "hydra.run.dir=here", *overrides], cwd=folder, capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": paths}, check=False,
    )  # fmt: skip
    record = folder / "here" / "record.json"
    return done.returncode, done.stderr, json.loads(record.read_text()) if record.exists() else None, record.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("models") / "custom_voice")


@pytest.mark.skipif(not MISSING, reason="qwen-tts is here")
def test_without_the_extra_one_line_says_what_to_type(tmp_path: Path) -> None:
    code, said, _, _ = run(tmp_path, f"model.path={headers_only(tmp_path / 'model')}", "workload=speak", TEXT)
    assert code == 2
    assert "needs the extra qwen3-tts" in said
    assert "pip install '.[qwen3-tts]'" in said


def test_a_plan_needs_no_package(tmp_path: Path) -> None:
    code, said, record, _ = run(
        tmp_path, f"model.path={headers_only(tmp_path / 'model')}", "workload=plan", "workload.of=speak",
        "hardware=gtx_1650_4gb",
    )  # fmt: skip
    assert code == 0, said
    assert record["plan"]["settings"]["max_new_tokens"] == 375
    assert record["plan"]["footprint"]["parts"]["codec_decoder"] == 768 * 4


def test_a_model_that_cannot_speak_is_told_before_it_is_loaded(tmp_path: Path) -> None:
    code, said, record, _ = run(tmp_path, "workload=speak", TEXT)
    assert code == 2
    assert "Qwen3ForCausalLM cannot speak" in said
    assert record["timing"].get("load") is None


@needs_package
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_text_becomes_sound(precision: str, model: Path, tmp_path: Path) -> None:
    code, said, record, folder = run(
        tmp_path, f"model.path={model}", "workload=speak", TEXT, "workload.max_new_tokens=6", f"precision={precision}"
    )
    assert code == 0, said
    details = record["outcome"]["details"]
    assert (details["num_sentences"], details["num_frames"]) == (2, 12)
    with wave.open(str(folder / "speech.wav")) as sound:
        assert sound.getnframes() == 12 * 1920
        assert details["audio_seconds"] == sound.getnframes() / sound.getframerate()
    assert details["reached_limit"] == 2
    assert "reached the limit of 6 frames" in details["notes"][0]


@needs_package
@pytest.mark.slow
def test_a_base_model_takes_the_voice_of_a_recording(tmp_path: Path) -> None:
    base = whole(tmp_path / "base", "base")
    with wave.open(str(tmp_path / "voice.wav"), "wb") as sound:
        sound.setnchannels(1), sound.setsampwidth(2), sound.setframerate(24000)  # type: ignore[func-returns-value]
        sound.writeframes((8000 * np.sin(np.arange(24000) / 20)).astype("<i2").tobytes())
    for name, more in (("voice", ()), ("continued", ("workload.reference_text=Hm.",))):
        code, said, record, _ = run(
            tmp_path / name, f"model.path={base}", "workload=speak", "workload.text=Hello.", "precision=fp32",
            "workload.max_new_tokens=4", f"workload.reference_audio={tmp_path / 'voice.wav'}", *more,
        )  # fmt: skip
        assert code == 0, said
        assert record["outcome"]["details"]["num_frames"] == 4


@needs_package
@pytest.mark.slow
def test_silence_is_a_failure(tmp_path: Path) -> None:
    code, said, _, _ = run(
        tmp_path, f"model.path={whole(tmp_path / 'model', loudness=0.0)}", "workload=speak", TEXT,
        "workload.max_new_tokens=4", "precision=fp32",
    )  # fmt: skip
    assert code == 5
    assert "is silent" in said


@needs_package
@pytest.mark.slow
def test_concessions_change_no_sample_and_the_seed_decides(model: Path, tmp_path: Path) -> None:
    from runner.checkpoint import inspect
    from runner.config import ModelConfig, Source, Workload, WorkloadConfig
    from runner.loader import load
    from runner.workload import WORKLOADS
    from runner.workload.job import Job
    from tests.model_makers import settings

    found = inspect(ModelConfig(path=str(model)), source=Source.local, environment={}, embedded=model)

    def spoken(name: str, **overrides: Any) -> bytes:
        (tmp_path / name).mkdir()
        plan = settings("speak", "fp32", max_new_tokens=5, attention="sdpa", **overrides)
        asked = WorkloadConfig(name=Workload.speak, text="Hello world. This is a test.")
        WORKLOADS["speak"](Job(loaded=load(found, plan), settings=plan, config=asked, folder=tmp_path / name))
        return (tmp_path / name / "speech.wav").read_bytes()

    held = spoken("held")
    assert held == spoken("again")
    assert held == spoken("conceded", text_embedding="file", codec="after")
    assert held == spoken("plain", memory_efficient=False)
    assert held != spoken("seed", seed=1)
    assert len(held) == len(spoken("chunks", codec_chunk=2))
