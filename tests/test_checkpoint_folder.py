import json
import os
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoint import inspect
from runner.checkpoint.folder import inspect_folder
from runner.checkpoint.headers import read_header
from runner.config import ModelConfig, Source
from runner.errors import CheckpointError, RequestError
from tests.checkpoint_makers import CONFIG, folder, header, safetensors, sharded

PAIR = (("a", "F32", [2, 3]), ("b", "BF16", [4]))


def test_headers_alone_tell_parameters_dtypes_and_bytes(tmp_path: Path) -> None:
    found = inspect_folder(folder(tmp_path), source="local")
    assert (found.num_parameters, found.num_bytes) == (10, 32)
    assert found.stored_dtypes == {"float32": 24, "bfloat16": 8}
    assert [(t.name, t.shape, t.num_bytes) for t in found.tensors] == [("a", (2, 3), 24), ("b", (4,), 8)]
    assert (found.architecture, found.model_type, found.has_tokenizer) == ("Qwen3ForCausalLM", "qwen3", False)


def test_weights_are_not_read(tmp_path: Path) -> None:
    file = folder(tmp_path) / "model.safetensors"
    entries = header(("a", "F32", [2**33]))  # 32 GiB, of which the disk holds nothing
    safetensors(file, entries, data=0)
    os.truncate(file, file.stat().st_size + 2**35)
    assert inspect_folder(tmp_path, source="local").num_bytes == 2**35


@pytest.mark.parametrize(
    ("entries", "options", "message"),
    [
        (header(*PAIR), {"data": 31}, r"m\.safetensors is truncated: it ends at byte \d+, its header says byte \d+"),
        (header(*PAIR), {"data": 40}, r"has bytes that belong to no tensor"),
        (header(*PAIR), {"length": 2**40}, r"header at byte 0 claims 1099511627776 bytes"),
        (header(*PAIR), {"length": 5000}, r"inside its header, which should end at byte 5008"),
        (b'{"a": [}', {"data": 0}, r"header is not JSON at byte 15"),
        (b"\xff\xfe{}", {"data": 0}, r"header is not JSON at byte 8"),
        (b"[]", {"data": 0}, r"header at byte 8 is not a mapping"),
        (header(*PAIR, b={"dtype": "BF16", "shape": [4], "data_offsets": [20, 28]}), {"data": 32}, r"'a' and 'b' overlap"),
        (header(*PAIR, b={"dtype": "BF16", "shape": [4], "data_offsets": [30, 38]}), {}, r"'a' and 'b' leave a gap"),
        (header(*PAIR, b={"dtype": "BF16", "shape": [5], "data_offsets": [24, 32]}), {}, r"takes 10 bytes, but bytes"),
        (header(*PAIR, b={"dtype": "Q3", "shape": [4], "data_offsets": [24, 32]}), {}, r"'b' has dtype 'Q3'; known are"),
        (header(*PAIR, b={"shape": [4], "data_offsets": [24, 32]}), {}, r"entry for 'b' lacks a dtype"),
        (header(*PAIR, b={"dtype": "F32", "shape": [-1], "data_offsets": [24, 20]}), {}, r"entry for 'b' lacks"),
        (header(*PAIR, b=7), {"data": 32}, r"entry for 'b' lacks"),
    ],
)  # fmt: skip
def test_a_broken_file_is_told_with_its_byte(
    tmp_path: Path, entries: Any, options: dict[str, int], message: str
) -> None:
    if isinstance(entries, dict) and "data" not in options:
        options = {**options, "data": 40}
    with pytest.raises(CheckpointError, match=message):
        read_header(safetensors(tmp_path / "m.safetensors", entries, **options))


@pytest.mark.parametrize("size", [0, 5])
def test_a_file_without_even_a_length_is_told(tmp_path: Path, size: int) -> None:
    (tmp_path / "m.safetensors").write_bytes(bytes(size))
    with pytest.raises(CheckpointError, match=rf"ends at byte {size}, before the 8 bytes"):
        read_header(tmp_path / "m.safetensors")


