"""Run the real workload of the real model class on fake tensors, and book every byte.

This module imports torch; import it inside functions.
"""

import functools
import gc
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from runner import steps
from runner.checkpoint import Checkpoint
from runner.predict.cuda import as_on_cuda
from runner.predict.ledger import Ledger, Moment
from runner.predict.probe import MOST_PROBES, Call, measure_scratch
from runner.predict.scratch import CONVOLUTIONS, CONVOLUTIONS_NOT_COUNTED, MOST_SCRATCH, PRODUCTS_NOT_COUNTED
from runner.predict.segments import reserved_peak
from runner.predict.tracer import Names, Tracer, count_free_gradients
from runner.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one workload allocates, in bytes, counted as torch's allocator does, without process overhead."""

    loaded: Moment
    """parameters and buffers, when the model is loaded"""
    peak: Moment
    """the highest moment of the workload, the loaded model counted in"""
    timeline: tuple[Moment, ...]
    reserved: int | None = None
    """most bytes that CUDA's allocator holds, in whole segments; None on other devices"""
    notes: tuple[str, ...] = ()


def trace(
    checkpoint: Checkpoint,
    settings: Settings,
    *,
    granularity: int = 1,
    capability: tuple[int, int] | None = None,
    on_this_host: bool = True,
) -> Trace:
    """Return what the workload of `settings` allocates. No tensor of it takes storage.

    `granularity` is what the device's allocator rounds sizes up to, `capability` a CUDA card's. `on_this_host`
    says that a run on the CPU would be on this one, whose kernels can be asked. The workload is load, forward,
    generate or train. Raises what the model raises when it cannot run on fake tensors, such as ValueRead or
    torch's DynamicOutputShapeException.
    """
    ledger = Ledger(granularity=granularity)
    count_free_gradients()
    asked, settings = settings, replace(settings, device="cpu")
    with _quiet(), FakeTensorMode(allow_non_fake_inputs=True), ExitStack() as stack:
        model = steps.build(checkpoint, settings)
        steps.prepare(model, settings)
        tracer = Tracer(ledger, on_cpu=asked.device == "cpu")
        tracer.mark(model.parameters(), "parameters")
        tracer.mark(model.buffers(), "buffers")
        loaded = ledger.at_peak()
        stack.enter_context(_followed_rng_state(tracer))
        stack.enter_context(Names(model, ledger))
        if asked.device.startswith("cuda"):
            stack.enter_context(as_on_cuda(capability))
        if settings.workload == "forward":
            _trace_forward(model, settings, tracer)
        elif settings.workload == "generate":
            _trace_generate(model, settings, tracer)
        elif settings.workload == "train":
            _trace_train(model, settings, tracer)
    if asked.device == "cpu":
        if on_this_host:
            _measure_scratch(tracer, ledger)
        else:
            tracer.unmeasured |= {_not_counted(call) for call in tracer.measurable}
    reserved = reserved_peak(ledger.course()) if asked.device.startswith("cuda") else None
    return Trace(
        reserved=reserved, loaded=loaded, peak=ledger.at_peak(), timeline=ledger.timeline(), notes=_notes(asked, tracer)
    )


def _measure_scratch(tracer: Tracer, ledger: Ledger) -> None:
    """Fill in what kernels take besides their outputs, of the calls that could make the peak higher."""
    most = MOST_SCRATCH * torch.get_num_threads()
    high = {
        call: live
        for call, (_, live) in tracer.measurable.items()
        if call.function in CONVOLUTIONS or live + most > ledger.peak
    }
    ordered = sorted(high, key=lambda call: -high[call])
    chosen, left = ordered[:MOST_PROBES], ordered[MOST_PROBES:]
    taken = measure_scratch(chosen)
    ledger.fill({place: taken[call] for call in chosen for place in tracer.measurable[call][0]})
    tracer.unmeasured |= {_not_counted(call) for call in left}


def _not_counted(call: Call) -> str:
    return CONVOLUTIONS_NOT_COUNTED if call.function in CONVOLUTIONS else PRODUCTS_NOT_COUNTED


