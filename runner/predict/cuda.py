"""What CUDA does differently from the CPU, where it shows in bytes, so that a card that is not here can be traced.

The tensors of the trace stay fake CPU tensors. Rules are torch's own: sdp_utils.cpp for attention, autocast_mode.h for
autocast's float32 list. This module imports torch; import it inside functions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_FLASH_CAPABILITY = (8, 0)
_FLASH_HEAD_DIM = 256
_IN_FLOAT32 = frozenset(
    {
        "layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss", "mse_loss", "l1_loss",
        "pow", "rsqrt", "exp", "log", "sum", "prod", "cumsum", "norm", "softplus", "cosine_similarity",
    }
)  # fmt: skip
"""operations that CUDA's autocast runs in float32 and the CPU's does not"""


class AsOnCuda(TorchFunctionMode):
    """Run attention, dropout and autocast's float32 operations with the kernels that a CUDA card would use."""

    def __init__(self, capability: tuple[int, int] | None) -> None:
        super().__init__()
        self._capability = capability or _FLASH_CAPABILITY

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is functional.dropout and _drops(*args, **kwargs):
            probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            return torch.native_dropout(args[0] if args else kwargs["input"], probability, True)[0]
        if torch.is_autocast_enabled("cpu") and getattr(func, "__name__", "") in _IN_FLOAT32:
            args = tuple(_in_float32(value) for value in args)
            kwargs = {name: _in_float32(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        kernel = choose_kernel(query, key, value, masked=attn_mask is not None, capability=self._capability)
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


def _drops(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    return training and 0.0 < p < 1.0 and not inplace


def _in_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALF else value