def test_shards_are_read_together(tmp_path: Path) -> None:
    made = sharded(tmp_path / "m", {"1.safetensors": [PAIR[0]], "2.safetensors": [PAIR[1]]},
                   {"a": "1.safetensors", "b": "2.safetensors"})  # fmt: skip
    assert inspect_folder(made, source="local").num_parameters == 10


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (
            {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"},
            r"1 tensors that its shards lack: 'c' in 2",
        ),
        ({"a": "2.safetensors", "b": "2.safetensors"}, r"shards lack: 'a' in 2"),
        ({"a": "1.safetensors", "b": "3.safetensors"}, r"1 are not in .*: 3\.safetensors"),
        ({"a": "../1.safetensors", "b": "2.safetensors"}, r"names '../1\.safetensors', which is not a file beside it"),
        ({"a": "/etc/passwd", "b": "2.safetensors"}, r"is not a file beside it"),
        ({}, r"has no weight_map"),
        ({"a": 7}, r"has no weight_map"),
    ],
)
def test_an_index_that_disagrees_with_its_shards_is_an_error(
    tmp_path: Path, weight_map: dict[str, Any], message: str
) -> None:
    made = sharded(tmp_path / "m", {"1.safetensors": [PAIR[0]], "2.safetensors": [PAIR[1]]}, weight_map)
    with pytest.raises(CheckpointError, match=message):
        inspect_folder(made, source="local")


def test_shards_with_tensors_that_the_index_lacks_are_an_error(tmp_path: Path) -> None:
    made = sharded(tmp_path / "m", {"1.safetensors": list(PAIR)}, {"a": "1.safetensors"})
    with pytest.raises(CheckpointError, match=r"hold 1 tensors that .* does not name: 'b' in 1"):
        inspect_folder(made, source="local")