def _notes(settings: Settings, tracer: Tracer) -> tuple[str, ...]:
    if settings.device.startswith("cuda"):
        return (
            "traced on fake CPU tensors with CUDA's attention kernels, autocast and dropout and sizes rounded up to "
            "512 bytes, not compared with a card yet; `reserved` is by the default rules of CUDA's caching allocator",
        )
    if settings.device != "cpu":
        return (f"traced with the CPU's operations; kernels of {settings.device} may take more or less",)
    return tuple(sorted(tracer.unmeasured))


def _trace_forward(model: Any, settings: Settings, tracer: Tracer) -> None:
    tracer.enter("forward")
    with tracer:
        steps.forward(model, steps.make_inputs(model, settings), settings)


def _trace_train(model: Any, settings: Settings, tracer: Tracer) -> None:
    """Trace one step, the second where there is one: the optimizer's state is there, and no later one is higher."""
    with unset_fake_temporarily():  # tables of numbers that an optimizer brings must have values
        optimizer = steps.make_optimizer(model, settings)
    scaler = steps.make_scaler(settings)
    if settings.steps > 1:
        _make_state(model, optimizer)
    tracer.enter("forward")
    states = (value for state in optimizer.state.values() for value in state.values())
    tracer.mark((value for value in states if isinstance(value, torch.Tensor)), "optimizer_state")
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda held: tracer.mark([held.grad], "gradients"))
    optimizer.register_step_pre_hook(lambda *_: tracer.enter("optimizer_step"))
    steps.begins(model).register_forward_pre_hook(lambda *_: tracer.enter("forward"))
    with tracer:
        micro_batches = [steps.make_inputs(model, settings, step=index) for index in range(settings.grad_accum_steps)]
        tracer.mark((value for batch in micro_batches for value in batch.values()), "workspace")
        steps.train_step(model, micro_batches, optimizer, scaler, settings)


