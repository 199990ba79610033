"""The table of docs/numerics.md: a test for each of its cells, over dtypes and sizes.

A path takes all cases at once, so that one compile or one capture serves them. Bounds follow from
the arithmetic: u is half the distance of two numbers next to 1, and a sum of k products in any
order is within k * u / (1 - k * u) of the exact one, against the sum of their magnitudes (Higham:
Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch

from bringup import compiler, devices, graphs, jit, kernels, ops

Tensor = torch.Tensor
Tensors = list[Tensor]
Function = Callable[[Tensor], Tensor]

pytestmark = pytest.mark.bits

OUT = 48
SHAPES = ((1, 1), (7, 33), (64, 256), (300, 129))  # the last is enough for several threads
WIDE = (torch.float32, torch.float64)
FLOATS = (*WIDE, torch.bfloat16, torch.float16)
TEXT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const T, 2> a(args[0]), b(args[1]);
  const bringup::View<T, 2> out(args[2]);
  for (int64_t i = 0; i < out.size(0); ++i)
    for (int64_t j = 0; j < out.size(1); ++j) {
      const T product = a(i, j) * b(i, j);
      out(i, j) = product + a(i, j);
    }
  return 0;
}
"""


def _madd(name: str, *flags: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"numerics::{name}(Tensor a, Tensor b) -> Tensor",
        source=jit.Source(text=TEXT, name="madd.cpp"),
        outputs=ops.empty_like("a"),
        checks=(ops.same_shape("a", "b"), ops.same_dtype("a", "b")),
        dtypes={"T": "a"},
        flags=flags,
        kind="device",
    )


madd, fused_madd = _madd("madd"), _madd("fused_madd", "-ffp-contract=fast")


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    threads = torch.get_num_threads()
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def sum_error(count: int, dtype: torch.dtype) -> float:
    """Of `count` products that are added up, against the sum of their magnitudes."""
    error = count * unit(torch.float64 if dtype is torch.float64 else torch.float32)
    return error / (1 - error)


@functools.cache
def weight(width: int, dtype: torch.dtype) -> Tensor:
    return _random((OUT, width), dtype)


@functools.cache
def scale(width: int, dtype: torch.dtype) -> Tensor:
    return _random((width,), dtype)


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return (values / 4).to(dtype)


def _other(x: Tensor) -> Tensor:
    return x.flip(-1).contiguous()


def _exact(x: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(y, dtype=torch.float64)


def _eager_madd(x: Tensor) -> Tensor:
    return x * _other(x) + x


def _slow(x: Tensor) -> Tensor:
    return torch.func.functionalize(lambda a: torch.ops.numerics.madd(a, _other(a)))(x)


def _norm(x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], scale(x.shape[-1], x.dtype), 1e-6)


def _norm_bound(x: Tensor, y: Tensor) -> Tensor:
    """Two results, each with a sum of squares and six roundings: mean, eps, root, quotient and two
    products. What is under the root counts half.
    """
    return 2 * (sum_error(x.shape[-1], x.dtype) / 2 + 5 * unit(x.dtype)) * y.double().abs()


def _linear(x: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weight(x.shape[-1], x.dtype))


def _product_bound(x: Tensor, y: Tensor) -> Tensor:
    """Two results, each with a sum, which is rounded once more where the dtype is narrow."""
    k, narrow = x.shape[-1], x.dtype not in WIDE
    magnitudes = x.double().abs() @ weight(k, x.dtype).double().abs().t()
    error = sum_error(k, x.dtype) * magnitudes
    rounding = unit(x.dtype) * (y.double().abs() + error) if narrow else 0.0
    return 2 * (error + rounding)


def _keys(x: Tensor) -> Tensor:
    """[n, 1, OUT, width]: keys and values that every row attends to."""
    return weight(x.shape[-1], x.dtype).expand(x.shape[0], 1, -1, -1)


def _attention(x: Tensor) -> Tensor:
    keys, count = _keys(x), len(x)
    rows = x[:, None, None]
    result = kernels.attention(rows, keys, keys, [1] * count, 0.5, False, 0, [OUT] * count)
    return result[:, 0, 0]  # type: ignore[no-any-return]


def _eager_attention(x: Tensor) -> Tensor:
    keys, attend = _keys(x), torch.nn.functional.scaled_dot_product_attention
    return attend(x[:, None, None], keys, keys, scale=0.5)[:, 0, 0]


def _attention_bound(x: Tensor, y: Tensor) -> Tensor:
    """Two results: errors of scores move weights, weights and sums of keys round, and torch rounds
    the weights of a narrow dtype too.
    """
    w, depth = weight(x.shape[-1], x.dtype).double(), x.shape[-1]
    scores = 0.5 * x.double() @ w.t()
    largest = 0.5 * x.double().norm(dim=-1).amax() * w.norm(dim=-1).amax()
    error = (2 * (depth + 4) * largest + 2 * OUT + 40) * sum_error(1, x.dtype)
    narrow = 0.0 if x.dtype in WIDE else 2 * unit(x.dtype)
    return 2 * (error + narrow) * (scores.softmax(-1) @ w.abs())


