"""The table of docs/numerics.md: a test for each of its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from bringup import compiler, devices, graphs, jit, kernels, ops

Result = torch.Tensor
ROWS, WIDTH, OUT = 64, 256, 64
TEXT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 2> a(args[0]), b(args[1]);
  const bringup::View<float, 2> out(args[2]);
  for (int64_t i = 0; i < out.size(0); ++i)
    for (int64_t j = 0; j < out.size(1); ++j) out(i, j) = a(i, j) * b(i, j) + a(i, j);
  return 0;
}
"""


def _madd(name: str, *flags: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"numerics::{name}(Tensor a, Tensor b) -> Tensor",
        source=jit.Source(text=TEXT, name="madd.cpp"),
        outputs=ops.empty_like("a"),
        checks=ops.same_shape("a", "b"),
        flags=flags,
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


@dataclass(frozen=True)
class Path:
    """One row of the table.

    Attributes:
        run: the path, over [n, WIDTH].
        eager: what torch computes, over the same.
        tolerance: how far they may lie apart, against the largest magnitude; 0: the same bits.
        by_batch: whether a row is the same alone and among others, bit by bit.
    """

    run: Callable[[Result], Result]
    eager: Callable[[Result], Result]
    tolerance: float = 0.0
    by_batch: bool = True


def _other(x: Result) -> Result:
    return x.flip(-1).contiguous()


_generator = torch.Generator().manual_seed(7)
_weight = torch.randn(OUT, WIDTH, generator=_generator)
_scale = torch.randn(WIDTH, generator=_generator)


def _eager_madd(x: Result) -> Result:
    return x * _other(x) + x


def _slow(x: Result) -> Result:
    return torch.func.functionalize(lambda a: torch.ops.numerics.madd(a, _other(a)))(x)


def _norm(x: Result) -> Result:
    return torch.nn.functional.rms_norm(x, (WIDTH,), _scale, 1e-6)


def _linear(x: Result) -> Result:
    return torch.nn.functional.linear(x, _weight)


def _chain(x: Result) -> Result:
    return torch.relu(_eager_madd(x)).tanh()


def _replayed(x: Result) -> Result:
    held, graph = torch.zeros_like(x), graphs.CapturedGraph()
    with graphs.capture(graph):
        y = _chain(held)
    held.copy_(x)
    graph.replay()
    return y.clone()


def _compiled(function: Callable[[Result], Result], **options: Any) -> Callable[[Result], Result]:
    def run(x: Result) -> Result:
        torch._dynamo.reset()
        return torch.compile(function, backend="bringup", options=options)(x)  # type: ignore[no-any-return]

    return run


def _on_npu(function: Callable[..., Result], *more: Result) -> Callable[[Result], Result]:
    return lambda x: function(x.to("npu"), *(one.to("npu") for one in more)).cpu()


PATHS = {
    "fast call": Path(lambda x: madd(x, _other(x)), _eager_madd),
    "slow call": Path(_slow, _eager_madd),
    "fused kernel": Path(lambda x: kernels.rms_norm(x, _scale), _norm, 1e-6),
    "packed linear": Path(
        lambda x: kernels.packed_linear(x, kernels.pack_weight(_weight)), _linear, 1e-6
    ),
    "gemm family": Path(lambda x: kernels.basic_matmul(x, _weight.t().contiguous()), _linear, 1e-6),
    "captured replay": Path(_replayed, _chain),
    "compiled, eager inside": Path(_compiled(_chain), _chain),
    "device fallback": Path(_on_npu(torch.erfinv), torch.erfinv),
    "device kernel, one element": Path(_on_npu(lambda x: x * x + x), lambda x: x * x + x),
    "device kernel, matmul": Path(_on_npu(lambda x, w: x @ w.t(), _weight), _linear, 1e-5, False),
}


@pytest.fixture
def rows() -> Result:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(3)) / 4


def distance(got: Result, expected: Result) -> float:
    same = torch.equal(got.nan_to_num(9.0), expected.nan_to_num(9.0))
    spread = (got - expected).abs().max() / expected.abs().max()
    return 0.0 if same else float(spread)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_as_near_to_eager_as_the_table_says(path: str, rows: Result) -> None:
    row = PATHS[path]
    assert distance(row.run(rows), row.eager(rows)) <= row.tolerance


@pytest.mark.parametrize("path", PATHS)
def test_a_path_gives_the_same_bits_every_time(path: str, rows: Result) -> None:
    first = PATHS[path].run(rows)
    assert all(distance(PATHS[path].run(rows), first) == 0 for _ in range(3))


@pytest.mark.parametrize("path", PATHS)
def test_a_row_does_not_depend_on_the_others(path: str, rows: Result) -> None:
    row = PATHS[path]
    among, alone = row.run(rows)[5:6], row.run(rows[5:6].clone())
    assert distance(alone, among) <= (0 if row.by_batch else row.tolerance)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_does_not_depend_on_the_number_of_threads(path: str, rows: Result) -> None:
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(PATHS[path].run(rows))
    assert distance(*results) == 0


def test_a_kernel_contracts_only_when_it_asks(rows: Result) -> None:
    other = _other(rows)
    exact = (rows.double() * other.double() + rows.double()).float()
    assert torch.equal(madd(rows, other), rows * other + rows)
    if "fma" in jit.toolchain().isa.__str__().lower():
        assert torch.equal(fused_madd(rows, other), exact)
        assert not torch.equal(madd(rows, other), exact)


def test_inductor_inside_is_near_to_eager(rows: Result) -> None:
    got = _compiled(_chain, inner="inductor")(rows)
    assert distance(got, _chain(rows)) <= 1e-6


def test_the_documented_table_has_every_row() -> None:
    from pathlib import Path as FilePath

    text = (FilePath(__file__).parents[2] / "docs" / "numerics.md").read_text()
    documented = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert set(PATHS) | {"compiled, Inductor inside"} == set(documented) - {"path"}
    assert compiler  # the backend is registered by its import