def _make_state(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Take a first step that nobody follows, on gradients of the right shapes."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    with Tracer(Ledger()):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _trace_generate(model: Any, settings: Settings, tracer: Tracer) -> None:
    """Trace the prefill, and the last decode step with the cache as long as it gets; steps between are lower."""
    with tracer, _Calls(model, tracer) as calls:
        inputs = steps.make_inputs(model, settings)
        calls.run(inputs, settings, wanted=1)
        if settings.max_new_tokens == 1:
            return
        tokens = settings.max_new_tokens - 2
        if not calls.grow_cache(tokens):
            calls.forget()
            calls.run(inputs, settings, wanted=settings.max_new_tokens)
            return
        tracer.paused = True
        last = {key: value for key, value in inputs.items() if key != "attention_mask"}
        grown = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
        last[grown] = torch.zeros((settings.micro_batch_size, calls.prompt + tokens), dtype=torch.int64)
        if calls.encoder_outputs is not None:
            last["encoder_outputs"] = calls.encoder_outputs
        calls.run(last, settings, wanted=2, skip_first=True)


class _Calls:
    """Stands before a model's forward while generate calls it: counts, names the phase, and skips a prefill."""

    def __init__(self, model: Any, tracer: Tracer) -> None:
        self._model, self._tracer = model, tracer
        self._original = model.forward
        self._count = self._wanted = 0
        self._skip_first = False
        self._output: type[Any] | None = None
        self._cache_name = ""
        self._cache: Any = None
        self._logits: tuple[int, int, torch.dtype] = (0, 0, torch.float32)
        self.prompt = 0
        """tokens that the decoder saw in the prefill"""
        self.encoder_outputs: Any = None

    def __enter__(self) -> "_Calls":
        @functools.wraps(self._original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._call(*args, **kwargs)

        self._model.forward = forward
        self._tracer.finished = lambda: self._count >= self._wanted
        return self

    def __exit__(self, *_: object) -> None:
        del self._model.forward

    def run(self, inputs: Mapping[str, Any], settings: Settings, *, wanted: int, skip_first: bool = False) -> None:
        """Generate until the model was called `wanted` times."""
        self._count, self._wanted, self._skip_first = 0, wanted, skip_first
        self._tracer.enter("prefill")
        self._tracer.paused = (
            skip_first  # what generate sets up from a long prompt, a real run sets up from a short one
        )
        steps.generate(self._model, dict(inputs), settings)

    def grow_cache(self, tokens: int) -> bool:
        """Make the prefill's cache `tokens` longer; False when it is of a kind that is not known here."""
        cache = getattr(self._cache, "self_attention_cache", self._cache)
        layers = getattr(cache, "layers", None)
        if not layers or any(type(layer).__name__ not in _GROWN for layer in layers):
            return False
        for layer in layers:
            if tokens:
                _GROWN[type(layer).__name__](layer, tokens)
            self._tracer.mark([layer.keys, layer.values], "kv_cache")
        return True

    def forget(self) -> None:
        """Let the prefill's cache go."""
        self._cache = self.encoder_outputs = None

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        self._count += 1
        first = self._count == 1
        if first and self._skip_first:
            batch, vocabulary, dtype = self._logits
            logits = torch.empty((batch, 1, vocabulary), dtype=dtype, device=self._model.device)
            cache, self._cache = self._cache, None
            self._tracer.paused = False
            return self._output(**{"logits": logits, self._cache_name: cache})  # type: ignore[misc]
        self._tracer.enter("prefill" if first else "decode")
        output = self._original(*args, **kwargs)
        if first:
            self._remember(output, kwargs)
        return output

    def _remember(self, output: Any, kwargs: Mapping[str, Any]) -> None:
        self._output = type(output)
        self._logits = (output.logits.shape[0], output.logits.shape[-1], output.logits.dtype)
        for name in ("past_key_values", "cache"):
            if output.get(name) is not None:
                self._cache_name, self._cache = name, output[name]
        self.encoder_outputs = kwargs.get("encoder_outputs")
        ids = kwargs.get("decoder_input_ids", kwargs.get("input_ids"))
        self.prompt = 0 if ids is None else ids.shape[1]


def _grow(layer: Any, tokens: int) -> None:
    batch, heads, length, width = layer.keys.shape
    for name in ("keys", "values"):
        held = getattr(layer, name)
        width = held.shape[-1]
        setattr(layer, name, None)
        grown = held.new_empty((batch, heads, length + tokens, width))
        setattr(layer, name, grown)


def _grow_sliding(layer: Any, tokens: int) -> None:
    """Grow up to the window; a full layer is a view, one shorter than the storage that it keeps alive."""
    window = layer.sliding_window
    length = layer.cumulative_length + tokens
    for name in ("keys", "values"):
        held = getattr(layer, name)
        batch, heads, _, width = held.shape
        grown = held.new_empty((batch, heads, min(length, window), width))
        setattr(layer, name, grown[:, :, -window + 1 :, :])
    layer.cumulative_length = length


_GROWN = {"DynamicLayer": _grow, "DynamicSlidingWindowLayer": _grow_sliding}


@contextmanager
def _followed_rng_state(tracer: Tracer) -> Iterator[None]:
    """Book the copies of the random generator's state that activation checkpointing keeps: no operation makes them."""
    original = torch.get_rng_state

    def get_rng_state() -> torch.Tensor:
        state = original()
        tracer.follow(state)
        return state

    torch.get_rng_state = get_rng_state
    try:
        yield
    finally:
        torch.get_rng_state = original


@contextmanager
def _quiet() -> Iterator[None]:
    """Let transformers take the paths of a real run, and hush what it says about fake values."""
    from transformers.utils import import_utils
    from transformers.utils import logging as its_logging

    verbosity = its_logging.get_verbosity()
    original = getattr(import_utils, "is_fake_tensor", None)
    fake_logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = fake_logger.level
    collects = gc.isenabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            its_logging.set_verbosity(logging.ERROR)
            fake_logger.setLevel(logging.CRITICAL)
            if original is not None:
                setattr(import_utils, "is_fake_tensor", lambda _: False)  # noqa: B010 - transformers 4 has none
            gc.disable()
            yield
        finally:
            if original is not None:
                setattr(import_utils, "is_fake_tensor", original)  # noqa: B010
            its_logging.set_verbosity(verbosity)
            fake_logger.setLevel(level)
            if collects:
                gc.enable()
