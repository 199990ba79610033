"""Linear layers over weights that lie as MKL, the one inside torch, packs them: `mkl_linear` and
`pack_weight_mkl`. torch's own form has no storage for a graph to keep; here it is bytes.

What MKL packs depends on its address, which is kept beside it: a product over a copy is refused.
Whatever leaves the process needs panels.
"""

from __future__ import annotations

import ctypes
import functools
import inspect

import torch

from bringup import ops
from bringup.kernels._sources import UNROLLED, kernel_source

# Of mkl_cblas.h.
_ROW_MAJOR, _TRANSPOSED, _RIGHT_MATRIX = 101, 112, 162
_MOST = 2**31 - 1
_ORIGIN = 4 * 8  # bytes behind the packed weight: address, rows, columns, depth as int64

mkl_linear = ops.kernel_op(
    "bringup::mkl_linear(Tensor x, Tensor packed, Tensor? bias, int columns, "
    "str activation='none') -> Tensor", source=kernel_source("mkl_linear", "host"), flags=UNROLLED,
    outputs=ops.empty("x.shape[0]", "columns", dtype="x"),
    checks=(
        ops.dtype("x", torch.float32), ops.dtype("packed", torch.uint8),
        ops.same_dtype("x", "bias"), ops.shape("x", "x.shape[0]", "x.shape[1]"),
        ops.shape("packed", "packed.shape[0]"), ops.shape("bias", "columns"),
    ),
)  # fmt: skip
mkl_linear.__doc__ = f"{mkl_linear.schema}\n\n" + inspect.cleandoc(
    """activation(x times a frozen weight as MKL packs it, plus bias). The product has the bits that
    MKL gives it, which may differ with the number of rows and of threads.

    Args:
        x: [m, k], float32, contiguous.
        packed: uint8, as `pack_weight_mkl` makes it for this number of rows.
        bias: [columns], float32, or None.
        columns: n of the weight.
        activation: "none", "relu", "gelu" (the exact one), "gelu_tanh" or "silu".

    Returns:
        [m, columns].

    Raises:
        ContractError: dtypes or shapes do not fit.
        KernelError: the weight was packed for other sizes or has moved since, another activation,
            or a build of torch without MKL.
    """
)


class _Mkl:
    """The functions of MKL that pack a weight."""

    def __init__(self) -> None:
        library = ctypes.CDLL("libtorch_cpu.so", mode=ctypes.RTLD_LOCAL)  # loaded by torch
        number, address = ctypes.c_int, ctypes.c_void_p
        self.size = library.cblas_sgemm_pack_get_size
        self.size.restype = ctypes.c_size_t
        self.size.argtypes = [number] * 4
        self.pack = library.cblas_sgemm_pack
        self.pack.restype = None
        self.pack.argtypes = [*[number] * 6, ctypes.c_float, address, number, address]
        library.cblas_sgemm_compute  # noqa: B018  (AttributeError where it is not exported)


@functools.cache
def _mkl() -> _Mkl | None:
    if not torch.backends.mkl.is_available():
        return None
    try:
        return _Mkl()
    except (OSError, AttributeError):
        return None


def has_mkl() -> bool:
    """Return whether this build of torch has an MKL that packs weights."""
    return _mkl() is not None


def _bytes(weight: torch.Tensor, rows: int) -> int:
    if weight.dim() != 2 or weight.dtype != torch.float32:
        raise ValueError(
            "pack_weight_mkl: expected a float32 weight [n, k], got "
            f"{str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}"
        )
    if not all(0 < size <= _MOST for size in (rows, *weight.shape)):
        raise ValueError(
            f"pack_weight_mkl: expected sizes from 1 to {_MOST}, got {rows} rows over a weight "
            f"{list(weight.shape)}"
        )
    mkl = _mkl()
    if mkl is None:
        raise ValueError("pack_weight_mkl: this build of torch has no MKL that packs weights")
    columns, depth = weight.shape
    return -(-int(mkl.size(_RIGHT_MATRIX, rows, columns, depth)) // 8) * 8 + _ORIGIN


@ops.custom_op("bringup::pack_weight_mkl")
def pack_weight_mkl(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a linear layer's weight [n, k] for `mkl_linear` on this machine alone.

    Args:
        weight: [n, k], float32, any strides; n and k at least 1.
        rows: of the x that it will be multiplied with; at least 1.

    Returns:
        uint8, as many as MKL asks for, about 8 MB more than the weight has, of which MKL writes (so
        that it becomes resident) what it needs. Good where it lies: a copy is refused.

    Raises:
        ValueError: another dtype, no matrix, a size of 0, or a build of torch without MKL.
    """
    packed = weight.new_empty(_bytes(weight, rows), dtype=torch.uint8)
    mkl = _mkl()
    assert mkl is not None, "there was a size"
    columns, depth = weight.shape
    # Row by row [n, k] is the transposed [k, n] that the product takes.
    rowwise = weight.contiguous()
    mkl.pack(
        *(_ROW_MAJOR, _RIGHT_MATRIX, _TRANSPOSED),
        *(rows, columns, depth, 1.0),
        *(rowwise.data_ptr(), depth, packed.data_ptr()),
    )
    origin = torch.tensor([packed.data_ptr(), rows, columns, depth])
    packed[-_ORIGIN:].view(torch.int64).copy_(origin)
    return packed


@pack_weight_mkl.register_fake
def _(weight: torch.Tensor, rows: int) -> torch.Tensor:
    return weight.new_empty(_bytes(weight, rows), dtype=torch.uint8)
