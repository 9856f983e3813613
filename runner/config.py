"""What was asked for. `auto` is still in it; nothing here was looked up on the machine."""

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from runner.errors import RequestError
from runner.units import parse_size

AUTO = "auto"
ALL_LINEAR = "all-linear"


class Source(Enum):
    """Where the checkpoint comes from."""

    embedded = "embedded"
    hf = "hf"
    local = "local"
    random = "random"


class Precision(Enum):
    """The user's policy; a dtype is the type of one tensor."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Checkpointing(Enum):
    """Whether activations are recomputed in the backward pass: in no, all, or just enough layers."""

    off = "off"
    on = "on"
    auto = "auto"


class Workload(Enum):
    """What to do with the model."""

    load = "load"
    forward = "forward"
    generate = "generate"
    train = "train"
    speak = "speak"
    plan = "plan"


class Optimizer(Enum):
    """The training step's optimizer."""

    adamw = "adamw"
    adamw_8bit = "adamw_8bit"
    sgd = "sgd"
    adafactor = "adafactor"


class OptimizerImplementation(Enum):
    """How the optimizer's update is computed; it decides how many temporaries a step needs."""

    auto = "auto"
    forloop = "forloop"
    foreach = "foreach"
    fused = "fused"


class Adapter(Enum):
    """What is trained beside a frozen model."""

    none = "none"
    lora = "lora"


class Tracker(Enum):
    """The experiment log that a run is told to, besides its record."""

    none = "none"
    mlflow = "mlflow"
    tensorboard = "tensorboard"


