"""What the plan settles: nothing in it is `auto`. Prediction and the run read the same value."""

from dataclasses import dataclass

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
ITEMSIZE = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "complex64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One resolved way to run one workload."""

    workload: str
    """load, forward, generate, train or speak"""
    device: str
    """torch's name of it: cpu, cuda:0, …"""
    precision: str
    """fp32, bf16 or fp16"""
    parameter_dtype: str
    compute_dtype: str
    autocast: bool = False
    """whether parameters stay in parameter_dtype and operations run in compute_dtype"""
    grad_scaler: bool = False
    checkpointed_layers: int = 0
    """layers whose activations are recomputed in the backward pass, from the first"""
    num_layers: int = 0
    """repeated layers that could be checkpointed"""
    micro_batch_size: int = 1
    sequence_length: int = 128
    """tokens in a sequence; in generate, of the prompt"""
    max_new_tokens: int = 64
    steps: int = 3
    grad_accum_steps: int = 1
    temperature: float = 0.0
    adapter: str = "none"
    """none, or lora: the model is frozen, and small matrices beside its layers are trained"""
    adapter_rank: int = 16
    adapter_alpha: int = 32
    adapter_targets: tuple[str, ...] = ("all-linear",)
    optimizer: str = "adamw"
    optimizer_implementation: str = "forloop"
    """forloop, foreach or fused"""
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    momentum: float = 0.0
    host_allocator: str = "default"
    """default, or tight: malloc gives every large block back to the system at once (CPU training)"""
    attention: str | None = None
    """attn_implementation handed to transformers; None: its default"""
    seed: int = 0
    trust_remote_code: bool = False
    allow_pickle: bool = False
    allow_missing: bool = False
    memory_efficient: bool = True
    """false: plain loading"""
    text_embedding: str = "held"
    """held, or file: of a speech model's text embedding only the rows that a sentence needs are read"""
    codec: str = "held"
    """held, or after: a speech model's codec comes in when all frames are made and the talker is gone"""
    codec_chunk: int = 300
    """frames that a speech model's codec decodes at a time"""
    codec_encoder: bool = False
    """whether the codec's encoder is needed, for reference audio"""
    reference_seconds: float = 0.0
    """of the reference audio"""
