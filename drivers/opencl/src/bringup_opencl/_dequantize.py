"""`bringup::dequantize` on the device, of `kernels.dequantize`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from bringup import kernels, ops
from bringup.errors import KernelError

__all__ = ["register"]

_FORMATS = ("plain", "float8_e4m3fn", "float8_e5m2", "int4", "float4_e2m1fn")  # KIND of the source
_LYING = "ptr({0}), " + ", ".join(f"stride({{0}}, {d}) * (size({{0}}, {d}) > 1)" for d in range(3))

_WHOLE = 12582912.0  # 1.5 * 2^23, whose last bit counts 1


@cache
def _operator(kind: int) -> ops.KernelOperator:
    return ops.kernel_op(
        f"bringup_opencl::dequantize_{_FORMATS[kind]}(Tensor x, Tensor scale, Tensor offset, "
        "int block_rows, int block_columns, int packed) -> Tensor",
        source=Path(__file__).parent / "kernels" / "dequantize.cl",
        entry="dequantize",
        args=f"ptr(x), {_LYING.format('scale')}, {_LYING.format('offset')}, ptr(out), size(x, 1), "
        "size(x, 2) * packed, block_rows, block_columns, numel(out)",
        kind="device",
        work_items="numel(x) * packed",
        outputs=ops.empty("x.shape[0]", "x.shape[1]", "x.shape[2] * packed", dtype=torch.float32),
        checks=ops.kernel_checks(),
        dtypes={"T": "x"},
        macros={"KIND": kind},
        strided=("scale", "offset"),
    )


def _whole(given: Tensor | None, x: Tensor, block: list[int], packed: int, none: float) -> Tensor:
    """Return scales or offsets as float32. Raises `KernelError` for sizes not of the blocks."""
    if given is None:
        return torch.full((1, 1, 1), none, device=x.device)
    if given.dtype is torch.uint8:  # the exponents of powers of two
        given = torch.where(given == 255, torch.nan, torch.exp2(given.float() - 127))
    blocks = (x.shape[0], -(-x.shape[1] // block[0]), -(-x.shape[2] * packed // block[1]))
    pairs = zip(given.shape, blocks, (1, *block), strict=True)
    if any(n not in {1, b, b + b % 2 if size == 32 else b} for n, b, size in pairs):
        raise KernelError("scale and offset must have one element, or one for each block")
    return given.float()


def _dequantize(
    x: Tensor,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    block: tuple[int, ...] = (1, 1),
    packed: int = 1,
    format: str = "plain",  # noqa: A002 - as the schema calls it
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    sizes = list(block)
    whole = [_whole(given, x, sizes, packed, none) for given, none in ((scale, 1.0), (offset, 0.0))]
    if x.numel() == 0:
        return torch.empty((*x.shape[:2], x.shape[2] * packed), dtype=out_dtype, device=x.device)
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    result = _operator(_FORMATS.index(format))(x.contiguous(), *whole, *sizes, packed)
    if out_dtype is torch.int8:
        bounded = torch.where(result == result, result, 0.0).clamp(-128, 127)
        result = bounded + _WHOLE - _WHOLE  # the nearest whole number, ties to even
    return result.to(out_dtype)


@cache
def register() -> None:
    """Register it; where the processor is asked the operator stays what it is."""
    ops.register_kernel(f"bringup::{kernels.dequantize.__name__}", "npu", _dequantize)