class Attention(Enum):
    """The attention implementation that transformers is asked for."""

    auto = "auto"
    eager = "eager"
    sdpa = "sdpa"
    flash_attention_2 = "flash_attention_2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which checkpoint to run."""

    source: Source = Source.embedded
    """embedded | hf | local | random"""
    id: str | None = None
    """Hub id, ORG/NAME (model=hf)"""
    revision: str = "main"
    """Hub branch, tag or commit"""
    path: str | None = None
    """folder of a local checkpoint; giving it is enough"""
    architecture: str | None = None
    """architecture at true size (model=random)"""
    attention: Attention = Attention.auto
    """auto | eager | sdpa | flash_attention_2"""
    cache: str = AUTO
    """folder for random checkpoints; auto: runner in the user's cache folder"""
    trust_remote_code: bool = False
    """run Python code that comes with the checkpoint"""
    allow_pickle: bool = False
    """load .bin checkpoints, which can run code"""
    allow_missing: bool = False
    """initialise parameters that the checkpoint lacks"""

    def __post_init__(self) -> None:
        if self.path is not None and not self.path.strip():
            raise RequestError("model.path is empty; give the folder of a checkpoint, model.path=DIR")
        if self.id is not None and not self.id.strip():
            raise RequestError("model.id is empty; give a Hub id, model.id=ORG/NAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """What to do with the model, and on how much."""

    name: Workload = Workload.generate
    """load | forward | generate | train | speak | plan"""
    of: Workload = Workload.generate
    """what workload=plan plans"""
    micro_batch_size: int = 1
    """sequences in one forward pass"""
    sequence_length: int | str = AUTO
    """tokens in a sequence; auto: the prompt's in generate and forward, else 128"""
    max_new_tokens: int = 64
    """tokens to generate; in speak, frames of 80 ms that one sentence may take (375 by default)"""
    prompt: str | None = None
    """text to continue or to encode; null: a sentence of ours"""
    prompt_file: str | None = None
    """file that holds the prompt"""
    text: str | None = None
    """text to speak"""
    text_file: str | None = None
    """UTF-8 text to train on or to speak; null in train: synthetic tokens"""
    speaker: str = AUTO
    """one of the model's named speakers; auto: its first"""
    language: str = AUTO
    """of the text to speak; auto: the model finds out"""
    instruct: str | None = None
    """how to speak, or, for a VoiceDesign model, the voice itself, in words"""
    reference_audio: str | None = None
    """sound file with the voice to speak in (Base models)"""
    reference_text: str | None = None
    """what is said in the reference audio; null: only the voice's colour is taken from it"""
    steps: int = 3
    """optimizer steps of a training run"""
    grad_accum_steps: int = 1
    """micro batches whose gradients are added up before a step"""
    temperature: float = 0.0
    """0: greedy, in speak as the checkpoint's settings say; above: sampled, from the run's seed"""

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "max_new_tokens", "steps", "grad_accum_steps"):
            _at_least_one(f"workload.{name}", getattr(self, name))
        for name in ("prompt", "prompt_file", "text", "text_file", "instruct", "reference_audio", "reference_text"):
            _expect(f"workload.{name}", getattr(self, name), (str, type(None)), "text")
        if self.prompt is not None and self.prompt_file is not None:
            raise RequestError("workload.prompt and workload.prompt_file are both given; give one of them")
        for name in ("speaker", "language"):
            if not getattr(self, name).strip():
                raise RequestError(f"workload.{name} is empty; give a name, or auto")
        if self.planned is Workload.speak and self.text is not None and self.text_file is not None:
            raise RequestError("workload.text and workload.text_file are both given; give one of them")
        if self.sequence_length != AUTO:
            _at_least_one("workload.sequence_length", self.sequence_length, or_auto=True)
        if not 0.0 <= self.temperature < float("inf"):
            raise RequestError(f"workload.temperature={self.temperature} must be 0 or more and finite")
        if self.of in (Workload.plan,):
            raise RequestError("workload.of=plan plans nothing; give load, forward, generate, train or speak")

    @property
    def planned(self) -> Workload:
        """The workload whose footprint counts: `of` when only a plan was asked for."""
        return self.of if self.name is Workload.plan else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionConfig:
    """In what number format to store and to compute."""

    name: Precision = Precision.auto
    """auto | fp32 | bf16 | fp16"""
    pure: bool = False
    """train with parameters in the low precision too, without fp32 master parameters"""

    def __post_init__(self) -> None:
        _expect("precision.pure", self.pure, (bool,), "true or false")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """What may be spent, and what to recompute instead of keeping it."""

    checkpointing: Checkpointing = Checkpointing.off
    """off | on | auto: activation checkpointing in training"""
    limit: str = AUTO
    """budget below what is free, enforced; auto: what the machine leaves"""
    force: bool = False
    """run although the plan says that it does not fit"""
    exact: bool = False
    """count allocated bytes on the CPU exactly, at the price of speed"""

    def __post_init__(self) -> None:
        _expect("memory.force", self.force, (bool,), "true or false")
        _expect("memory.exact", self.exact, (bool,), "true or false")
        if self.limit != AUTO:
            try:
                parse_size(self.limit)
            except ValueError as error:
                raise RequestError(f"memory.limit={self.limit}: {error}") from None

    @property
    def limit_bytes(self) -> int | None:
        """The limit in bytes; None when the machine decides."""
        return None if self.limit == AUTO else parse_size(self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareConfig:
    """The machine at hand, or a named one that is not here."""

    name: str = "detect"
    """detect, or the profile's name"""
    device: str = AUTO
    """auto | cpu | cuda | cuda:N | xpu | mps"""
    product: str | None = None
    """a profile's product name; null: this machine"""
    total: str | None = None
    """a profile's device memory"""
    capability: str | None = None
    """a profile's CUDA compute capability, such as 8.6"""
    reserved: str | None = None
    """what a profile's driver or system keeps of the total"""
    unified: bool = False
    """whether a profile's device and host share one pool"""
    threads: int | str = AUTO
    """CPU threads to compute with; auto: torch's choice, in a sweep of several jobs at once a share of the CPUs"""

    def __post_init__(self) -> None:
        _expect("hardware.device", self.device, (str,), "auto, cpu, cuda, cuda:N, xpu or mps")
        if self.threads != AUTO:
            _at_least_one("hardware.threads", self.threads, or_auto=True)
        for name in ("total", "reserved"):
            value = getattr(self, name)
            if value is not None:
                try:
                    parse_size(value)
                except ValueError as error:
                    raise RequestError(f"hardware.{name}={value}: {error}") from None

        if self.name != "detect" and not self.is_profile:
            raise RequestError(f"hardware.name={self.name} is no machine; hardware={self.name} chooses a profile")

    @property
    def num_threads(self) -> int | None:
        """The threads asked for; None when the machine decides."""
        return None if self.threads == AUTO else int(self.threads)

    @property
    def is_profile(self) -> bool:
        """Whether the machine described is not the one at hand."""
        return self.product is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """What a training step does with the gradients."""

    name: Optimizer = Optimizer.adamw
    """adamw | adamw_8bit | sgd | adafactor"""
    learning_rate: float = 1e-4
    """step size"""
    weight_decay: float = 0.01
    """decoupled decay of the parameters"""
    momentum: float = 0.0
    """sgd only; above 0 costs one state per parameter"""
    implementation: OptimizerImplementation = OptimizerImplementation.auto
    """auto | forloop | foreach | fused"""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay", "momentum"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise RequestError(f"optimizer.{name}={value} must be 0 or more and finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """Which small matrices are trained while the model itself stays as it is (LoRA, Hu et al., 2021)."""

    name: Adapter = Adapter.none
    """none | lora"""
    rank: int = 16
    """columns of the two matrices beside each layer"""
    alpha: int = 32
    """their product is scaled by alpha / rank"""
    targets: list[str] = field(default_factory=lambda: [ALL_LINEAR])
    """names of the layers that get them; all-linear: each linear layer but the head"""

    def __post_init__(self) -> None:
        _at_least_one("adapter.rank", self.rank)
        _at_least_one("adapter.alpha", self.alpha)
        if not self.targets or not all(isinstance(name, str) and name.strip() for name in self.targets):
            raise RequestError(
                f"adapter.targets={self.targets}: give [{ALL_LINEAR}], or layers' names, [q_proj,v_proj]"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerConfig:
    """Where else a run is logged."""

    name: Tracker = Tracker.none
    """none | mlflow | tensorboard"""
    uri: str = AUTO
    """MLflow's tracking URI, or the folder of the events; auto: in outputs"""
    experiment: str = "runner"
    """the experiment that the runs go to"""

    def __post_init__(self) -> None:
        for name in ("uri", "experiment"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise RequestError(f"tracker.{name}={value!r} is not text")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run, as asked."""

    model: ModelConfig = field(default_factory=ModelConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    memory_efficient: bool = True
    """false: no memory-saving feature is used and nothing is conceded"""
    seed: int = 0
    """of every random number in the run"""

    def __post_init__(self) -> None:
        _expect("memory_efficient", self.memory_efficient, (bool,), "true or false")
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise RequestError(f"seed={self.seed} must be between 0 and {2**32 - 1}")

    @property
    def source(self) -> Source:
        """Where the checkpoint comes from; a given path wins over the model group's option."""
        return Source.local if self.model.path is not None else self.model.source


def cache_folder(config: ModelConfig, *, environment: dict[str, str]) -> Path:
    """Return the folder for checkpoints that are made here: asked, RUNNER_CACHE, or the user's cache."""
    if config.cache != AUTO:
        return Path(os.path.expanduser(config.cache))
    if environment.get("RUNNER_CACHE"):
        return Path(os.path.expanduser(environment["RUNNER_CACHE"]))
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "runner"


def _expect(name: str, value: object, kinds: tuple[type, ...], words: str) -> None:
    if not isinstance(value, kinds):
        raise RequestError(f"{name}={value!r} is not {words}")


def _at_least_one(name: str, value: int | str, *, or_auto: bool = False) -> None:
    if or_auto and isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if type(value) is not int:
        raise RequestError(f"{name}={value} is neither a whole number nor auto" if or_auto else
                           f"{name}={value!r} is not a whole number")  # fmt: skip
    if value < 1:
        raise RequestError(f"{name}={value} must be at least 1")
