"""What docs/numerics.md promises to the bit, of every shipped kernel: rows alone and in a batch, on
one thread and several, however the operands lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.unit.kernels.matmul_support import lay_out

from bringup import kernels

pytestmark = pytest.mark.bits

Tensor = torch.Tensor
Call = Callable[..., Any]
WIDE = (torch.float32, torch.float64)
FLOATS = (*WIDE, torch.bfloat16, torch.float16)
WIDTH, DEPTH, ROWS = 45, 300, 29  # no multiples of vectors, tiles or blocks


class Kernel(NamedTuple):
    """How a kernel is called with rows.

    Attributes:
        call: gets the operands that have rows, then `others`.
        rows: the shapes of those operands; the first size is the number of rows.
        others: shapes of the others.
        dtypes: of all of them.
        layouts: in which each of them may lie without another result.
    """

    call: Call
    rows: tuple[tuple[int, ...], ...]
    others: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[torch.dtype, ...] = FLOATS
    layouts: tuple[str, ...] = ("row", "padded", "offset", "column", "strided")


def _attention(causal: bool, window: int) -> Call:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = [q.shape[-2]] * len(q), [k.shape[-2] - 7] * len(q)
        return kernels.attention(q, k, v, rows, 0.3, causal, window, keys)

    return call


def _packed(activation: str, dtype: torch.dtype | None = None) -> Call:
    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return kernels.packed_linear(x, kernels.pack_weight(weight, dtype), bias, 3, activation)

    return call


def _int8(operator: Call) -> Call:
    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return operator(x, *kernels.pack_weight_int8(weight), bias, 3, "silu")

    return call


def _heads(rows: int) -> tuple[tuple[int, ...], ...]:
    return ((3, 4, rows, 21), (3, 2, 150, 21), (3, 2, 150, 37))


_DENSE_ROWS = ("row", "padded", "offset")
_ROW, _FEATURES = (ROWS, WIDTH), (WIDTH,)
# One loop for all of them; each layout and dtype of it is a kernel.
_TWO = (torch.float32, torch.bfloat16)
_LIKE_BASIC_MATMUL = {"dtypes": _TWO, "layouts": _DENSE_ROWS}
_PRODUCT = {"rows": ((ROWS, DEPTH),), "others": ((DEPTH, WIDTH),)}
_LINEAR = {"rows": ((ROWS, DEPTH),), "others": ((WIDTH, DEPTH), _FEATURES)}

KERNELS = {
    "rms_norm": Kernel(kernels.rms_norm, (_ROW,), (_FEATURES,)),
    "add_rms_norm": Kernel(kernels.add_rms_norm, (_ROW, _ROW), (_FEATURES,)),
    "add_layer_norm": Kernel(
        lambda x, y, w, b: kernels.add_layer_norm(x, y, w, b, 1e-5),
        (_ROW, _ROW),
        (_FEATURES, _FEATURES),
    ),
    "add_layer_norm_sum": Kernel(
        lambda x, y, w, b: kernels.add_layer_norm_sum(x, y, w, b, 1e-5),
        (_ROW, _ROW),
        (_FEATURES, _FEATURES),
    ),
    "bias_gelu": Kernel(kernels.bias_gelu, (_ROW,), (_FEATURES,)),
    "silu_mul": Kernel(kernels.silu_mul, (_ROW, _ROW), layouts=_DENSE_ROWS),
    "rotary": Kernel(
        kernels.rotary, ((3, 2, 5, 46),), ((1, 1, 5, 46), (1, 1, 5, 46)), layouts=_DENSE_ROWS
    ),
    "mean_pool": Kernel(
        lambda x: kernels.mean_pool(x, [6] * len(x), True),
        ((5, 8, WIDTH),),
        dtypes=WIDE,
    ),
    "attention": Kernel(_attention(False, 0), _heads(60)),
    "attention, causal": Kernel(_attention(True, 9), _heads(60)),
    "attention, a few rows": Kernel(_attention(False, 0), _heads(1)),
    "packed_linear": Kernel(_packed("none"), **_LINEAR, dtypes=WIDE),
    "packed_linear, gelu": Kernel(_packed("gelu"), **_LINEAR, dtypes=WIDE),
    "packed_linear, silu": Kernel(_packed("silu"), **_LINEAR, dtypes=WIDE),
    "packed_linear, bfloat16": Kernel(
        _packed("gelu_tanh", torch.bfloat16), **_LINEAR, dtypes=WIDE[:1]
    ),
    "packed_linear_int8": Kernel(_int8(kernels.packed_linear_int8), **_LINEAR, dtypes=WIDE[:1]),
    "packed_linear_w8a8": Kernel(_int8(kernels.packed_linear_w8a8), **_LINEAR, dtypes=WIDE[:1]),
    "basic_matmul": Kernel(kernels.basic_matmul, **_PRODUCT, dtypes=_TWO),
    "batched_matmul": Kernel(
        kernels.batched_matmul, ((3, 7, DEPTH), (3, DEPTH, WIDTH)), **_LIKE_BASIC_MATMUL
    ),
    "matmul_bias_activation": Kernel(
        lambda a, b, c: kernels.matmul_bias_activation(a, b, c, "gelu"),
        _PRODUCT["rows"],
        (*_PRODUCT["others"], _FEATURES),
        **_LIKE_BASIC_MATMUL,
    ),
    "gemm": Kernel(
        lambda a, c, b: kernels.gemm(a, b, c, 0.7, 0.3),
        ((ROWS, DEPTH), _ROW),
        _PRODUCT["others"],
        **_LIKE_BASIC_MATMUL,
    ),
    # A dot product where rows are dense, and rows in lanes where columns are: two orders of sums.
    "gemv": Kernel(
        lambda a, y, x: kernels.gemv(a, x, y, 0.7, 0.3),
        ((ROWS, DEPTH), (ROWS,)),
        ((DEPTH,),),
        layouts=_DENSE_ROWS,
    ),
}
CASES = [(name, dtype) for name, kernel in KERNELS.items() for dtype in kernel.dtypes]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def _operands(kernel: Kernel, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(3)
    return tuple(  # type: ignore[return-value]
        [torch.randn(shape).to(dtype) for shape in shapes]
        for shapes in (kernel.rows, kernel.others)
    )


def _results(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _assert_same(ours: Any, expected: Any) -> None:
    for one, other in zip(_results(ours), _results(expected), strict=True):
        assert torch.equal(one, other), float((one.double() - other.double()).abs().max())


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_rows_and_threads_change_no_bit(name: str, dtype: torch.dtype) -> None:
    kernel = KERNELS[name]
    rows, others = _operands(kernel, dtype)
    together = kernel.call(*rows, *others)
    torch.set_num_threads(1)
    _assert_same(kernel.call(*rows, *others), together)
    for i in range(0, len(rows[0]), 4):
        alone = kernel.call(*(x[i : i + 1] for x in rows), *others)
        _assert_same(alone, tuple(x[i : i + 1] for x in _results(together)))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_layouts_change_no_bit(name: str, dtype: torch.dtype) -> None:
    kernel = KERNELS[name]
    rows, others = _operands(kernel, dtype)
    expected = kernel.call(*rows, *others)
    for layout in kernel.layouts:
        laid_out = [lay_out(x, layout) if x.dim() > 1 else x for x in (*rows, *others)]
        _assert_same(kernel.call(*laid_out), expected)