def _chain(x: Tensor) -> Tensor:
    return torch.relu(_eager_madd(x)).tanh()


def _chain_bound(x: Tensor, y: Tensor) -> Tensor:
    """Roundings that generated code leaves out (the product, the sum), which relu and tanh do not
    enlarge, and a last digit of each of two tanh.
    """
    product = x.double() * _other(x).double()
    left_out = product.abs() + (product + x.double()).abs()
    return unit(x.dtype) * (left_out + 4 * y.double().abs())


def _replayed() -> Callable[[Tensors], Tensors]:
    @functools.cache
    def captured() -> tuple[graphs.CapturedGraph, Tensors, Tensors]:
        held = [torch.zeros_like(x) for x in PATHS["captured replay"].given]
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            results = [_chain(x) for x in held]
        return graph, held, results

    def run(given: Tensors) -> Tensors:
        graph, held, results = captured()
        for x, y in zip(held, given, strict=True):
            x.copy_(y)
        graph.replay()
        return [y.clone() for y in results]

    return run


def _compiled(function: Function, **options: Any) -> Callable[[Tensors], Tensors]:
    return torch.compile(  # type: ignore[no-any-return]
        lambda given: [function(x) for x in given],
        backend="bringup",
        dynamic=False,
        options=options,
    )


def _each(function: Function) -> Callable[[], Callable[[Tensors], Tensors]]:
    return lambda: lambda given: [function(x) for x in given]


def _on_npu(function: Function) -> Callable[[], Callable[[Tensors], Tensors]]:
    return _each(lambda x: function(x.to("npu")).cpu())


def _with_weight(product: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda x: product(x, weight(x.shape[-1], x.dtype).to(x.device))


@dataclass(frozen=True)
class Path:
    """One row of the table.

    Attributes:
        make: gives the path, over [n, width] tensors.
        eager: what torch computes, over one of them.
        bound: how far the two may lie apart, element by element; by default not at all.
        dtypes: of the tensors.
        shapes: of the tensors.
        is_product_of_torch: whether torch's own product runs, whose last bits depend on the batch,
            on the number of threads and on how memory lies.
    """

    make: Callable[[], Callable[[Tensors], Tensors]]
    eager: Function
    bound: Callable[[Tensor, Tensor], Tensor] = _exact
    dtypes: tuple[torch.dtype, ...] = FLOATS
    shapes: tuple[tuple[int, int], ...] = SHAPES
    is_product_of_torch: bool = False

    @functools.cached_property
    def given(self) -> Tensors:
        """Every case: a batch, and behind it one of its rows alone."""
        batches = [_random(shape, dtype) for dtype in self.dtypes for shape in self.shapes]
        return [x for batch in batches for x in (batch, one_row(batch).clone())]

    @functools.cached_property
    def run(self) -> Callable[[Tensors], Tensors]:
        return self.make()

    @functools.cached_property
    def results(self) -> Tensors:
        return self.run(self.given)

    def bounds(self, given: Tensors, results: Tensors) -> Tensors:
        """How far results over `given` may lie from eager."""
        return [self.bound(x, y) for x, y in zip(given, results, strict=True)]

    def bounds_between_runs(self, given: Tensors, results: Tensors) -> Tensors:
        """How far they may lie from those of another batch or number of threads."""
        return self.bounds(given, results) if self.is_product_of_torch else no_bounds(results)


def one_row(batch: Tensor) -> Tensor:
    middle = len(batch) // 2
    return batch[middle : middle + 1]


def _basic(a: Tensor, w: Tensor) -> Tensor:
    return kernels.basic_matmul(a, w.t())


PATHS = {
    "fast call": Path(_each(lambda x: madd(x, _other(x))), _eager_madd),
    "slow call": Path(_each(_slow), _eager_madd),
    "fused kernel": Path(
        _each(lambda x: kernels.rms_norm(x, scale(x.shape[-1], x.dtype))),
        _norm,
        _norm_bound,
        FLOATS,
    ),
    "packed linear": Path(
        _each(_with_weight(lambda x, w: kernels.packed_linear(x, kernels.pack_weight(w)))),
        _linear,
        _product_bound,
        WIDE,
    ),
    "attention": Path(_each(_attention), _eager_attention, _attention_bound),
    "gemm family": Path(_each(_with_weight(_basic)), _linear, _product_bound),
    "captured replay": Path(_replayed, _chain),
    "compiled, eager inside": Path(lambda: _compiled(_chain), _chain, shapes=SHAPES[1::2]),
    "compiled, Inductor inside": Path(
        lambda: _compiled(_chain, inner="inductor"), _chain, _chain_bound, shapes=SHAPES[1:2]
    ),
    "device fallback": Path(_on_npu(_chain), _chain),
    "device fallback, product": Path(
        _on_npu(_with_weight(lambda x, w: x @ w.t())),
        _linear,
        _product_bound,
        is_product_of_torch=True,
    ),
    "device kernel": Path(_on_npu(lambda x: madd(x, _other(x))), _eager_madd),
    "device kernel, product": Path(
        _on_npu(_with_weight(_basic)), _linear, _product_bound, (torch.float32, torch.bfloat16)
    ),
}


def assert_within(got: Tensors, expected: Tensors, bounds: Tensors, given: Tensors) -> None:
    for y, other, bound, x in zip(got, expected, bounds, given, strict=True):
        case = f"{x.dtype} {tuple(x.shape)}"
        assert (y.dtype, y.shape) == (other.dtype, other.shape), case
        excess = (y.double() - other.double()).abs() - bound
        assert bool((excess <= 0).all()), f"{case}: {float(excess.max()):.3g} above the bound"


def no_bounds(results: Tensors) -> Tensors:
    return [_exact(y, y) for y in results]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_as_near_to_eager_as_the_table_says(path: str) -> None:
    row = PATHS[path]
    expected = [row.eager(x) for x in row.given]
    assert_within(row.results, expected, row.bounds(row.given, expected), row.given)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_gives_the_same_bits_every_time(path: str) -> None:
    row = PATHS[path]
    bounds = row.bounds_between_runs(row.given, row.results)  # torch's product: as memory lies
    for _ in range(2):
        assert_within(row.run(row.given), row.results, bounds, row.given)


@pytest.mark.parametrize("path", PATHS)
def test_a_row_does_not_depend_on_the_others(path: str) -> None:
    row = PATHS[path]
    alone, given = row.results[1::2], row.given[1::2]
    among = [one_row(y) for y in row.results[::2]]
    assert_within(alone, among, row.bounds_between_runs(given, among), given)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_does_not_depend_on_the_number_of_threads(path: str) -> None:
    row = PATHS[path]
    torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)
    bounds = row.bounds_between_runs(row.given, row.results)
    assert_within(row.run(row.given), row.results, bounds, row.given)


