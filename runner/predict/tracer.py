"""Follow every storage that the real workload allocates, while it runs on fake tensors.

This module imports torch; import it inside functions.
"""

import linecache
import math
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from runner.predict.ledger import Ledger
from runner.predict.probe import Call, call_of
from runner.predict.scratch import (
    CONVOLUTIONS,
    CONVOLUTIONS_NOT_COUNTED,
    PRODUCTS,
    PRODUCTS_NOT_COUNTED,
    is_onednn_product,
    scratch,
)

_aten = torch.ops.aten
_ADD = _aten.add.Tensor
_VIEW = _aten.view.default
_ITEM = _aten._local_scalar_dense.default
_GROUPED: Any = _aten._grouped_mm.default if hasattr(_aten, "_grouped_mm") else None


_INTO_ZEROS: dict[Any, Any] = {
    _aten.index_put.default: _aten.index_put_.default,
    _aten.scatter.src: _aten.scatter_.src,
}
"""What gradients of a selection do with their zeros: out of place where a tensor is a subclass, which a mode makes them
look like, in place in a real run (index_backward in torch/csrc/autograd/FunctionsManual.cpp)."""


class ValueRead(Exception):
    """The workload asked for the value of a tensor, which a trace cannot know."""


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Books the life of every untyped storage that operations make.

    Enter it inside a fake-tensor mode. The order of events is that of the real run, so the largest sum of live
    bytes is the real one, as long as each operation allocates nothing but its outputs.
    """

    def __init__(self, ledger: Ledger, *, on_cpu: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self.on_cpu = on_cpu
        self.paused = False
        """whether new storages are left out of the book, for all of their life"""
        self.finished: Callable[[], bool] = lambda: True
        """whether generate's loop may end: the answer to its only question about values"""
        self.measurable: dict[Call, tuple[list[int], int]] = {}
        """calls whose scratch can be measured → their places in the ledger, and most bytes that were live at one"""
        self._numbers: dict[int, int] = {}
        """address of a live storage → its number in the ledger"""
        self._watches: dict[int, Any] = {}
        self.unmeasured: set[str] = set()
        """what is to be said about scratch that is neither known nor measurable"""
        self._ignored: set[int] = set()
        self._born_forward: set[int] = set()
        self._previous: Any = None
        """the last operation"""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps the method below, and its caller is no longer the frame above

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward != (self.ledger.phase == "backward"):
            self._turn(in_backward)
        if func is _ADD and in_backward and not kwargs and _from_engine(sys._getframe(1)):
            merged = _accumulate(args[0], args[1])
            if merged is not None:
                return merged
        if func is _ITEM:
            return self._read(func, args, kwargs)
        self._previous = self.ledger.operation = func
        run = _grouped_product if func is _GROUPED else func
        if in_backward and func in _INTO_ZEROS and _from_engine(sys._getframe(1)):
            run = _INTO_ZEROS[func]
        result = run(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            if func is _VIEW:
                result = _with_usual_strides(result)
            self.follow(result, sys._getframe(1))
        elif isinstance(result, (tuple, list)):
            caller = sys._getframe(1)
            for value in result:
                if isinstance(value, torch.Tensor):
                    self.follow(value, caller)
        if self.on_cpu:
            self._book_scratch(func, args)
        return result

    def _book_scratch(self, func: Any, args: tuple[Any, ...]) -> None:
        """Book what the kernel takes and gives back: by formula, and where it can be measured, to be filled in."""
        known, live = scratch(func, args), self.ledger.total
        call = call_of(func, args)
        if call is None:
            if func in CONVOLUTIONS:
                self.unmeasured.add(CONVOLUTIONS_NOT_COUNTED)
            elif func in PRODUCTS and is_onednn_product(func, args):
                self.unmeasured.add(PRODUCTS_NOT_COUNTED)
            if known:
                self.ledger.passing(known)
            return
        place = self.ledger.passing(known)
        calls, highest = self.measurable.setdefault(call, ([], 0))
        calls.append(place)
        self.measurable[call] = (calls, max(highest, live))

    def follow(self, tensor: torch.Tensor, caller: Any = None) -> int:
        """Book the storage of `tensor` if it is new or has another size, and return its number."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._numbers.get(address)
        if number is not None:
            if number not in self._ignored and self.ledger.size(number) < storage.nbytes():
                self.ledger.resized(number, storage.nbytes())
            return number
        label = "workspace" if caller is None else _label_of(_asking(caller).f_code)
        number = self.ledger.born(0 if self.paused else storage.nbytes(), label)
        if self.paused:
            self._ignored.add(number)
        self._numbers[address] = number
        self._watches[number] = weakref.ref(storage, lambda _: self._died(address, number))
        if self.ledger.phase == "forward":
            self._born_forward.add(number)
        return number

    def mark(self, tensors: Iterable[torch.Tensor], label: str) -> None:
        """Book the storages of `tensors` under `label`."""
        for tensor in tensors:
            number = self.follow(tensor)
            self.ledger.relabel(number, label)
            self._born_forward.discard(number)

    def enter(self, phase: str) -> None:
        """Begin a phase; the backward pass begins and ends by itself."""
        self.ledger.phase = phase
        self._born_forward.clear()

    def _turn(self, to_backward: bool) -> None:
        """Begin the backward pass: what the forward pass left alive is kept for it. Or end it."""
        if to_backward:
            for number in self._born_forward:
                if self.ledger.label(number) == "workspace":
                    self.ledger.relabel(number, "activations")
            self.ledger.module = ""
        self.enter("backward" if to_backward else "optimizer_step")

    def _died(self, address: int, number: int) -> None:
        self.ledger.died(number)
        del self._numbers[address], self._watches[number]
        self._born_forward.discard(number)
        self._ignored.discard(number)

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Answer for the value of a tensor where every real run gives the same answer.

        Raises ValueRead elsewhere: what a real run would do is then not known.
        """
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            pass
        frame = _asking(sys._getframe(2))
        answer = _known_answer(frame, asked_for_all=self._previous in _ALL, finished=self.finished)
        if answer is None:
            where = frame.f_code
            raise ValueRead(f"{where.co_name} in {where.co_filename.rsplit('/', 1)[-1]} reads the value of a tensor")
        return answer


_PASSED_ON = ("torch/_tensor.py", "runner/predict/cuda.py")


def _asking(frame: Any) -> Any:
    """Return the frame of the code that wants an operation, past those that only pass it on."""
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_PASSED_ON):
        frame = frame.f_back
    return frame


