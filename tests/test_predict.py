import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from runner.checkpoint import Checkpoint
from runner.errors import RequestError
from runner.predict import Footprint, kv_cache_bytes, measure_base, parameter_bytes, predict, probe, trace
from runner.predict.ledger import CATEGORIES, Ledger
from runner.predict.overhead import first_use
from runner.predict.scratch import MOST_SCRATCH
from runner.units import GiB, KiB, MiB
from tests.makers import card, processor
from tests.predict_makers import checkpoint, settings
from tests.predict_measured import measure

LLAMA_8B = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
}  # fmt: skip
VITS = {"vocab_size": 38, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64}


def parts(footprint: Footprint) -> dict[str, int]:
    return {name: getattr(footprint, name) for name in CATEGORIES}


def of_config(model_type: str, architecture: str, config: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        source="random", id=None, revision=None, path=None, architecture=architecture, model_type=model_type,
        config=config, tensors=(),
    )  # fmt: skip


CASES = [
    ("qwen3", {"workload": "forward"}),
    ("qwen3", {"workload": "generate", "precision": "fp16", "temperature": 0.7}),
    ("llama", {"workload": "generate", "sequence_length": 3, "max_new_tokens": 40}),
    ("qwen3", {"workload": "train"}),
    ("qwen3", {"workload": "train", "precision": "fp16", "checkpointed_layers": 3}),
    ("llama", {"workload": "train", "grad_accum_steps": 2, "optimizer_implementation": "foreach"}),
    ("gpt2", {"workload": "train", "optimizer": "adafactor", "sequence_length": 96}),
    ("bert", {"workload": "train", "optimizer": "sgd", "checkpointed_layers": 2}),
    ("t5", {"workload": "generate"}),
    ("vit", {"workload": "train"}),
    ("llama", {"workload": "train", "optimizer_implementation": "fused"}),
    ("qwen3", {"workload": "train", "optimizer": "sgd", "micro_batch_size": 1, "sequence_length": 8}),
    ("gemma2", {"workload": "train", "precision": "bf16", "optimizer": "sgd", "sequence_length": 8}),
    ("whisper", {"workload": "train", "optimizer": "sgd", "micro_batch_size": 1, "sequence_length": 8}),
    ("qwen3", {"precision": "bf16"}),
    ("t5", {"workload": "generate", "precision": "bf16"}),
    ("mamba", {"precision": "fp16"}),
    ("bart", {"workload": "generate", "precision": "fp16"}),
    (
        "llama",
        {"workload": "generate", "precision": "bf16", "micro_batch_size": 4, "max_new_tokens": 2, "vocab_size": 16384},
    ),
]


