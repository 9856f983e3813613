"""Local checkpoints: what their headers say, and every way in which they can be broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.checkpoint import inspect, tensors_bytes
from runner.config import ModelConfig, Source
from runner.errors import CheckpointError, RequestError, RunnerError
from tests.checkpoint_makers import EMBEDDING, QWEN3, SHAPES, entries, folder, look, safetensors, sharded


def test_a_whole_folder_is_counted(tmp_path: Path) -> None:
    found = look(folder(tmp_path / "model"))
    assert (found.architecture, found.model_type, found.source) == ("Qwen3ForCausalLM", "qwen3", "local")
    assert found.num_parameters == 8 * 4 + 6 * 4 + 4 == 60
    assert found.num_bytes == 120
    assert found.stored_dtypes == {"bfloat16": 120}
    assert not found.has_tokenizer
    assert found.notes == ()


def test_offsets_point_at_the_bytes(tmp_path: Path) -> None:
    header = entries({"first": (2,), "second": (3,)})
    folder(tmp_path, files={"model.safetensors": safetensors(header, data=bytes([1] * 4 + [2] * 6))})
    second = look(tmp_path).tensors[1]
    raw = (tmp_path / second.file).read_bytes()
    assert raw[second.offset : second.offset + second.num_bytes] == bytes([2] * 6)


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder(tmp_path, files={})
    arrays = {"a": numpy.ones((2, 3), "float32"), "b": numpy.zeros((), "int64"), "c": numpy.zeros((0, 5), "float16")}
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt", "note": '"data_offsets" of old'})
    found = look(tmp_path)
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in found.tensors} == {
        "a": ("float32", (2, 3)), "b": ("int64", ()), "c": ("float16", (0, 5)),
    }  # fmt: skip
    assert found.num_parameters == 7


def test_shards_add_up(tmp_path: Path) -> None:
    found = look(sharded(tmp_path, a=entries({EMBEDDING: (8, 4)}), b=entries({"model.norm.weight": (4,)})))
    assert {tensor.file for tensor in found.tensors} == {"a.safetensors", "b.safetensors"}
    assert found.num_parameters == 36
    assert set(found.files) == {"a.safetensors", "b.safetensors"}


def test_links_into_a_cache_are_followed(tmp_path: Path) -> None:
    blob = folder(tmp_path / "blobs") / "model.safetensors"
    snapshot = folder(tmp_path / "snapshots", files={})
    (snapshot / "model.safetensors").symlink_to(blob)
    assert look(snapshot).num_parameters == 60


def test_a_truncated_file_says_where_it_ends_and_should_end(tmp_path: Path) -> None:
    whole = safetensors(entries(SHAPES))
    folder(tmp_path, files={"model.safetensors": whole[:-7]})
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors is truncated.*byte {len(whole) - 7} .*{len(whole)}"
    ):
        look(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"abc", "truncated: it ends at byte 3"),
        (safetensors(entries(SHAPES))[:40], r"ends at byte 40, inside its header, which ends at byte \d+"),
        (safetensors(b"{}", data=b"", length=200_000_000), "header of 200000000 bytes"),
        (safetensors(b"{}", data=b"", length=1), "header of 1 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (safetensors(b"{]", data=b""), "not JSON: .* at byte 9"),
        (safetensors(b"\xff\xfe", data=b""), "not UTF-8 at byte 8"),
        (safetensors(b"[]", data=b""), "a JSON list"),
        (safetensors(b"{}", data=b""), "declares no tensors"),
        (safetensors({**entries({"a": (2,)})}) + b"xx", "bytes that no tensor claims.* ends at byte"),
        (safetensors({"a": {"dtype": "F7", "shape": [1], "data_offsets": [0, 1]}}), "a has the unknown dtype F7"),
        (safetensors({"a": {"dtype": "I8", "shape": [2], "data_offsets": [0, 1]}}), "takes 2 bytes.*span 1"),
        (safetensors({"a": {"dtype": "I8", "shape": [-1], "data_offsets": [0, 1]}}), "no whole number"),
        (safetensors({"a": {"dtype": "I8", "shape": [1.0], "data_offsets": [0, 1]}}), "no whole number"),
        (safetensors({"a": {"dtype": ["I8"], "shape": [1], "data_offsets": [0, 1]}}), "lacks a proper dtype"),
        (safetensors({"a": {"dtype": "I8", "data_offsets": [0, 1]}}), "a lacks a proper dtype, shape"),
        (safetensors(b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0]}}', data=b"x"), "a lacks a proper"),
        (safetensors(b'{"a":3}', data=b"x"), "a lacks a proper"),
        (
            safetensors(b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},'
                        b'"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}', data=b"x"),
            "declares a tensor twice",
        ),
        (
            safetensors({"a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]},
                         "b": {"dtype": "I8", "shape": [4], "data_offsets": [2, 6]}}),
            "b overlaps the tensor before it: it starts at byte",
        ),
        (
            safetensors({"a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]},
                         "b": {"dtype": "I8", "shape": [4], "data_offsets": [6, 10]}}),
            "b leaves a hole before it",
        ),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    folder(tmp_path, files={"model.safetensors": content})
    with pytest.raises(CheckpointError, match=message) as caught:
        look(tmp_path)
    assert "model.safetensors" in caught.value.message
    assert caught.value.exit_code == 2


def test_tensors_that_only_the_index_names_are_an_error(tmp_path: Path) -> None:
    sharded(tmp_path, weight_map={"here": "a.safetensors", "gone": "a.safetensors"}, a=entries({"here": (1,)}))
    with pytest.raises(CheckpointError, match=r"2 tensors, of which gone \(a\.safetensors\) is not in the files"):
        look(tmp_path)


def test_tensors_that_only_the_files_hold_are_noted(tmp_path: Path) -> None:
    sharded(tmp_path, weight_map={"here": "a.safetensors"}, a=entries({"here": (1,), "more": (1,)}))
    assert look(tmp_path).notes[0] == "the files hold more beyond what model.safetensors.index.json names"


def test_shards_that_are_not_on_disk_are_an_error(tmp_path: Path) -> None:
    sharded(tmp_path, weight_map={"here": "a.safetensors", "gone": "b.safetensors"}, a=entries({"here": (1,)}))
    with pytest.raises(CheckpointError, match=r"names 2 files, of which b\.safetensors is not in"):
        look(tmp_path)


def test_an_index_that_swaps_two_files_is_an_error(tmp_path: Path) -> None:
    sharded(
        tmp_path,
        weight_map={"x": "b.safetensors", "y": "a.safetensors"},
        a=entries({"x": (1,)}),
        b=entries({"y": (1,)}),
    )
    with pytest.raises(CheckpointError, match=r"says that x is in b\.safetensors, but it is in a\.safetensors"):
        look(tmp_path)


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    sharded(tmp_path, a=entries({"x": (1,), "y": (1,)}), b=entries({"y": (1,)}))
    with pytest.raises(CheckpointError, match=r"y is stored twice: in a\.safetensors and in b\.safetensors"):
        look(tmp_path)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/a", "x/../../a", "..\\a", "", "C:\\a", "a\0b"])
def test_an_index_cannot_reach_out_of_the_folder(tmp_path: Path, name: str) -> None:
    sharded(tmp_path, weight_map={"x": name}, a=entries({"x": (1,)}))
    with pytest.raises(CheckpointError, match="outside of the checkpoint's folder"):
        look(tmp_path)


@pytest.mark.parametrize("weight_map", [{}, {"x": 3}, {"x": ["a.safetensors"]}])
def test_an_index_without_file_names_is_an_error(tmp_path: Path, weight_map: dict[str, object]) -> None:
    sharded(tmp_path, weight_map=weight_map or {"": ""}, a=entries({"x": (1,)}))
    if not weight_map:
        (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"index\.json.*weight_map"):
        look(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"a": 1,\n "b" 2}', "not JSON: .* at line 2, column 6"),
        ("[]", "a JSON list where an object"),
        ("", "line 1, column 1"),
        ('{"model_type": "qwen3"}', "no architectures"),
        ('{"model_type": "qwen3", "architectures": []}', "no architectures"),
        ('{"architectures": ["Qwen3ForCausalLM"]}', "no model_type"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_config_says_where(tmp_path: Path, config: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        look(folder(tmp_path, config=config))


def test_a_misspelt_path_is_answered_with_its_sibling(tmp_path: Path) -> None:
    folder(tmp_path / "qwen3-small")
    with pytest.raises(CheckpointError, match=r"does not exist; did you mean model\.path=.*qwen3-small\?"):
        look(tmp_path / "qwen3-smal")


def test_a_path_without_a_parent_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist, nor does"):
        look(tmp_path / "no" / "where")


def test_a_relative_path_is_repeated_as_it_was_typed() -> None:
    with pytest.raises(
        CheckpointError, match=r"^model\.path=nowhere-at-all does not exist; /.* has no folder of a similar"
    ):
        look(Path("nowhere-at-all"))


def test_a_file_is_answered_with_its_folder(tmp_path: Path) -> None:
    folder(tmp_path)
    with pytest.raises(CheckpointError, match=rf"is a file; give the checkpoint's folder: model\.path={tmp_path}"):
        look(tmp_path / "model.safetensors")


def test_a_link_into_nowhere_is_named(tmp_path: Path) -> None:
    (folder(tmp_path, files={}) / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: No such file"):
        look(tmp_path)


def test_an_empty_folder_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is empty; give a folder with config\.json"):
        look(tmp_path)


def test_a_parent_of_checkpoints_is_answered_with_one(tmp_path: Path) -> None:
    folder(tmp_path / "step-100")
    with pytest.raises(CheckpointError, match=r"no config\.json.*did you mean model\.path=.*step-100"):
        look(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no weights"),
        ({"weights.safetensors": safetensors(entries(SHAPES))}, "rename the one to load"),
        ({"adapter_config.json": "{}", "adapter_model.safetensors": ""}, "LoRA adapter"),
        ({"model-00001-of-00002.safetensors": "x"}, r"but not model\.safetensors\.index\.json"),
        ({"optimizer.pt": "x", "rng_state_0.pth": "x", "training_args.bin": "x"}, "holds no weights"),
        ({"pytorch_model.bin": "x"}, r"only as pickle \(pytorch_model\.bin\).*model\.allow_pickle=true"),
        ({"model.pt": "x"}, r"only as pickle \(model\.pt\)"),
    ],
)
def test_weights_of_another_kind_are_refused(tmp_path: Path, files: dict[str, bytes | str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        look(folder(tmp_path, files=files))


def test_an_allowed_pickle_has_bytes_but_no_tensors(tmp_path: Path) -> None:
    found = look(folder(tmp_path, files={"pytorch_model.bin": b"12345"}), allow_pickle=True)
    assert (found.weights_format, found.num_bytes, found.tensors) == ("pickle", 5, ())
    assert found.pickle_files == {"pytorch_model.bin": 5}
    assert "tensors are unknown" in found.notes[0]
    with pytest.raises(CheckpointError, match="pickle checkpoint do not tell"):
        tensors_bytes(found, "float32")


def test_safetensors_win_over_an_allowed_pickle(tmp_path: Path) -> None:
    folder(tmp_path, files={"model.safetensors": safetensors(entries(SHAPES)), "pytorch_model.bin": b"12345"})
    assert look(tmp_path, allow_pickle=True).weights_format == "safetensors"


@pytest.mark.parametrize(
    ("settings", "dtype", "method"),
    [
        ({"quant_method": "gptq"}, "BF16", "gptq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "U8", "bitsandbytes_4bit"),
        ({"load_in_8bit": True}, "I8", "bitsandbytes_8bit"),
        (None, "F8_E4M3", "fp8"),
        (None, "BF16", None),
    ],
)
def test_quantization_is_recognised(tmp_path: Path, settings: object, dtype: str, method: str | None) -> None:
    config = QWEN3 | ({"quantization_config": settings} if settings else {})
    files = {"model.safetensors": safetensors(entries(SHAPES, dtype=dtype))}
    assert look(folder(tmp_path, config=config, files=files)).quantization == method


def test_a_gguf_file_beside_its_config_is_recognised(tmp_path: Path) -> None:
    found = look(folder(tmp_path, files={"model.gguf": b"GGUF"}))
    assert (found.quantization, found.weights_format, found.num_bytes) == ("gguf", "gguf", 4)


def test_a_gguf_file_alone_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"GGUF file \(model\.gguf\) without config\.json"):
        look(folder(tmp_path, config=None, files={"model.gguf": b"GGUF"}))


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model", "vocab.txt"])
def test_a_tokenizer_is_seen(tmp_path: Path, name: str) -> None:
    (folder(tmp_path) / name).write_text("")
    assert look(tmp_path).has_tokenizer


def test_bytes_in_another_dtype_leave_integers_alone(tmp_path: Path) -> None:
    header = entries({"a": (3, 5)}) | {"i": {"dtype": "I64", "shape": [2], "data_offsets": [30, 46]}}
    found = look(folder(tmp_path, files={"model.safetensors": safetensors(header)}))
    assert tensors_bytes(found, "float32") == 15 * 4 + 16
    assert found.bytes_in("float16") == 15 * 2 + 16


def test_the_hash_knows_config_and_headers_apart(tmp_path: Path) -> None:
    plain = look(folder(tmp_path / "a")).content_hash
    same = look(folder(tmp_path / "b")).content_hash
    other_config = look(folder(tmp_path / "c", config=QWEN3 | {"x": 1})).content_hash
    files = {"model.safetensors": safetensors(entries(SHAPES, dtype="F16"))}
    other_header = look(folder(tmp_path / "d", files=files)).content_hash
    assert plain == same
    assert len({plain, other_config, other_header}) == 3


def test_the_embedded_model_is_a_folder_like_any_other(tmp_path: Path) -> None:
    found = inspect(ModelConfig(), source=Source.embedded, environment={}, embedded=folder(tmp_path))
    assert (found.source, found.id, found.num_parameters) == ("embedded", "embedded", 60)


def test_a_local_source_needs_a_path(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"model\.path=DIR"):
        inspect(ModelConfig(source=Source.local), source=Source.local, environment={}, embedded=tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (folder(tmp_path) / "model.safetensors").chmod(0)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: Permission denied"):
        look(tmp_path)


def test_inspecting_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from runner.checkpoint import inspect;"
        "from runner.config import ModelConfig, Source;"
        "inspect(ModelConfig(path=sys.argv[1]), source=Source.local, environment={}, embedded=Path());"
        "print([name for name in ('torch', 'transformers', 'numpy', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder(tmp_path))], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_same_bytes_twice_are_counted_once_and_different_ones_twice(tmp_path: Path) -> None:
    header = entries({EMBEDDING: (8, 4), "lm_head.weight": (8, 4)})
    alike = folder(tmp_path / "a", files={"model.safetensors": safetensors(header, data=bytes(128))})
    differing = folder(tmp_path / "b", files={"model.safetensors": safetensors(header, data=bytes(64) + b"x" * 64)})
    assert look(alike).num_parameters == 32
    assert look(alike).tied == ((EMBEDDING, "lm_head.weight"),)
    assert look(differing).num_parameters == 64
    assert "differs" in look(differing).notes[0]


def test_a_broken_index_says_where(tmp_path: Path) -> None:
    sharded(tmp_path, a=entries({"x": (1,)}))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}})[:-2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json is not JSON: .*line 1"):
        look(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
        look(path)


def test_a_user_that_the_system_does_not_know_is_no_traceback(tmp_path: Path) -> None:
    config = ModelConfig(source=Source.local, path="~nosuchuser/model")
    with pytest.raises(RunnerError, match="nosuchuser"):
        inspect(config, source=Source.local, environment={}, embedded=tmp_path)
