"""Qwen3-TTS up to the moment of loading: text, request, parts, plan. Needs no qwen-tts."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config import Precision, Workload, WorkloadConfig
from runner.errors import CheckpointError, RequestError, WorkloadError
from runner.predict import predict
from runner.resolve import resolve_speech
from runner.resolve.fit import refusal
from runner.settings import Settings
from runner.speech import check_request, is_qwen3_tts, part_bytes, split_sentences
from runner.speech.parts import decoder_bytes_per_frame, frame_bytes, predictor_dtype
from runner.speech.sound import SoundFile
from runner.speech.text import weight
from runner.units import KiB, MiB
from runner.workload.prompt import read_sentences
from tests.checkpoint_makers import look
from tests.makers import card, processor, request
from tests.model_makers import settings as plain
from tests.qwen3_tts_makers import headers_only

TRUE_TALKER = {
    "talker_config": {
        "num_hidden_layers": 28, "hidden_size": 2048, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 3072,
        "num_attention_heads": 16,
    }
}  # fmt: skip


def speak(precision: str = "bf16", **overrides: Any) -> Settings:
    return plain("speak", precision, **overrides)


def wish(**fields: Any) -> WorkloadConfig:
    return WorkloadConfig(**{"name": Workload.speak, "text": "Hello.", **fields})


def test_a_chapter_is_split_at_its_sentences() -> None:
    text = 'Mr. Smith came at 3.15 p.m. yesterday. "Who is it?" she asked!  He said: nothing\n\n***\n\nNext part'
    assert split_sentences(text) == (
        "Mr. Smith came at 3.15 p.m. yesterday.", '"Who is it?" she asked!', "He said: nothing", "Next part",
    )  # fmt: skip


def test_ideographic_sentences_need_no_space_between_them() -> None:
    assert split_sentences("你好。今天天气很好！走吧") == ("你好。", "今天天气很好！", "走吧")


@pytest.mark.parametrize("text", ["word " * 300, "x" * 1000, "a clause, " * 100, "很" * 400])
def test_no_piece_is_longer_than_the_limit_and_nothing_is_lost(text: str) -> None:
    pieces = split_sentences(text)
    assert max(map(weight, pieces)) <= 240
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_a_long_sentence_is_cut_after_a_clause() -> None:
    assert split_sentences("one two three, four five six seven", longest=20)[0] == "one two three,"


@pytest.mark.parametrize("fields", [{"text": None}, {"text": "  "}, {"text": "* * *"}])
def test_a_text_without_words_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"workload\.text_file=FILE"):
        read_sentences(wish(**fields))


REFUSED = {
    ("custom_voice", "speaker", "nobody"): "there are serena, ryan",
    ("custom_voice", "language", "klingon"): "there are auto, english, german$",
    ("custom_voice", "reference_audio", "x.wav"): "only a Base model",
    ("voice_design", "speaker", "ryan"): "no named speakers",
    ("voice_design", "instruct", None): "makes its voice from words",
    ("base", "reference_audio", None): "voice of a recording",
    ("base", "reference_audio", "missing.wav"): "does not exist",
    ("base", "speaker", "ryan"): "reference_audio=FILE",
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_a_model_has_not_is_answered_with_what_it_has(case: tuple[str, str, Any], tmp_path: Path) -> None:
    kind, name, value = case
    with pytest.raises(RequestError, match=REFUSED[case]):
        check_request(wish(**{name: value}), look(headers_only(tmp_path / "model", kind)))


def test_the_small_model_takes_no_instruction(tmp_path: Path) -> None:
    small = look(headers_only(tmp_path / "model", tts_model_size="0b6"))
    with pytest.raises(RequestError, match=r"0\.6B model takes no instruction"):
        check_request(wish(instruct="slowly"), small)


def test_auto_takes_the_first_speaker_and_a_recording_is_measured(tmp_path: Path) -> None:
    assert check_request(wish(), look(headers_only(tmp_path / "a"))).speaker == "serena"
    sound = SoundFile(tmp_path / "voice.wav", 24000)
    sound.write(np.full(36000, 0.1, dtype=np.float32))
    sound.close()
    base = look(headers_only(tmp_path / "b", "base"))
    cloned = check_request(wish(reference_audio=str(tmp_path / "voice.wav")), base)
    assert (cloned.reference_seconds, cloned.needs_encoder) == (1.5, False)
    assert check_request(wish(reference_audio=str(tmp_path / "voice.wav"), reference_text="Hm."), base).needs_encoder


def test_the_codec_is_counted_beside_the_model(tmp_path: Path) -> None:
    found = look(headers_only(tmp_path / "model"))
    assert is_qwen3_tts(found)
    assert found.codec is not None
    assert set(found.files) == {"model.safetensors", "speech_tokenizer/model.safetensors"}
    assert found.codec.num_bytes == 4 * (28 + 768)


def test_a_model_without_its_codec_is_named(tmp_path: Path) -> None:
    folder = headers_only(tmp_path / "model")
    (folder / "speech_tokenizer" / "model.safetensors").unlink()
    (folder / "speech_tokenizer" / "config.json").unlink()
    (folder / "speech_tokenizer").rmdir()
    with pytest.raises(CheckpointError, match="no folder speech_tokenizer"):
        look(folder)


@pytest.mark.parametrize(("precision", "talker", "predictor"), [("fp32", 4, 4), ("bf16", 2, 2), ("fp16", 2, 4)])
def test_each_part_has_its_own_dtype(precision: str, talker: int, predictor: int, tmp_path: Path) -> None:
    parts = part_bytes(look(headers_only(tmp_path / "model")), speak(precision))
    assert parts == {
        "text_embedding": 12000 * talker, "talker": 1536 * talker, "code_predictor": 1536 * predictor,
        "speaker_encoder": 256 * talker, "codec_encoder": 28 * 4, "codec_decoder": 768 * 4,
    }  # fmt: skip
    assert predictor_dtype(speak("fp16")) == "float32"


def test_a_frame_of_the_true_model_keeps_112_and_116_kib() -> None:
    assert frame_bytes(TRUE_TALKER, speak("bf16")) == (112 * KiB, 116 * KiB)
    assert frame_bytes(TRUE_TALKER, speak("fp32")) == (224 * KiB, 232 * KiB)


def test_the_codecs_working_set_is_that_of_its_widest_stage() -> None:
    codec = {"decoder_config": {"decoder_dim": 1536, "upsampling_ratios": [2, 2], "upsample_rates": [8, 5, 4, 3]}}
    assert decoder_bytes_per_frame(codec) == 6 * 96 * 1920 * 4


def plan(folder: Path, *, budget: int, precision: str = "bf16", hardware: Any = processor, **groups: Any) -> Any:
    found, machine = look(folder), hardware(budget=budget)
    config = request(
        workload={"name": Workload.speak, "text": "Hello.", "max_new_tokens": 375},
        precision={"name": Precision(precision)}, **groups,
    )  # fmt: skip
    made = resolve_speech(
        config, machine, found, speech=check_request(config.workload, found), prompt_tokens=20,
        predict=lambda settings: predict(found, settings, machine, overhead=100 * MiB),
    )  # fmt: skip
    return made, machine


def test_concessions_are_made_in_their_order_and_each_lowers_the_peak(tmp_path: Path) -> None:
    folder = headers_only(tmp_path / "model")
    free, _ = plan(folder, budget=10**12)
    assert [choice for choice in free.choices if choice.name in ("text_embedding", "codec_chunk", "codec")] == []
    seen = []
    budget = free.footprint.peak + free.margin
    for _ in range(3):
        made, _ = plan(folder, budget=budget - 1)
        if not made.fits:
            break
        seen.append(
            [choice.name for choice in made.choices if choice.name in ("text_embedding", "codec_chunk", "codec")]
        )
        budget = made.footprint.peak + made.margin
    assert seen == [["text_embedding"], ["text_embedding", "codec_chunk"], ["text_embedding", "codec_chunk", "codec"]]


def test_what_does_not_fit_is_refused_with_what_was_predicted_to_fit(tmp_path: Path) -> None:
    folder = headers_only(tmp_path / "model")
    least, _ = plan(folder, budget=1)
    assert not least.fits
    made, machine = plan(folder, budget=least.footprint.peak + least.margin - 1)
    assert not made.fits
    assert "workload.max_new_tokens=" in refusal(made, machine).message


def test_without_memory_saving_nothing_is_conceded(tmp_path: Path) -> None:
    made, _ = plan(headers_only(tmp_path / "model"), budget=1, precision="auto", memory_efficient=False)
    assert made.settings.precision == "fp32"
    assert (made.settings.text_embedding, made.settings.codec, made.settings.codec_chunk) == ("held", "held", 300)
    assert made.remedies[0].override == "memory_efficient=true"


def test_fp16_keeps_the_code_predictor_in_fp32_and_says_why(tmp_path: Path) -> None:
    made, _ = plan(headers_only(tmp_path / "model"), budget=10**12, precision="fp16", hardware=card)
    choice = next(choice for choice in made.choices if choice.name == "code_predictor_dtype")
    assert choice.value == "float32"
    assert "overflows" in choice.reason


def test_the_sound_file_is_16_bit_pcm_and_refuses_what_is_not_finite(tmp_path: Path) -> None:
    sound = SoundFile(tmp_path / "speech.wav", 24000)
    sound.write(np.array([0.0, 0.5, -2.0], dtype=np.float32))
    with pytest.raises(WorkloadError, match=r"not finite after 0\.00 s"):
        sound.write(np.array([np.nan], dtype=np.float32))
    sound.close()
    with wave.open(str(tmp_path / "speech.wav")) as file:
        assert (file.getframerate(), file.getsampwidth(), file.getnchannels()) == (24000, 2, 1)
        assert np.frombuffer(file.readframes(3), dtype="<i2").tolist() == [0, 16384, -32767]