@pytest.mark.parametrize(("model_type", "overrides"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_prediction_is_what_the_profiler_counts_on_real_tensors(model_type: str, overrides: dict[str, Any]) -> None:
    overrides = dict(overrides)
    changes = {"vocab_size": overrides.pop("vocab_size")} if "vocab_size" in overrides else {}
    made, values = checkpoint(model_type, **changes), settings(**overrides)
    predicted, measured = trace(made, values).peak.total, measure(made, values)
    assert predicted == pytest.approx(measured, rel=2e-3)


def test_what_is_too_large_to_be_measured_is_named_and_no_more_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MOST_PRODUCTS", 0)
    made, values = checkpoint("qwen3"), settings(precision="bf16")
    missing = measure(made, values) - trace(made, values).peak.total
    assert 0 <= missing <= MOST_SCRATCH * torch.get_num_threads()
    named = any("oneDNN" in note for note in predict(made, values, processor()).notes)
    assert named == bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def test_kernels_are_asked_only_of_a_processor_that_is_here() -> None:
    made, values = checkpoint("whisper"), settings()
    here = trace(made, values)
    elsewhere = trace(made, values, on_this_host=False)
    assert not here.notes
    assert any("convolutions" in note for note in elsewhere.notes)
    assert elsewhere.peak.total <= here.peak.total


@pytest.mark.parametrize("workload", ["load", "forward", "generate", "train"])
@pytest.mark.parametrize("machine", [processor(), card()], ids=["cpu", "cuda"])
def test_parts_add_up_to_the_peak(workload: str, machine: Any) -> None:
    values = settings(workload=workload, device=machine.device)
    footprint = predict(checkpoint("qwen3"), values, machine, overhead=7 * MiB)
    assert sum(parts(footprint).values()) + footprint.overhead == footprint.peak
    assert footprint.peak >= footprint.load_peak + footprint.overhead
    assert footprint.work_peak == footprint.peak - footprint.overhead


def test_training_keeps_gradients_and_two_adamw_states_as_large_as_the_parameters() -> None:
    values = settings(workload="train", sequence_length=1, optimizer_implementation="foreach")
    footprint = predict(checkpoint("llama"), values, processor(), overhead=0)
    assert footprint.gradients == pytest.approx(footprint.parameters, rel=0.01)
    assert footprint.optimizer_state == pytest.approx(2 * footprint.parameters, rel=0.01)
    assert footprint.method == "traced"


@pytest.mark.parametrize(("implementation", "times"), [("foreach", 5), ("fused", 4)])
def test_the_optimizer_step_takes_five_times_the_parameters_with_foreach_and_four_when_fused(
    implementation: str, times: int
) -> None:
    values = settings(workload="train", optimizer_implementation=implementation, micro_batch_size=1, sequence_length=1)
    footprint = predict(checkpoint("llama"), values, processor(), overhead=0)
    assert footprint.work_peak == pytest.approx(times * footprint.parameters, rel=0.02)


def test_checkpointing_moves_activations_out_of_the_peak() -> None:
    values = settings(workload="train", sequence_length=128)
    off = predict(checkpoint("qwen3"), values, processor(), overhead=0)
    on = predict(checkpoint("qwen3"), replace(values, checkpointed_layers=3), processor(), overhead=0)
    assert on.activations < 0.7 * off.activations


def test_generate_has_the_formula_s_kv_cache_at_a_decode_peak() -> None:
    values = settings(workload="generate", sequence_length=2, max_new_tokens=100)
    made = checkpoint("llama")
    footprint = predict(made, values, processor(), overhead=0)
    per_layer = kv_cache_bytes(made.config, values) // 3
    assert footprint.moment == "decode"
    assert kv_cache_bytes(made.config, values) <= footprint.kv_cache <= kv_cache_bytes(made.config, values) + per_layer


def test_32_layers_of_8_kv_heads_of_128_take_128_kib_a_token_in_bf16() -> None:
    values = settings(
        precision="bf16", workload="generate", micro_batch_size=1, sequence_length=1000, max_new_tokens=25
    )
    assert kv_cache_bytes(LLAMA_8B, values) == 1024 * 128 * KiB


def test_sliding_layers_hold_one_token_less_than_their_window() -> None:
    config = LLAMA_8B | {"sliding_window": 512, "layer_types": ["sliding_attention"] * 31 + ["full_attention"]}
    values = settings(
        precision="bf16", workload="generate", micro_batch_size=1, sequence_length=1000, max_new_tokens=25
    )
    assert kv_cache_bytes(config, values) == (31 * 511 + 1024) * 4 * KiB


def test_an_8b_model_is_traced_without_its_storage() -> None:
    before = measure_base()
    values = settings(workload="forward", precision="bf16", micro_batch_size=1)
    footprint = predict(of_config("llama", "LlamaForCausalLM", LLAMA_8B), values, processor(), overhead=0)
    assert footprint.parameters == 8_030_261_248 * 2
    assert footprint.peak > 14.9 * GiB
    assert measure_base() - before < 1 * GiB


def test_loading_is_answered_from_headers_without_torch() -> None:
    code = """
import sys
from runner.predict import predict
from tests.makers import checkpoint, processor
from runner.checkpoint import StoredTensor
from runner.settings import Settings
shape = {"dtype": "float32", "shape": (1024, 256), "num_bytes": 2**20, "file": "f", "offset": 0}
tensors = (StoredTensor(name="a", **shape), StoredTensor(name="b", **shape))
dtypes = {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16"}
values = Settings(workload="load", device="cpu", precision="bf16", **dtypes)
found = predict(checkpoint(tensors=tensors, tied=(("a", "b"),)), values, processor(), overhead=0)
print(found.load_peak, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(512 * KiB), "False"]


def test_quantized_and_integer_tensors_keep_their_stored_size() -> None:
    made = checkpoint("llama")
    assert parameter_bytes(made, settings(precision="bf16")) * 2 == made.num_bytes
    assert parameter_bytes(replace(made, quantization="gptq"), settings(precision="bf16")) == made.num_bytes


def test_without_headers_the_count_of_parameters_stands_in() -> None:
    made = replace(checkpoint("llama"), tensors=(), num_parameters=1000)
    assert parameter_bytes(made, settings(precision="bf16")) == 2000


def test_headers_and_trace_agree_on_the_loaded_parameters() -> None:
    made, values = checkpoint("qwen3"), settings(precision="bf16")
    assert trace(made, values).loaded.by_category["parameters"] == parameter_bytes(made, values)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_whose_shapes_depend_on_data_is_estimated_and_says_so() -> None:
    made = checkpoint("vits", architecture="VitsModel", **VITS)
    footprint = predict(made, settings(), processor(), overhead=0)
    assert footprint.method.startswith("estimated: VitsModel does not run on fake tensors (DynamicOutputShapeException")
    assert footprint.parameters == parameter_bytes(made, settings())
    assert sum(parts(footprint).values()) + footprint.overhead == footprint.peak


@pytest.mark.parametrize("workload", ["forward", "generate", "train"])
def test_an_estimate_is_of_the_size_of_the_trace(workload: str) -> None:
    from runner.predict.headers import estimate

    made = checkpoint("llama", hidden_size=256, intermediate_size=1024, vocab_size=4096)
    values = settings(workload=workload, sequence_length=128)
    rough = estimate(made, values, why="for a test")
    assert rough.work_peak == pytest.approx(trace(made, values).peak.total, rel=0.3)


def test_what_the_run_would_refuse_is_refused_here_too() -> None:
    with pytest.raises(RequestError, match="NoSuchModel"):
        predict(replace(checkpoint("llama"), architecture="NoSuchModel"), settings(), processor())


def test_overhead_of_a_cuda_device_is_a_constant_that_a_note_names() -> None:
    footprint = predict(checkpoint("llama"), settings(device="cuda:0"), card())
    assert footprint.overhead > 500 * MiB
    assert any("CUDA context" in note for note in footprint.notes)
    hopper = predict(checkpoint("llama"), settings(device="cuda:0"), card(capability=(9, 0)))
    assert hopper.overhead - footprint.overhead == 32 * MiB - 8320 * KiB


KERNELS = [
    ("float16", 4, False, (8, 0), "flash"),
    ("bfloat16", 2, False, (8, 6), "flash"),
    ("float16", 4, True, (8, 0), "efficient"),
    ("float32", 4, False, (9, 0), "efficient"),
    ("float16", 4, False, (7, 5), "efficient"),
    ("float16", 2, False, (7, 5), "math"),
    ("float32", 2, False, (8, 0), "math"),
]


@pytest.mark.parametrize(("dtype", "kv_heads", "masked", "capability", "kernel"), KERNELS)
def test_attention_kernel_on_cuda_follows_dtype_mask_groups_and_capability(
    dtype: str, kv_heads: int, masked: bool, capability: tuple[int, int], kernel: str
) -> None:
    import torch

    from runner.predict.cuda import choose_kernel

    query = torch.empty((1, 4, 8, 64), dtype=getattr(torch, dtype), device="meta")
    key = torch.empty((1, kv_heads, 8, 64), dtype=getattr(torch, dtype), device="meta")
    assert choose_kernel(query, key, key, masked=masked, capability=capability) == kernel


def test_attention_without_flash_grows_with_the_square_of_the_sequence() -> None:
    values = settings(precision="fp16", device="cuda:0", micro_batch_size=1, sequence_length=512)
    turing_peak = trace(checkpoint("llama"), values, capability=(7, 5)).peak.total
    ampere_peak = trace(checkpoint("llama"), values, capability=(8, 6)).peak.total
    scores = 4 * 512 * 512 * 2
    assert turing_peak - ampere_peak > scores


@pytest.mark.parametrize("model_type", ["qwen3", "gpt2", "bert", "t5"])
def test_cuda_needs_about_what_the_cpu_needs(model_type: str) -> None:
    values = settings(workload="train", precision="bf16", checkpointed_layers=3)
    on_cpu = trace(checkpoint(model_type), values).peak.total
    on_cuda = trace(checkpoint(model_type), replace(values, device="cuda:0"), capability=(8, 6)).peak.total
    assert on_cuda == pytest.approx(on_cpu, rel=0.2)


def test_a_card_s_allocator_reserves_at_least_what_is_allocated_and_the_cpu_has_none() -> None:
    values = settings(workload="train", device="cuda:0")
    footprint = predict(checkpoint("llama"), values, card())
    assert footprint.reserved is not None
    assert footprint.work_peak <= footprint.reserved <= footprint.work_peak + 40 * MiB
    assert footprint.reserved % (2 * MiB) == 0
    assert predict(checkpoint("llama"), settings(), processor()).reserved is None


def test_an_overhead_that_was_not_measured_is_a_constant_that_a_note_names() -> None:
    footprint = predict(checkpoint("llama"), settings(), processor())
    assert footprint.load_overhead == 312 * MiB
    assert 325 * MiB < footprint.overhead < 330 * MiB
    assert any("overhead is a constant" in note for note in footprint.notes)


def test_training_on_a_cpu_leaves_room_for_what_malloc_keeps() -> None:
    small, large = (first_use(settings(workload="train"), processor(), tensors) for tensors in (0, 1000 * MiB))
    assert (small, large) == (40 * MiB, 290 * MiB)
    tight = settings(workload="train", host_allocator="tight")
    assert [first_use(tight, processor(), tensors) for tensors in (0, 1000 * MiB)] == [48 * MiB, 48 * MiB]
    assert first_use(settings(workload="train", device="cuda:0"), card(), 1000 * MiB) == 0


def test_timeline_names_phases_and_modules_and_contains_the_peak() -> None:
    traced = trace(checkpoint("qwen3"), settings(workload="train"))
    phases = [moment.phase for moment in traced.timeline]
    assert [phase for phase in dict.fromkeys(phases)] == ["load", "forward", "backward", "optimizer_step"]
    assert max(moment.total for moment in traced.timeline) == traced.peak.total
    assert all(sum(moment.by_category.values()) == moment.total for moment in traced.timeline)
    assert any(moment.module == "model.layers.1.mlp.down_proj" for moment in traced.timeline)


def test_tracing_leaves_torch_and_transformers_as_they_were() -> None:
    import torch
    from transformers.utils import import_utils

    before = (torch.get_rng_state, getattr(import_utils, "is_fake_tensor", None))
    trace(checkpoint("qwen3"), settings(workload="train", checkpointed_layers=3))
    assert (torch.get_rng_state, getattr(import_utils, "is_fake_tensor", None)) == before


def test_ledger_takes_the_peak_of_the_sum_and_the_labels_of_the_end() -> None:
    ledger = Ledger()
    weight = ledger.born(100, "parameters")
    ledger.phase = "forward"
    kept, passing = ledger.born(30), ledger.born(20)
    ledger.died(passing)
    ledger.relabel(kept, "activations")
    ledger.died(kept)
    ledger.resized(weight, 120)
    peak = ledger.at_peak()
    assert (peak.total, peak.phase, ledger.total) == (150, "forward", 120)
    assert {name: size for name, size in peak.by_category.items() if size} == {
        "parameters": 100, "activations": 30, "workspace": 20,
    }  # fmt: skip


def test_ledger_takes_scratch_that_is_measured_afterwards_into_the_peak() -> None:
    ledger = Ledger()
    ledger.born(100, "parameters")
    ledger.phase, ledger.operation = "forward", "product"
    place = ledger.passing(0)
    ledger.phase, ledger.operation = "backward", "sum"
    ledger.died(ledger.born(10))
    assert (ledger.at_peak().total, ledger.at_peak().phase) == (110, "backward")
    ledger.fill({place: 30})
    peak = ledger.at_peak()
    assert (peak.total, peak.phase, peak.operation, peak.by_category["workspace"]) == (130, "forward", "product", 30)
    ledger.fill({place: 5})
    assert (ledger.at_peak().total, ledger.at_peak().operation) == (110, "sum")
    assert sum(moment.total for moment in ledger.timeline()) == 100 + 105 + 110


def test_ledger_rounds_up_to_the_allocator_s_blocks() -> None:
    ledger = Ledger(granularity=512)
    number = ledger.born(1)
    ledger.born(512)
    assert ledger.total == 1024
    ledger.resized(number, 513)
    assert ledger.total == 1536


def test_footprint_has_a_field_for_every_category() -> None:
    assert set(CATEGORIES) <= {field.name for field in fields(Footprint)}


def test_pickled_weights_are_estimated_from_their_files_and_never_taken_for_nothing() -> None:
    from tests.makers import checkpoint as described

    made = described(num_parameters=0, stored_dtypes={}, num_bytes=100 * MiB, config={"torch_dtype": "float16"})
    footprint = predict(made, settings(workload="load"), processor(), overhead=0)
    assert footprint.parameters == 200 * MiB  # float16 on disk, float32 in memory
    assert footprint.load_peak == 300 * MiB
    assert footprint.method.startswith("estimated")
