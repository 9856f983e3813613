"""What CPU kernels allocate besides their outputs, for the kernels where it can show in a peak.

This module imports torch; import it inside functions.
"""

from functools import cache
from typing import Any

import torch

_aten = torch.ops.aten
_FLASH = _aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_PLAIN_PRODUCTS = frozenset({_aten.mm.default, _aten.bmm.default})
PRODUCTS = _PLAIN_PRODUCTS | {_aten.addmm.default, _aten.baddbmm.default}
_ELEMENTWISE = frozenset(
    getattr(_aten, name).Tensor for name in ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_")
)
_ONEDNN_LEAST = 16 * 16 * 16
"""multiplications below which torch leaves a product to other kernels (mkldnn_gemm_min_size, in mkldnn/Matmul.cpp)"""
_KV_SPLIT = 512
CONVOLUTIONS = frozenset({_aten.convolution.default, _aten.convolution_backward.default})
PRODUCTS_NOT_COUNTED = (
    "scratch of oneDNN's large products is not counted: at most about 1.4 MiB a thread, by the processor"
)
MOST_SCRATCH = 3 * 2**19
"""bytes a thread that oneDNN takes for a product, at most, as far as was seen"""
CONVOLUTIONS_NOT_COUNTED = "scratch of large convolutions is not counted: about as much as their input and weights"


def scratch(func: Any, args: tuple[Any, ...]) -> int:
    """Return the bytes that the kernel of `func` takes and gives back while it runs; 0 where none are known."""
    if func is _FLASH:
        return _flash(args[0], args[1])
    if func is _FLASH_BACKWARD:
        return _flash_backward(args[1], args[2])
    if func in PRODUCTS and is_onednn_product(func, args):
        return sum(0 if _is_plain(value) else value.numel() * value.element_size() for value in _factors(func, args))
    if func in _ELEMENTWISE:
        return _casts(*args[:2])
    if getattr(func, "namespace", "") == "bitsandbytes" and func.name().endswith("8bit_blockwise"):
        return _adamw_8bit(args[2])
    return 0


def is_onednn_product(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether torch hands this product, one of PRODUCTS, to oneDNN.

    Operands that are neither plain nor transposed are then copied first. A weight that is expanded over the batch is
    such a one: its copy is as large as the weight times the batch (mkldnn_matmul in
    aten/src/ATen/native/mkldnn/Matmul.cpp).
    """
    first, second = _factors(func, args)
    return _onednn_computes(first.dtype) and first.numel() * second.shape[-1] > _ONEDNN_LEAST


def _casts(first: Any, second: Any) -> int:
    """Operands that are not of the dtype of the computation are cast as wholes before (TensorIteratorBase)."""
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor) or first.dtype is second.dtype:
        return 0
    common = torch.result_type(first, second)
    return sum(value.numel() * common.itemsize for value in (first, second) if value.dtype is not common and value.ndim)


def _adamw_8bit(parameter: torch.Tensor) -> int:
    """Both states and the gradient in float32, a root and the divisor made of it; the parameter too, if it is lower.

    _optimizer_update_8bit_blockwise_cpu in bitsandbytes' backends/cpu/ops.py; its CUDA kernel takes nothing.
    """
    copies = 5 if parameter.dtype is torch.float32 else 6
    return copies * 4 * parameter.numel()


def _factors(func: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = args[:2] if func in _PLAIN_PRODUCTS else args[1:3]
    return first, second


def _flash(query: torch.Tensor, key: torch.Tensor) -> int:
    """Scores, two rows of sums and an output block a thread in float32, and the scores again in a half dtype.

    cpu_flash_attention in aten/src/ATen/native/cpu/FlashAttentionKernel.cpp; query is (B, heads, S, head_dim).
    """
    rows, columns = _blocks(query, key)
    reduced = 2 * rows * columns if query.element_size() == 2 else 0
    return torch.get_num_threads() * (4 * (rows * columns + 2 * rows + rows * query.shape[-1]) + reduced)


def _flash_backward(query: torch.Tensor, key: torch.Tensor) -> int:
    """Scores and their gradient, a row of sums, and both blocks again in a half dtype (same file)."""
    rows, columns = _blocks(query, key)
    reduced = 2 * 2 * rows * columns if query.element_size() == 2 else 0
    return torch.get_num_threads() * (4 * (2 * rows * columns + rows) + reduced)


@cache
def _onednn_computes(dtype: torch.dtype) -> bool:
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _is_plain(value: torch.Tensor) -> bool:
    *batch, rows, columns = value.shape
    strides = value.stride()
    ordered = strides[-2:] in ((columns, 1), (1, rows))
    return value.is_contiguous() or (ordered and (not batch or strides[0] == rows * columns))


def _blocks(query: torch.Tensor, key: torch.Tensor) -> tuple[int, int]:
    length = query.shape[2]
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    return min(rows, length), min(_KV_SPLIT, key.shape[2])
