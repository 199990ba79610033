"""`packed_linear` against torch.nn.functional.linear in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bringup import graphs, kernels, ops
from bringup.errors import ContractError, KernelError

FLOATS = (torch.float32, torch.float64)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}
SIZES = st.sampled_from([0, 1, 2, 5, 13, 14, 15, 16, 17, 31, 32, 33, 47, 64, 191, 192, 193, 400])
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "rows apart": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "steps": lambda x: x.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
    "expanded": lambda x: x[:1].expand(x.shape[0], -1),
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    packed = kernels.pack_weight(weight)
    result: Tensor = kernels.packed_linear(x, packed, bias, -weight.shape[0] % 16, activation)
    return result


def bound(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of the error, element by element: a sum of k + 1 terms in any order (Higham, section 3.1).
    Activations stretch it by 1.13 at most, and have an error of their own.
    """
    unit = torch.finfo(x.dtype).eps / 2
    magnitudes = x.double().abs() @ weight.double().abs().t()
    if bias is not None:
        magnitudes = magnitudes + bias.double().abs()
    own = 1e-6 if x.dtype is torch.float32 else 1e-13
    return 1.13 * (x.shape[1] + 2) * unit * magnitudes + own * (1 + magnitudes)


@settings(max_examples=150, deadline=None)
@given(
    m=SIZES,
    k=SIZES,
    n=SIZES,
    dtype=st.sampled_from(FLOATS),
    biased=st.booleans(),
    activation=st.sampled_from(list(ACTIVATIONS)),
    layout=st.sampled_from(list(LAYOUTS)),
    threads=st.sampled_from([1, 2]),
)
def test_packed_linear_is_linear(
    m: int,
    k: int,
    n: int,
    dtype: torch.dtype,
    biased: bool,
    activation: str,
    layout: str,
    threads: int,
) -> None:
    torch.manual_seed(m + k + n)
    x = LAYOUTS[layout](torch.randn(m, k, dtype=dtype))
    weight = torch.randn(n, k, dtype=dtype)
    bias = torch.randn(n, dtype=dtype) if biased else None
    exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = linear(x, weight, bias, activation)
    finally:
        torch.set_num_threads(before)
    error = (ours.double() - ACTIVATIONS[activation](exact)).abs()
    assert ours.shape == (m, n)
    assert ours.is_contiguous()
    assert bool((error <= bound(x, weight, bias)).all())


@pytest.mark.parametrize("shape", [(70, 400, 100), (3, 4096, 40)])
def test_a_row_has_the_same_bits_alone_among_others_and_on_one_thread(
    shape: tuple[int, int, int],
) -> None:
    m, k, n = shape
    x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    whole = linear(x, weight, bias, "gelu")
    alone = torch.cat([linear(row[None], weight, bias, "gelu") for row in x])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        single = linear(x, weight, bias, "gelu")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(whole, alone)
    assert torch.equal(whole, single)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_activations_keep_nan_and_the_tails(activation: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[float("nan")], [float("inf")], [1e30], [-1e30]], dtype=dtype)
    ours = linear(x, torch.ones(1, 1, dtype=dtype), None, activation)
    lowest = -1e30 if activation == "none" else 0.0
    expected = torch.tensor([[float("nan")], [float("inf")], [1e30], [lowest]], dtype=dtype)
    torch.testing.assert_close(ours, expected, equal_nan=True)


def test_pack_weight_fills_the_last_panel_with_zeros() -> None:
    weight = torch.randn(20, 3)
    panels = kernels.pack_weight(weight)
    assert panels.shape == (2, 3, 16)
    assert torch.equal(panels.transpose(1, 2).reshape(32, 3)[:20], weight)
    assert bool((panels[1, :, 4:] == 0).all())


def test_pack_weight_of_something_else_than_a_matrix_says_so() -> None:
    with pytest.raises(ValueError, match=r"expected a weight \[n, k\], got shape \[2, 3, 4\]"):
        kernels.pack_weight(torch.randn(2, 3, 4))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.randn(4, 8), torch.randn(2, 9, 16)), r"panels must have shape \[2, 8, 16\]"),
        ((torch.randn(1, 1, 4, 8), torch.randn(2, 1, 16)), r"x must have shape \[1, 1\]"),
        (
            (torch.randn(4, 8), torch.randn(2, 8, 16), torch.randn(8)),
            r"bias must have shape \[32\]",
        ),
        ((torch.randn(4, 8).half(), torch.randn(2, 8, 16)), "torch.float32 or torch.float64"),
    ],
)
def test_wrong_input_names_operator_and_argument(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ContractError, match=f"bringup::packed_linear.*{words}"):
        kernels.packed_linear(*arguments)


@pytest.mark.parametrize("padding", [-1, 16])
def test_padding_of_more_than_a_panel_is_refused(padding: int) -> None:
    with pytest.raises(KernelError, match=r"bringup::packed_linear.*padding must be .* 0 to 15"):
        kernels.packed_linear(torch.randn(4, 8), torch.randn(2, 8, 16), None, padding)


def test_unknown_activation_names_those_that_there_are() -> None:
    with pytest.raises(KernelError, match="none, relu, gelu, gelu_tanh or silu"):
        kernels.packed_linear(torch.randn(4, 8), torch.randn(2, 8, 16), None, 0, "swish")


def test_operators_pass_torchs_own_check() -> None:
    x, panels = torch.randn(5, 8), kernels.pack_weight(torch.randn(20, 8))
    torch.library.opcheck(
        torch.ops.bringup.packed_linear.default, (x, panels, torch.randn(20), 12, "silu")
    )
    torch.library.opcheck(torch.ops.bringup.pack_weight.default, (torch.randn(20, 8),))
    assert ops.check(kernels.packed_linear, [((x, panels, None, 12), {})])


def test_captured_product_reads_new_rows_at_every_replay() -> None:
    x, weight = torch.randn(5, 30), torch.randn(20, 30)
    panels = kernels.pack_weight(weight)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = kernels.packed_linear(x, panels, None, 12, "relu")
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert torch.equal(y, kernels.packed_linear(x, panels, None, 12, "relu"))


def test_compiled_with_dynamic_rows_is_compiled_once() -> None:
    panels = kernels.pack_weight(torch.randn(20, 8))
    compiles = 0

    def count(module: Any, _: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return module

    def run(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.bringup.packed_linear(x, panels, None, 12)
        return result

    compiled = torch.compile(run, backend=count, dynamic=True, fullgraph=True)
    for rows in (5, 2, 40):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), run(x))
    assert compiles == 1
