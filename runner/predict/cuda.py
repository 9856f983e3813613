"""What CUDA does differently from the CPU, where it shows in bytes, so that a card that is not here can be traced.

The tensors of the trace stay fake CPU tensors. Rules are torch's own: sdp_utils.cpp for attention, autocast_mode.h for
autocast's float32 list. This module imports torch; import it inside functions.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_CAPABILITY = (8, 0)
_FLASH_HEAD_DIM = 256
_IN_FLOAT32 = {
    functional: ("layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss", "mse_loss"),
    torch: ("softmax", "log_softmax", "pow", "rsqrt", "exp", "log", "sum", "cumsum"),
}
"""functions that CUDA's autocast runs in float32 and the CPU's does not; methods of tensors are left as they are"""


@contextmanager
def as_on_cuda(capability: tuple[int, int] | None) -> Iterator[None]:
    """Run attention, dropout and autocast's float32 functions with the kernels that a CUDA card would use.

    Functions are replaced where models look them up, since a function mode is off in the backward pass, where layers
    are recomputed.
    """
    attention = partial(_attention, capability=capability or _FLASH_CAPABILITY)
    with ExitStack() as stack:
        for module, names in _IN_FLOAT32.items():
            for name in names:
                stack.enter_context(_replaced(module, name, _upcasting(getattr(module, name))))
        stack.enter_context(_replaced(functional, "scaled_dot_product_attention", attention))
        stack.enter_context(_replaced(functional, "dropout", partial(_dropout, functional.dropout)))
        yield


@contextmanager
def _replaced(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, original)


def _upcasting(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def upcast(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            args = tuple(_in_float32(value) for value in args)
            kwargs = {name: _in_float32(value) for name, value in kwargs.items()}
        return function(*args, **kwargs)

    return upcast


def _dropout(
    original: Callable[..., Tensor], input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """CUDA keeps a mask of one byte for each value, the CPU one of the value's own dtype."""
    if not training or not 0.0 < p < 1.0 or inplace:
        return original(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    capability: tuple[int, int],
) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    kernel = choose_kernel(query, key, value, masked=attn_mask is not None, capability=capability)
    if kernel == "flash":
        return _aten._scaled_dot_product_flash_attention(  # type: ignore[no-any-return]
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
    bias = _as_bias(attn_mask, query)
    if kernel == "efficient":
        if bias is not None:
            bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        keeps = torch.is_grad_enabled() and query.requires_grad
        return _aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
            query, key, value, bias, keeps, dropout_p, is_causal, scale=scale
        )[0]
    return _aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
        query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def choose_kernel(query: Tensor, key: Tensor, value: Tensor, *, masked: bool, capability: tuple[int, int]) -> str:
    """Return flash, efficient or math, as torch chooses on a card of `capability`; tensors are (B, heads, S, head_dim).

    Flash: half dtypes, no mask, head_dim up to 256, Ampere or later. Efficient: no grouped heads. Else math, whose
    scores are as large as heads x S x S.
    """
    width = query.shape[-1]
    same_width = width == key.shape[-1] == value.shape[-1]
    suits_flash = query.dtype in _HALF and not masked and same_width and width <= _FLASH_HEAD_DIM
    if suits_flash and capability >= _FLASH_CAPABILITY:
        return "flash"
    return "efficient" if query.shape[1] == key.shape[1] else "math"


def _as_bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _in_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALF else value