def test_a_tensor_in_two_shards_is_an_error(tmp_path: Path) -> None:
    made = sharded(tmp_path / "m", {"1.safetensors": list(PAIR), "2.safetensors": [PAIR[1]]},
                   {"a": "1.safetensors", "b": "2.safetensors"})  # fmt: skip
    with pytest.raises(CheckpointError, match="1 tensors stand in more than one shard"):
        inspect_folder(made, source="local")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json is not JSON: .* at line 1, column 2"),
        ("[1]", "is JSON, but not a mapping"),
        ("{}", "has no model_type"),
        ('{"model_type": "qwen3"}', "names no architectures"),
        ('{"model_type": "qwen3", "architectures": []}', "names no architectures"),
    ],
)
def test_a_configuration_that_says_too_little_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (folder(tmp_path) / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        inspect_folder(tmp_path, source="local")


def test_a_configuration_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (folder(tmp_path) / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CheckpointError, match="is not UTF-8 at byte 7"):
        inspect_folder(tmp_path, source="local")


def test_pickled_weights_are_refused_unless_they_are_asked_for(tmp_path: Path) -> None:
    (folder(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model\.bin\), which can run code"):
        inspect_folder(tmp_path, source="local")
    allowed = inspect_folder(tmp_path, source="local", allow_pickle=True)
    assert allowed.tensors == ()
    assert allowed.num_bytes == (tmp_path / "pytorch_model.bin").stat().st_size


def test_a_folder_that_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is empty"):
        inspect_folder(tmp_path, source="local")
    folder(tmp_path / "inside")
    with pytest.raises(CheckpointError, match=r"has no config\.json, so it is no checkpoint; .*inside has one"):
        inspect_folder(tmp_path, source="local")
    (tmp_path / "inside" / "model.safetensors").rename(tmp_path / "inside" / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"has neither model\.safetensors nor .*; it has weights\.safetensors"):
        inspect_folder(tmp_path / "inside", source="local")


def test_a_path_that_is_a_file_or_misspelt_is_told_with_what_to_type(tmp_path: Path) -> None:
    made = folder(tmp_path / "my_model")
    with pytest.raises(CheckpointError, match=rf"is a file; .*model\.path={made}"):
        inspect_folder(made / "model.safetensors", source="local")
    with pytest.raises(CheckpointError, match=r"does not exist; did you mean .*my_model\?"):
        inspect_folder(tmp_path / "my_modle", source="local")


DECODER = (("model.embed_tokens.weight", "BF16", [10, 4]), ("lm_head.weight", "BF16", [10, 4]))


@pytest.mark.parametrize(
    ("tensors", "config", "num_parameters"),
    [
        (DECODER, {"tie_word_embeddings": True}, 40),
        (DECODER[:1], {"tie_word_embeddings": True}, 40),
        (DECODER, {"tie_word_embeddings": False}, 80),
        (DECODER, {"text_config": {"tie_word_embeddings": True}}, 40),
        (DECODER, {"model_type": "gemma"}, 40),
        ((("shared.weight", "F32", [10]), ("encoder.embed_tokens.weight", "F32", [10]), ("lm_head.weight", "F32", [10])),
         {"model_type": "t5"}, 10),
        ((("shared.weight", "F32", [10]), ("encoder.embed_tokens.weight", "F32", [10]), ("lm_head.weight", "F32", [10])),
         {"model_type": "t5", "tie_word_embeddings": False}, 20),
    ],
)  # fmt: skip
def test_tied_weights_count_once(tmp_path: Path, tensors: Any, config: dict[str, Any], num_parameters: int) -> None:
    base = {key: value for key, value in CONFIG.items() if key != "tie_word_embeddings"}
    found = inspect_folder(folder(tmp_path, *tensors, config=base | config), source="local")
    assert found.num_parameters == num_parameters
    assert found.bytes_in("float32") == 4 * num_parameters


@pytest.mark.parametrize(
    ("config", "tensors", "method"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, PAIR, "gptq"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, PAIR, "bitsandbytes_4bit"),
        ({}, (("a", "F8_E4M3", [4]),), "fp8"),
        ({}, PAIR, None),
    ],
)
def test_quantized_formats_are_recognised(tmp_path: Path, config: Any, tensors: Any, method: str | None) -> None:
    assert inspect_folder(folder(tmp_path, *tensors, config=CONFIG | config), source="local").quantization == method


def test_the_content_hash_changes_with_what_was_inspected(tmp_path: Path) -> None:
    hashes = {
        inspect_folder(folder(tmp_path / name, *tensors, config=config), source="local").content_hash
        for name, tensors, config in (
            ("1", PAIR, CONFIG),
            ("2", PAIR, CONFIG),
            ("3", PAIR[:1], CONFIG),
            ("4", PAIR, CONFIG | {"hidden_size": 8}),
        )
    }
    assert len(hashes) == 3


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    made = folder(tmp_path / "real")
    (tmp_path / "linked").mkdir()
    for item in made.iterdir():
        (tmp_path / "linked" / item.name).symlink_to(item)
    assert inspect_folder(tmp_path / "linked", source="local").num_parameters == 10


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    (folder(tmp_path) / "model.safetensors").chmod(0)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        inspect_folder(tmp_path, source="local")


def test_each_source_needs_its_key(tmp_path: Path) -> None:
    for source, message in ((Source.local, r"model\.path=DIR"), (Source.hf, r"model\.id=ORG/NAME"),
                            (Source.random, r"model\.architecture=NAME")):  # fmt: skip
        with pytest.raises(RequestError, match=message):
            inspect(ModelConfig(source=source), source=source, environment={}, embedded=tmp_path)


def test_json_that_was_written_is_json(tmp_path: Path) -> None:
    assert json.loads((folder(tmp_path) / "config.json").read_text()) == CONFIG
