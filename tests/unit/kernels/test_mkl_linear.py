"""Linear layers over weights that MKL packed: right for every size and number of threads, refused
where the weight is not the one that was packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernels.test_linear_choice import figures, seconds
from tests.unit.kernels.test_pack_linear import PACKED, assert_same, ran
from tests.unit.passes.support import empty_registry
from torch import Tensor, nn
from torch.nn import functional

from bringup import graphs, kernels
from bringup.errors import ContractError, KernelError
from bringup.kernels import _linear_choice as choice
from bringup.kernels._linear_mkl import has_mkl

__all__ = ["empty_registry", "figures", "ran"]

pytestmark = pytest.mark.skipif(not has_mkl(), reason="this build of torch has no MKL")

BY_MKL = "bringup.mkl_linear.default"
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda t: t,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda t: functional.gelu(t, approximate="tanh"),
    "silu": functional.silu,
}
SIZE = st.integers(1, 70)


def faster_by_mkl() -> dict[str, float]:
    return seconds(2, 3, 3) | {"mkl": 1.0, "panels, bfloat16": 1.5}


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@settings(deadline=None)
@given(SIZE, SIZE, SIZE, st.sampled_from(sorted(ACTIVATIONS)), st.booleans())
def test_product_is_that_of_torch(
    rows: int, depth: int, width: int, activation: str, has_bias: bool
) -> None:
    x, weight = torch.randn(rows, depth), torch.randn(width, depth)
    bias = torch.randn(width) if has_bias else None
    packed = kernels.pack_weight_mkl(weight, rows)
    got = kernels.mkl_linear(x, packed, bias, width, activation)
    expected = ACTIVATIONS[activation](functional.linear(x, weight, bias))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(16, 384, 1536), (33, 17, 1030), (1, 1000, 1000)])
def test_weight_is_read_by_more_and_fewer_threads_than_packed_it(
    shape: tuple[int, int, int], threads: Callable[[int], None]
) -> None:
    rows, depth, width = shape
    x, weight = torch.randn(rows, depth), torch.randn(width, depth)
    for packing in (1, 2, 4):
        threads(packing)
        packed = kernels.pack_weight_mkl(weight, rows)
        for reading in (1, 2, 3):
            threads(reading)
            got = kernels.mkl_linear(x, packed, None, width)
            torch.testing.assert_close(got, x @ weight.t(), atol=1e-3, rtol=1e-3)


def test_any_strides_of_activation_and_weight_are_taken() -> None:
    x, weight = torch.randn(30, 8).t(), torch.randn(30, 20).t()
    packed = kernels.pack_weight_mkl(weight, 8)
    torch.testing.assert_close(kernels.mkl_linear(x, packed, None, 20), x @ weight.t())


def test_copy_of_a_packed_weight_is_refused_because_it_would_compute_something_else() -> None:
    x, packed = torch.randn(16, 384), kernels.pack_weight_mkl(torch.randn(512, 384), 16)
    with pytest.raises(KernelError, match="this is a copy of a packed weight"):
        kernels.mkl_linear(x, packed.clone(), None, 512)


def test_weight_packed_for_other_sizes_is_refused() -> None:
    packed = kernels.pack_weight_mkl(torch.randn(20, 6), 4)
    for x, width in ((torch.randn(5, 6), 20), (torch.randn(4, 7), 20), (torch.randn(4, 6), 19)):
        with pytest.raises(KernelError, match="packed for other sizes"):
            kernels.mkl_linear(x, packed, None, width)
    with pytest.raises(KernelError, match="not from pack_weight_mkl"):
        kernels.mkl_linear(torch.randn(4, 6), packed[:31], None, 20)


def test_wrong_arguments_are_refused_by_name() -> None:
    x, packed = torch.randn(4, 6), kernels.pack_weight_mkl(torch.randn(20, 6), 4)
    with pytest.raises(KernelError, match="none, relu, gelu, gelu_tanh or silu"):
        kernels.mkl_linear(x, packed, None, 20, "swish")
    with pytest.raises(ContractError, match="bias must have shape"):
        kernels.mkl_linear(x, packed, torch.randn(19), 20)
    with pytest.raises(ContractError, match="float32"):
        kernels.mkl_linear(x.double(), packed, None, 20)


@pytest.mark.parametrize(
    ("weight", "rows", "message"),
    [
        (torch.randn(3, 4, 5), 2, r"float32 weight \[n, k\], got float32 \[3, 4, 5\]"),
        (torch.randn(3, 4).double(), 2, "got float64"),
        (torch.randn(3, 4), 0, "got 0 rows"),
        (torch.randn(0, 4), 2, r"a weight \[0, 4\]"),
        (torch.randn(3, 0), 2, r"a weight \[3, 0\]"),
    ],
)
def test_what_cannot_be_packed_is_refused(weight: Tensor, rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.pack_weight_mkl(weight, rows)


def test_fake_tensors_have_the_sizes_of_real_ones() -> None:
    x, weight = torch.randn(4, 6), torch.randn(20, 6)
    packed = kernels.pack_weight_mkl(weight, 4)
    fake = torch.ops.bringup.pack_weight_mkl(weight.to("meta"), 4)
    assert (fake.shape, fake.dtype) == (packed.shape, packed.dtype)
    result = torch.ops.bringup.mkl_linear(x.to("meta"), fake, None, 20)
    assert (result.shape, result.dtype) == ((4, 20), torch.float32)


def test_captured_product_reads_new_rows_at_every_replay() -> None:
    x, packed = torch.randn(5, 30), kernels.pack_weight_mkl(torch.randn(20, 30), 5)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = kernels.mkl_linear(x, packed, None, 20, "relu")
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert torch.equal(y, kernels.mkl_linear(x, packed, None, 20, "relu"))


@pytest.mark.parametrize("mode", ["default", "serve"])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_that_is_faster_by_mkl_is_packed_by_it(
    ran: Any, figures: Callable[..., list[str]], mode: str, bias: bool
) -> None:
    figures(faster_by_mkl())
    model = nn.Sequential(nn.Linear(24, 40, bias=bias), nn.GELU(), nn.Linear(40, 3, bias=bias))
    compiled = assert_same(model, torch.randn(5, 24), mode=mode)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 24)
            torch.testing.assert_close(compiled(x), model(x))
    assert (ran[BY_MKL], ran[PACKED], ran["aten.gelu.default"]) == (2, 0, 0)


def test_new_weights_are_packed_again(ran: Any, figures: Callable[..., list[str]]) -> None:
    figures(faster_by_mkl())
    model, x = nn.Linear(24, 40).eval(), torch.randn(5, 24)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options={"mode": "serve"})
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
            model.weight.normal_()


def test_rows_that_only_the_run_tells_are_not_packed_by_mkl(
    figures: Callable[..., list[str]],
) -> None:
    figures(faster_by_mkl())
    assert choice.best_layout(None, 40, 24, "float32", may_be_mkl=True) == "panels"
    assert choice.best_layout(8, 40, 24, "float32", may_be_mkl=True) == "mkl"
    assert choice.best_layout(8, 40, 24, "float32") == "panels"


@pytest.mark.parametrize(
    ("narrow", "best"), [(0.9, "panels"), (1.04, "panels"), (1.2, "mkl"), (3.0, "mkl")]
)
def test_narrow_panels_are_kept_where_they_win(
    figures: Callable[..., list[str]], narrow: float, best: str
) -> None:
    table: Mapping[str, float] = faster_by_mkl() | {"panels, bfloat16": narrow}
    figures(table)
    found = choice.best_layout(8, 40, 24, "float32", may_be_narrow=True, may_be_mkl=True)
    assert found == best


def test_graph_that_leaves_the_process_has_no_weight_that_cannot_move(
    ran: Any, figures: Callable[..., list[str]]
) -> None:
    figures(faster_by_mkl())
    assert_same(nn.Linear(24, 40), torch.randn(5, 24), inner="inductor")
    assert ran[BY_MKL] == 0