_ALL = frozenset({_aten.all.default, _aten.all.dim})


def _known_answer(frame: Any, *, asked_for_all: bool, finished: Callable[[], bool]) -> bool | float | None:
    """Return what the code in `frame` gets in every run that these workloads make; None when it depends.

    Attention masks are all ones and no token is special: `all` is true there and `any` is false.
    """
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    if file.endswith(("masking_utils.py", "modeling_attn_mask_utils.py")):
        return True
    if "/transformers/generation/" in file:
        if name in ("_has_unfinished_sequences", "__call__", "_sample"):
            return finished()
        return asked_for_all and name != "_prepare_decoder_input_ids_for_generation"
    if name == "warn_if_padding_and_no_attention_mask":
        return False
    if "/transformers/models/" in file:
        asked = linecache.getline(file, frame.f_lineno) + linecache.getline(file, frame.f_lineno + 1)
        if any(f"{question}(" in asked for question in ("isfinite", "isinf", "isnan")):
            return "isfinite(" in asked  # the values that half precision is clamped for are not there
    if "dropout_probability" in frame.f_locals and getattr(frame.f_locals.get("self"), "layerdrop", 1.0) == 0.0:
        return False
    if file.endswith("amp/grad_scaler.py"):
        return 0.0  # no gradient overflows, so the step is taken
    if "/torch/optim/" in file:
        return 1.0  # a step's number or a norm: it scales, it allocates nothing
    return None