@pytest.mark.parametrize("dtype", WIDE)
def test_a_kernel_contracts_only_when_it_asks(dtype: torch.dtype) -> None:
    x = _random(SHAPES[-1], dtype)
    rounded_twice = x * _other(x) + x
    assert torch.equal(madd(x, _other(x)), rounded_twice)
    if "fma" in str(jit.toolchain().isa).lower():
        assert not torch.equal(fused_madd(x, _other(x)), rounded_twice)
        if dtype is torch.float32:
            once = (x.double() * _other(x).double() + x.double()).float()
            assert torch.equal(fused_madd(x, _other(x)), once)


@pytest.mark.parametrize("dtype", WIDE)
def test_a_fused_kernel_that_a_pass_puts_in_is_the_kernel(dtype: torch.dtype) -> None:
    x, w = _random((7, 33), dtype), scale(33, dtype)

    def spelled_out(x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + 1e-6) * w

    (fused,) = _compiled(spelled_out)([x])
    assert torch.equal(fused, kernels.rms_norm(x, w))
    bound = _norm_bound(x, fused) + 2 * unit(dtype) * fused.abs()  # a root and a quotient at once
    assert_within([fused], [spelled_out(x)], [bound], [x])


@pytest.mark.parametrize("dtype", WIDE)
def test_a_norm_is_the_same_whoever_knows_its_eps(dtype: torch.dtype) -> None:
    x, eps = _random((7, 33), dtype), torch.tensor(1e-6, dtype=dtype)
    w = scale(33, dtype)
    known = kernels.rms_norm(x, w, float(eps))
    assert torch.equal(torch.ops.bringup.rms_norm_eps(x, w, eps), known)
    known = kernels.add_rms_norm(x, _other(x), w, float(eps))
    asked = torch.ops.bringup.add_rms_norm_eps(x, _other(x), w, eps)
    assert all(map(torch.equal, asked, known))


def test_the_documented_table_has_every_row() -> None:
    text = (FilePath(__file__).parents[2] / "docs" / "numerics.md").read_text()
    table = text[text.index("| path ") :].partition("\n\n")[0]  # others are about one operator
    documented = [line.split("|")[1].strip() for line in table.splitlines() if line[:2] == "| "]
    assert set(PATHS) == set(documented) - {"path"}
    assert compiler  # the backend is registered by its import