def _with_usual_strides(view: torch.Tensor) -> torch.Tensor:
    """Give dimensions of size 1 the stride that they have in a real contiguous view.

    Fake tensors keep others there, and matmul decides by them whether it folds a batch (should_fold in
    aten/src/ATen/native/LinearAlgebra.cpp): unfolded, a decode step would copy each weight for oneDNN.
    """
    if 1 not in view.shape or not view.is_contiguous():
        return view
    strides = [math.prod(view.shape[index + 1 :]) for index in range(view.dim())]
    return view if list(view.stride()) == strides else view.as_strided(view.shape, strides, view.storage_offset())


def _grouped_product(first: torch.Tensor, second: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Mixture-of-experts product: its fake kernel takes bfloat16 only, the CPU's own takes every dtype."""
    if first.dtype is torch.bfloat16:
        return _GROUPED(first, second, *args, **kwargs)  # type: ignore[no-any-return]
    like = _GROUPED(first.to(torch.bfloat16), second.to(torch.bfloat16), *args, **kwargs)
    return torch.empty_strided(like.shape, like.stride(), dtype=first.dtype, device=first.device)


def _from_engine(frame: Any) -> bool:
    """Whether an operation in the backward pass comes from the engine, not from Python code that it calls."""
    return bool(frame.f_code.co_name == "_engine_run_backward")


def _accumulate(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    """Add two gradients as the engine does when no dispatch mode is on: into the one that nobody else holds.

    A mode makes every tensor look like a subclass, which turns that off (can_accumulate_inplace in torch's
    csrc/autograd/input_buffer.cpp). None when both are held elsewhere: then the sum is a new tensor.
    """
    if not isinstance(second, torch.Tensor) or first.shape != second.shape or first.dtype != second.dtype:
        return None
    return first.add_(second) if _counts(first) == count_free_gradients() and _is_dense(first) else None


def _counts(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]


def _is_dense(tensor: torch.Tensor) -> bool:
    return torch._prims_common.is_non_overlapping_and_dense_or_false(tensor)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the reference counts of two gradients that only the engine holds."""

    seen: tuple[int, int] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ADD and _from_engine(sys._getframe(1)):
            self.seen = _counts(args[0])
        return func(*args, **(kwargs or {}))


@cache
def count_free_gradients() -> tuple[int, int]:
    """Return the reference counts (tensor, storage) of a gradient that nobody but the engine holds.

    They depend on how torch wraps a tensor for Python, so they are found by a sum whose gradients are known to be free.
    Call it once before a mode is on.
    """
    counter = _Counter()  # type: ignore[no-untyped-call]
    with FakeTensorMode(), torch.enable_grad():
        leaf = torch.empty(2, 2, requires_grad=True)
        middle = leaf * 2
        with counter:
            torch.autograd.backward((middle * 3).exp() + (middle * 4).exp(), torch.empty(2, 2))
    if counter.seen is None:
        raise ValueRead("this torch adds gradients in a way that is not known here")
    return counter.seen


@cache
def _label_of(code: CodeType) -> str:
    """Return what the Python function makes that called the operation."""
    if code.co_filename.endswith("cache_utils.py"):
        return "kv_cache"
    if code.co_name in ("_init_group", "init_state", "get_state_buffer") and "/optim/" in code.co_filename:
        return "optimizer_state"
    return "workspace"


class Names:
    """Keeps the ledger's module path while a model runs."""

    def __init__(self, model: nn.Module, ledger: Ledger) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._ledger = ledger
        self._hooks = ExitStack()

    def __enter__(self) -> "Names":
        before = nn.modules.module.register_module_forward_pre_hook(self._before)
        self._hooks.callback(before.remove)
        after = nn.modules.module.register_module_forward_hook(self._after, always_call=True)
        self._hooks.callback(after.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _before(self, module: nn.Module, _: Any) -> None:
        self._stack.append(self._ledger.module)
        self._ledger.module = self._names.get(id(module), self._ledger.module)

    def _after(self, module: nn.Module, _: Any, __: Any) -> None:
        if self._stack:
            self._ledger.module = self._stack.pop()
